"""Attention sinks: an additional logit per head in the softmax, without a value.

With the log-sum-exp of the other logits, a sink scales the output by ``sigmoid(lse - sink)`` and makes the log-sum-exp
``logaddexp(lse, sink)``. This is exact, and takes one pass over the output after any attention kernel.
"""

import sys

from ._route import call


def attention_with_sinks(sinks, settings, inputs, out, bounds, return_lse):
    """Attention with ``sinks`` ``[H]``, with the arguments of ``_route.call``."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(inputs["q"], torch.Tensor):
        return _of_arrays(sinks, settings, inputs, out, bounds, return_lse)
    if tuple(sinks.shape) != (inputs["q"].shape[-2],):
        raise ValueError(f"`sinks` has shape {list(sinks.shape)}, expected [{inputs['q'].shape[-2]}], one for each head of `q`")
    tensors = [tensor for tensor in (sinks, *inputs.values()) if tensor is not None]
    if _is_recorded(torch, tensors):
        found, lse = _recorded(torch).apply(sinks, settings, bounds, tuple(inputs), *inputs.values())
    else:
        found, lse = call("attention", settings, inputs, {}, bounds, ("o", "lse"))
        found, lse = _joined(torch, found, lse, sinks, bounds, torch.is_grad_enabled())
    if out is not None:
        found = out.copy_(found)
    return (found, lse) if return_lse else found


def _is_recorded(torch, tensors):
    compiling = torch.compiler.is_compiling() if hasattr(torch.compiler, "is_compiling") else torch._dynamo.is_compiling()
    return not compiling and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _rows(x, lse, bounds):
    """The log-sum-exp ``[B, H, T]`` or ``[H, total]``, with the dimensions of the output ``[B, T, H, 1]``."""
    rows = lse.transpose(-1, -2)[..., None]
    return rows.reshape(*x.shape[:-1], 1) if "cu_seqlens" in bounds else rows


def _joined(torch, o, lse, sinks, bounds, keep):
    share = torch.sigmoid(_rows(o, lse, bounds) - sinks.float()[:, None])
    o = (o * share).to(o.dtype) if keep else o.mul_(share)
    return o, torch.logaddexp(lse, sinks.float()[:, None])


_FUNCTION = None


def _recorded(torch):
    """The function of torch's autograd. With a sink's share in output and log-sum-exp, the gradients of q, k and v are those of plain
    attention, by the same backward."""
    global _FUNCTION
    if _FUNCTION is not None:
        return _FUNCTION
    from . import _backward

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx, sinks, settings, bounds, names, *tensors):
            inputs = dict(zip(names, tensors))
            why = _backward.missing("attention", inputs, dict(settings), False)
            if why:
                raise NotImplementedError(why)
            o, lse = call("attention", settings, inputs, {}, bounds, ("o", "lse"))
            o, lse = _joined(torch, o, lse, sinks, bounds, False)
            ctx.settings, ctx.bounds, ctx.names = settings, bounds, names
            ctx.save_for_backward(sinks, o, lse, *tensors)
            ctx.set_materialize_grads(False)
            return o, lse

        @staticmethod
        def backward(ctx, grad_o, grad_lse):
            sinks, o, lse, *tensors = ctx.saved_tensors
            inputs = dict(zip(ctx.names, tensors))
            wanted = {name for name, needed in zip(ctx.names, ctx.needs_input_grad[4:]) if needed}
            settings = {name: value for name, value in ctx.settings if value is not None}
            grads = {"o": grad_o, "lse": grad_lse}
            found = _backward.BACKWARD["attention"](_backward.Call(inputs, settings, ctx.bounds, {"o": o, "lse": lse}, grads, wanted))
            past = 0 if grad_o is None else (grad_o.float() * o.float()).sum(-1, keepdim=True)
            if grad_lse is not None:
                past = past - _rows(o, grad_lse, ctx.bounds)
            share = torch.exp(sinks.float()[:, None] - _rows(o, lse, ctx.bounds))
            dsinks = -(share * past).flatten(0, -3).sum(0).squeeze(-1).to(sinks.dtype) if ctx.needs_input_grad[0] else None
            given = [found[name].to(inputs[name].dtype) if name in wanted else None for name in ctx.names]
            return (dsinks, None, None, None, *given)

    _FUNCTION = Recorded
    return Recorded


def _of_arrays(sinks, settings, inputs, out, bounds, return_lse):
    from ._arrays import library_of

    np = library_of(inputs["q"]).module
    sinks = np.asarray(sinks, dtype="float32")
    o, lse = call("attention", settings, inputs, {}, bounds, ("o", "lse"))
    rows = np.swapaxes(lse, -1, -2)[..., None].reshape(*o.shape[:-1], 1)
    share = np.exp(rows - np.logaddexp(rows, sinks[:, None]))
    found = (o * share).astype(o.dtype)
    if out is not None:
        out[...] = found
        found = out
    return (found, np.logaddexp(lse, sinks[:, None])) if return_lse else found
