"""Autograd of the ops: one ``torch.autograd.Function`` for all ops, and an error if an op has no backward.

An operator has one autograd kernel per device. This works with every version of torch; ``torch.library.register_autograd``, since 2.4,
would build the same from the same two functions.
"""

import torch

from . import _backward


def recorded(overload):
    """The autograd kernel of an operator: records the call if gradients are required, then runs the op."""

    def run(*args):
        if torch.is_grad_enabled() and any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            return _record(overload, args)
        with torch._C._AutoDispatchBelowAutograd():
            return overload.operator(*args)

    return run


def _record(overload, args):
    inputs, settings, _, _ = overload.read(args)
    why = _backward.missing(overload.op, inputs, settings, overload.kind == "state")
    if why:
        raise NotImplementedError(why)
    if overload.op in _backward.KEEPS and overload.kind == "default":
        from ._torch import OPERATORS

        return _record(OPERATORS[overload.op, "all"], args)[0]
    return _Recorded.apply(overload, *args)


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, overload, *args):
        with torch._C._AutoDispatchBelowAutograd():
            found = overload.operator(*args)
        outputs = found if isinstance(found, tuple) else (found,)
        count = len(overload.names)
        ctx.overload, ctx.rest = overload, args[count:]
        # Tensors that no formula reads are not saved, so they may be modified in place later.
        ctx.save_for_backward(*args[:count], *(outputs if overload.op in _backward.KEEPS else ()))
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx, *grads):
        overload, count = ctx.overload, len(ctx.overload.names)
        # Read only once, because activation checkpointing frees each saved tensor when it is unpacked.
        saved = ctx.saved_tensors
        tensors, outputs = saved[:count], saved[count:]
        inputs, settings, bounds, insert = overload.read((*tensors, *ctx.rest))
        wanted = {name for name, needed in zip(overload.names, ctx.needs_input_grad[1:]) if needed}
        made, grads = (dict(zip(overload.wanted, one)) for one in (outputs, grads))
        call = _backward.Call(inputs, settings, bounds, made, grads, wanted, insert)
        found = _backward.BACKWARD[overload.op](call)
        given = [found.get(name) if name in wanted else None for name in overload.names]
        like = [one if one is None else one.to(inputs[name].dtype) for name, one in zip(overload.names, given)]
        return (None, *like, None, None, None)
