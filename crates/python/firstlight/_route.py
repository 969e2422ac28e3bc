"""Routes the call of an op directly to the library, or through torch's dispatcher if torch has to record or trace it.

The dispatcher is required for autograd, for tensors that are not plain (fake, functional or of a subclass), in dispatch modes, and under
``torch.compile``. All other calls bypass it, because it takes ten microseconds. ``_torch`` has the operators. It is imported by the first
call that requires one, so that this module does not import torch.
"""

import functools
import sys

from . import _arrays, _calls, _foreign


class _NoTorch:
    """Replaces ``torch.autograd.forward_ad`` until torch is imported."""

    _current_level = -1


_forward_ad = _NoTorch


def call(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    """Like ``_calls.call``, by either route."""
    if not _modes():
        if _forward_ad._current_level >= 0:
            _check_derivatives(name, inputs)
        try:
            return _calls.call(name, settings, inputs, out, bounds, want, shapes, insert)
        except _foreign.Foreign as error:
            run = functools.partial(call, name, settings)
            return _foreign.call(run, error, inputs, out, want, bounds, want, shapes, insert)
        except NotImplementedError:
            # Gradients are required, or a tensor is not plain. Neither applies to arrays of other libraries.
            torch = sys.modules.get("torch")
            if torch is None or not any(isinstance(array, torch.Tensor) for array in inputs.values()):
                raise
    _check_derivatives(name, inputs)
    return _traced(name, settings, inputs, out, bounds, want, shapes, insert)


def _check_derivatives(name, inputs):
    """Rejects forward-mode automatic differentiation and the transforms of torch.func, which the ops do not support."""
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


# torch.compile traces this function instead of `call`. A plain attribute does not require torch.
call._torchdynamo_inline = _traced


def _find_modes():
    """The number of active dispatch modes. Replaces itself by torch's function when torch is imported."""
    global _modes, _forward_ad
    torch = sys.modules.get("torch")
    modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    if modes is None:
        return 0
    _modes, _forward_ad = modes, torch.autograd.forward_ad
    return modes()


_modes = _find_modes
