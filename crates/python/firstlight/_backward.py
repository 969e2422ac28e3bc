"""Gradients of the ops: by the library's kernels where ``_gradients`` has them, otherwise with torch functions from their formulas, which
have gradients too. Recurrences have no such formulas.

Sums are in float32, or in float64 for float64 tensors. The forward saves only inputs and outputs; intermediate values are recomputed.
"""

from dataclasses import dataclass

import torch

from . import _route
from ._flash import flash
from ._gradients import by_op, by_op_alone


@dataclass
class Call:
    """A recorded call: its inputs, settings, bounds, outputs (for ops in ``KEEPS``), the outputs' gradients or None, and the inputs that
    require gradients, each by name; and the names of tensors that get an additional dimension."""

    inputs: dict
    settings: dict
    bounds: dict
    outputs: dict
    grads: dict
    wanted: set
    insert: tuple = ()

    def grad(self):
        """The gradient of ``o``; gradients of other outputs are not supported."""
        for name, grad in self.grads.items():
            if name != "o" and grad is not None:
                raise NotImplementedError(f"firstlight has no gradient through `{name}`: detach it, or use it outside what is trained")
        return _wide(self.grads["o"])


def _wide(x):
    return x if x is None or x.dtype == torch.float64 else x.float()


def _sum_to(x, like):
    """Sums over the dimensions along which ``like`` was broadcast."""
    return x.sum_to_size(like.shape)


def _gate(name, gate):
    """The activation of a gate, and its derivative."""
    half = torch.sigmoid(gate)
    if name == "sigmoid":
        return half, half * (1 - half)
    return gate * half, half * (1 + gate * (1 - half))


def _normed(x, eps):
    """The vectors divided by their root mean square, and its reciprocal."""
    root = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * root, root


def _through_norm(grad, normed, root):
    """The gradient of the input of the normalisation."""
    return root * (grad - normed * (grad * normed).mean(-1, keepdim=True))


def _rms_norm(call):
    found = by_op("rmsnorm", call)
    if found is not None:
        return found
    x, gate, weight = (_wide(call.inputs[name]) for name in ("x", "gate", "weight"))
    after = call.settings.get("norm_before_gate", False)
    grad, found = call.grad(), {}
    act, slope = (None, None) if gate is None else _gate(call.settings.get("activation", "silu"), gate)
    before = x if act is None or after else x * act
    normed, root = _normed(before, call.settings.get("eps", 1e-5))
    if act is not None and after:
        weighed = normed if weight is None else normed * weight
        found["gate"] = grad * weighed * slope
        grad = grad * act
    if weight is not None:
        found["weight"] = _sum_to(grad * normed, weight)
        grad = grad * weight
    grad = _through_norm(grad, normed, root)
    if act is None or after:
        return {**found, "x": grad}
    return {**found, "x": grad * act, "gate": grad * x * slope}


def _linear(call):
    x, w, norm, bias = (call.inputs[name] for name in ("x", "w", "norm", "bias"))
    grad = call.grad()
    found = {"residual": grad}
    if "scale" in call.settings:
        grad = grad * call.settings["scale"]
    rows = _wide(x)
    if norm is not None:
        normed, root = _normed(rows, call.settings.get("eps", 1e-5))
        rows = normed * _wide(norm)
    rows = rows.to(w.dtype)
    if call.settings.get("activation", "none") != "none":
        product = _wide(rows @ w.t())
        product = product if bias is None else product + _wide(bias)
        if call.settings["activation"] == "swiglu":
            gate, up = product.chunk(2, -1)
            act, slope = _gate("silu", gate)
            grad = torch.cat([grad * up * slope, grad * act], -1)
        else:
            grad = grad * 2 * product.clamp(min=0)
    if bias is not None:
        found["bias"] = grad.sum(0)
    grad = grad.to(w.dtype)
    found["w"] = grad.t() @ rows if "w" in call.wanted else None
    if call.wanted & {"x", "norm"}:
        grad = _wide(grad @ w)
        if norm is not None:
            found["norm"] = (grad * normed).sum(0)
            grad = _through_norm(grad * _wide(norm), normed, root)
        found["x"] = grad
    return found


def _conv1d(call):
    found = by_op("conv1d", call)
    if found is not None:
        return found
    x, weight, bias, state = (_wide(call.inputs[name]) for name in ("x", "weight", "bias", "initial_state"))
    first = call.settings.get("layout") == "channel_first"
    x, grad = (t.transpose(1, 2) if first else t for t in (x, call.grad()))
    shape, offsets = x.shape, call.inputs["cu_seqlens"]
    x, grad = (t.reshape(-1, *shape[-2:]) for t in (x, grad))
    tokens, width = x.shape[1], weight.shape[1]
    before = x.new_zeros(x.shape[0], width - 1, x.shape[2]) if state is None else state[..., state.shape[-1] - width + 1 :].transpose(1, 2)
    whole = torch.cat([before, x], 1)
    # The contribution of token t - age to token t: zero across the start of a sequence.
    ages = [width - 1 - at for at in range(width)]
    seen = [None] * width
    if offsets is not None:
        since = torch.arange(tokens, device=x.device) - offsets[_sequence_of(offsets, tokens)]
        seen = [(since >= age)[None, :, None] for age in ages]

    def tap(at):
        part = whole[:, at : at + tokens]
        return part if seen[at] is None else part * seen[at]

    if call.settings.get("activation") == "silu":
        y = sum(tap(at) * weight[:, at] for at in range(width))
        grad = grad * _gate("silu", y if bias is None else y + bias)[1]
    found = {"bias": grad.sum((0, 1))}
    found["weight"] = torch.stack([(grad * tap(at)).sum((0, 1)) for at in range(width)], 1)
    read = [grad if seen[at] is None else grad * seen[at] for at in range(width)]
    pad = torch.nn.functional.pad
    both = sum(pad(read[at] * weight[:, at], (0, 0, at, width - 1 - at)) for at in range(width))
    dx = both[:, width - 1 :].reshape(shape)
    found["x"] = dx.transpose(1, 2) if first else dx
    if state is not None:
        found["initial_state"] = pad(both[:, : width - 1].transpose(1, 2), (state.shape[-1] - width + 1, 0))
    return found


def _sequence_of(offsets, tokens):
    """The sequence index of each token: the number of sequences that end at or before it. (``searchsorted`` over a slice of the offsets is
    avoided, because inductor of torch 2.11 compiles it to wrong results on a GPU.)"""
    ends = offsets[1:].long()
    marks = ends.new_zeros(tokens + 1).index_add(0, ends, torch.ones_like(ends))
    return marks.cumsum(0)[:tokens]


def _positions(offsets, offsets_k, queries, keys, device):
    """The position of each query and key among the keys of its sequence, and which of them share a sequence."""
    at, at_k = torch.arange(queries, device=device), torch.arange(keys, device=device)
    if offsets is None:
        return at + keys - queries, at_k, None
    offsets_k = offsets if offsets_k is None else offsets_k
    of, of_k = _sequence_of(offsets, queries), _sequence_of(offsets_k, keys)
    shift = (offsets_k[1:] - offsets_k[:-1]) - (offsets[1:] - offsets[:-1])
    return at - offsets[of] + shift[of], at_k - offsets_k[of_k], of[:, None] == of_k


def _visible(call, queries, keys, device):
    at, at_k, together = _positions(call.inputs["cu_seqlens"], call.inputs["cu_seqlens_k"], queries, keys, device)
    before = at[:, None] - at_k
    seen = torch.ones_like(before, dtype=torch.bool) if together is None else together
    if call.settings.get("causal", False):
        seen = seen & (before >= 0)
    if "window_left" in call.settings:
        seen = seen & (before <= call.settings["window_left"])
    if "window_right" in call.settings:
        seen = seen & (before >= -call.settings["window_right"])
    return seen


def _attention(call):
    found = by_op("attention", call) or flash(call)
    if found is not None:
        return found
    q, k, v = (call.inputs[name] for name in ("q", "k", "v"))
    values = k[..., : call.settings["value_width"]] if v is None else v
    o, lse = call.outputs["o"], call.outputs["lse"]
    grad_o = torch.zeros_like(o) if call.grads["o"] is None else call.grads["o"]
    heads, kv_heads = q.shape[-2], k.shape[-2]
    scale = call.settings.get("scale", q.shape[-1] ** -0.5)

    def grouped(x):
        """Reshapes tensors with the shape of the queries to ``[B, Hkv, group, Tq, ..]``."""
        x = _wide(x).reshape(-1, *x.shape[-3:]).transpose(1, 2)
        return x.reshape(x.shape[0], kv_heads, heads // kv_heads, *x.shape[2:])

    def by_head(x):
        return _wide(x).reshape(-1, *x.shape[-3:]).transpose(1, 2)[:, :, None]

    def back(x, like):
        return x.flatten(1, 2).transpose(1, 2).reshape(like.shape)

    q_, o_, grad = grouped(q), grouped(o), grouped(grad_o)
    k_, v_ = by_head(k), by_head(values)
    rows = lse.reshape(q_.shape[:-1]).unsqueeze(-1)
    rows = rows.masked_fill(torch.isinf(rows), 0)
    seen = _visible(call, q_.shape[3], k_.shape[3], q.device)
    scores = scale * (q_ @ k_.transpose(-1, -2))
    slope = None
    if "softcap" in call.settings:
        cap = call.settings["softcap"]
        bent = torch.tanh(scores / cap)
        scores, slope = cap * bent, 1 - bent * bent
    # Masked before the exponential, so that masked entries do not overflow.
    shares = torch.exp((scores - rows).masked_fill(~seen, float("-inf")))
    past = (grad * o_).sum(-1, keepdim=True)
    if call.grads["lse"] is not None:
        past = past - call.grads["lse"].reshape(q_.shape[:-1]).unsqueeze(-1)
    grad_scores = shares * (grad @ v_.transpose(-1, -2) - past)
    if slope is not None:
        grad_scores = grad_scores * slope
    grad_v = back((shares.transpose(-1, -2) @ grad).sum(2, keepdim=True), values)
    grad_k = back((scale * grad_scores.transpose(-1, -2) @ q_).sum(2, keepdim=True), k)
    if v is None:
        grad_k = grad_k + torch.nn.functional.pad(grad_v, (0, k.shape[-1] - values.shape[-1]))
    return {"q": back(scale * grad_scores @ k_, q), "k": grad_k, "v": grad_v}


# Ops whose gradients only the library computes, in eager calls.
EAGER = ("gated_delta", "kda", "ssd")
BACKWARD = {"attention": _attention, "conv1d": _conv1d, "linear": _linear, "rmsnorm": _rms_norm}
BACKWARD.update((name, by_op_alone(name)) for name in EAGER)
# Ops whose backward reads their outputs. Outputs of other ops are not saved.
KEEPS = {"attention"}
# Inputs for inference, which these formulas do not support.
_UNKNOWN = {
    "attention": ("block_table", "cache_seqlens"),
    "conv1d": ("state_indices", "state_positions"),
    "gated_delta": ("state_indices",),
    "kda": ("state_indices",),
    "linear": ("conv_weight", "w_scale"),
    "ssd": ("state_indices",),
}
_INSTEAD = "call it under torch.no_grad(), or use the package's own kernel for training"


def missing(name, inputs, settings, over_state):
    """The reason why a call has no backward, or None."""
    if name not in BACKWARD:
        return f"firstlight's {name} has no backward yet: {_INSTEAD}"
    if over_state:
        return f"firstlight's {name} has no backward where `state` is written over: give `initial_state` instead, or {_INSTEAD}"
    for tensor in _UNKNOWN.get(name, ()):
        if inputs[tensor] is not None:
            return f"firstlight's {name} has no backward with `{tensor}`: {_INSTEAD}"
    if name in EAGER and _route._modes():
        return f"firstlight's {name} has no backward in graphs yet: {_INSTEAD}"
    if name == "conv1d" and inputs["cu_seqlens"] is not None and inputs["initial_state"] is not None:
        return f"firstlight's conv1d has no backward with states of packed sequences: {_INSTEAD}"
    if name == "linear" and set(settings) & {"split", "norm_groups"}:
        return f"firstlight's linear has no backward with `split` or `norm_groups`: {_INSTEAD}"
    return None
