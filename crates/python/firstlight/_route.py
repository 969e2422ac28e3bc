"""Which way a call of an op goes: straight to the library, or as an operator of torch's dispatcher where torch has to see it.

Torch has to see a call that it records for gradients, one over tensors that are not plain (fake, functional, of a subclass), one under a
mode of its dispatcher, and each that ``torch.compile`` traces. Every other call stays away from the dispatcher, which costs ten
microseconds. ``_torch`` has the operators; it is imported by the first call that needs one, so that nothing here imports torch.
"""

import sys

from . import _calls

_modes = None


def call(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    """As ``_calls.call``, whichever way it goes."""
    if not (_modes or _find_modes())():
        try:
            return _calls.call(name, settings, inputs, out, bounds, want, shapes, insert)
        except NotImplementedError:
            # Gradients are wanted, or a tensor is not plain; arrays of other libraries have neither.
            torch = sys.modules.get("torch")
            if torch is None or not any(isinstance(array, torch.Tensor) for array in inputs.values()):
                raise
    return _traced(name, settings, inputs, out, bounds, want, shapes, insert)


def _traced(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    from . import _torch

    return _torch.call(name, settings, inputs, out, bounds, want, insert)


# What torch.compile reads in place of `call`: a plain attribute, so that it is there before torch is.
call._torchdynamo_inline = _traced


def _find_modes():
    """The function that counts the modes of torch's dispatcher, as soon as torch is there."""
    global _modes
    torch = sys.modules.get("torch")
    _modes = getattr(getattr(torch, "_C", None), "_len_torch_dispatch_stack", None)
    return _modes or int
