"""Which way a call of an op goes: straight to the library, or as an operator of torch's dispatcher where torch has to see it.

Torch has to see a call that it records for gradients, one over tensors that are not plain (fake, functional, of a subclass), one under a
mode of its dispatcher, and each that ``torch.compile`` traces. Every other call stays away from the dispatcher, which costs ten
microseconds. ``_torch`` has the operators; it is imported by the first call that needs one, so that nothing here imports torch.
"""

import functools
import sys

from . import _arrays, _calls, _foreign


class _NoTorch:
    """What there is of ``torch.autograd.forward_ad`` before torch is imported."""

    _current_level = -1


_forward_ad = _NoTorch


def call(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    """As ``_calls.call``, whichever way it goes."""
    if not _modes():
        if _forward_ad._current_level >= 0:
            _check_derivatives(name, inputs)
        try:
            return _calls.call(name, settings, inputs, out, bounds, want, shapes, insert)
        except _foreign.Foreign as error:
            run = functools.partial(call, name, settings)
            return _foreign.call(run, error, inputs, out, want, bounds, want, shapes, insert)
        except NotImplementedError:
            # Gradients are wanted, or a tensor is not plain; arrays of other libraries have neither.
            torch = sys.modules.get("torch")
            if torch is None or not any(isinstance(array, torch.Tensor) for array in inputs.values()):
                raise
    _check_derivatives(name, inputs)
    return _traced(name, settings, inputs, out, bounds, want, shapes, insert)


def _check_derivatives(name, inputs):
    """Refuses forward-mode automatic differentiation and the transforms of torch.func, of which the ops have no rules."""
    torch = sys.modules["torch"]
    _arrays.check_transforms(torch, name, inputs)
    if _forward_ad._current_level < 0:
        return
    tensors = [array for array in inputs.values() if isinstance(array, torch.Tensor)]
    if any(_forward_ad.unpack_dual(array).tangent is not None for array in tensors):
        raise NotImplementedError(f"firstlight's {name} has no forward-mode derivative")


def _traced(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    from . import _torch

    return _torch.call(name, settings, inputs, out, bounds, want, insert)


# What torch.compile reads in place of `call`: a plain attribute, so that it is there before torch is.
call._torchdynamo_inline = _traced


def _find_modes():
    """How many modes of torch's dispatcher are active, by torch's own function as soon as torch is imported."""
    global _modes, _forward_ad
    torch = sys.modules.get("torch")
    modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    if modes is None:
        return 0
    _modes, _forward_ad = modes, torch.autograd.forward_ad
    return modes()


_modes = _find_modes
