"""Gradients by the library's own kernels: the op ``<op>_backward`` of an op. Eager calls only; see ``by_op``."""

import torch

from . import _calls, _library, _route
from ._arrays import library_of


def by_op(name, call):
    """The gradients of the inputs in ``call.wanted`` by name, or ``None`` where the formulas are needed: for gradients of gradients, in graphs,
    which fuse the formulas, and for calls that the op refuses."""
    if torch.is_grad_enabled() or _route._modes():
        return None
    op = _library.op(f"{name}_backward")
    inputs = {tensor: call.inputs.get(tensor, call.outputs.get(tensor)) for tensor in op.inputs}
    first = inputs[next(iter(op.inputs))]
    for tensor, grad in call.grads.items():
        if grad is None:
            continue
        if f"d{tensor}" not in op.inputs:
            return None
        inputs[f"d{tensor}"] = grad
    if inputs["do"] is None:
        inputs["do"] = torch.zeros_like(call.outputs.get("o", call.inputs.get("v", first)))
    wanted = [tensor for tensor in call.inputs if tensor in call.wanted]
    insert = tuple(tensor for tensor in ("x", "gate", "do", "dx", "dgate") if tensor in op.names) if call.insert else ()
    try:
        codes = library_of(first).codes
        shapes = {f"d{tensor}": (tuple(inputs[tensor].shape), codes.get(inputs[tensor].dtype)) for tensor in wanted}
        found = _calls.call(op.name, tuple(call.settings.items()), inputs, None, call.bounds, tuple(shapes), shapes, insert)
    except (_library.Refused, NotImplementedError, TypeError):
        return None
    return dict(zip(wanted, found if len(wanted) > 1 else (found,)))


def by_op_alone(name):
    """The gradient of a recurrence. It has no fallback to torch functions: their graph would have nodes for every token."""

    def run(call):
        found = by_op(name, call)
        if found is None:
            raise NotImplementedError(f"firstlight's {name} has no gradient of this call, of its gradient, or in graphs")
        return found

    return run
