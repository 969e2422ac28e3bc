"""Which way a call of an op goes: straight to the library, or as an operator of torch's dispatcher where torch has to see it.

Torch has to see a call that it records for gradients, one over tensors that are not plain (fake, functional, of a subclass), one under a
mode of its dispatcher, and each that ``torch.compile`` traces. Every other call stays away from the dispatcher, which costs ten
microseconds. ``_torch`` has the operators; it is imported by the first call that needs one, so that nothing here imports torch.
"""

import sys

from . import _calls

_modes = _transforms = None


def call(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    """As ``_calls.call``, whichever way it goes."""
    if (_transforms or _find_modes())():
        _check_transforms(name, inputs)
    if not _modes():
        try:
            return _calls.call(name, settings, inputs, out, bounds, want, shapes, insert)
        except NotImplementedError:
            # Gradients are wanted, or a tensor is not plain; arrays of other libraries have neither.
            torch = sys.modules.get("torch")
            if torch is None or not any(isinstance(array, torch.Tensor) for array in inputs.values()):
                raise
    return _traced(name, settings, inputs, out, bounds, want, shapes, insert)


def _check_transforms(name, inputs):
    """Refuses forward-mode automatic differentiation and the transforms of torch.func, of which the ops have no rules."""
    torch = sys.modules["torch"]
    tensors = [tensor for tensor in inputs.values() if isinstance(tensor, torch.Tensor)]
    functorch = torch._C._functorch
    if any(functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors):
        raise NotImplementedError(f"firstlight's {name} has no rule for torch.func's transforms (vmap, grad, jvp, ...)")
    if any(torch.autograd.forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(f"firstlight's {name} has no forward-mode derivative")


def _traced(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    from . import _torch

    return _torch.call(name, settings, inputs, out, bounds, want, insert)


# What torch.compile reads in place of `call`: a plain attribute, so that it is there before torch is.
call._torchdynamo_inline = _traced


def _find_modes():
    """The functions that count the modes of torch's dispatcher and tell of transforms, as soon as torch is there."""
    global _modes, _transforms
    torch = sys.modules.get("torch")
    _modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    if _modes is None:
        # Asked again at the next call: another module may import torch.
        _modes, found = int, bool
        return found
    forward_ad, level = torch.autograd.forward_ad, torch._C._functorch.maybe_current_level

    def transforms():
        return forward_ad._current_level >= 0 or level() is not None

    _transforms = transforms
    return transforms
