"""Attention's gradients on an NVIDIA GPU by torch's own flash attention, from our output and log-sum-exp."""

from functools import lru_cache

import torch


@lru_cache(maxsize=None)
def packed_lse():
    """Whether torch keeps the log-sum-exp of packed sequences as ``[H, total]``, as ours is, or as ``[B, H, longest]``, as it did up to
    2.6: asked of torch itself, by sizes alone."""
    if not windows():
        return False
    q = torch.empty(5, 2, 64, dtype=torch.float16, device="meta")
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    try:
        found = torch.ops.aten._flash_attention_forward(q, q, q, ends, ends, 3, 3, 0.0, False, False)
    except NotImplementedError:  # it answers no such question up to 2.5
        return False
    return found[1].dim() == 2


@lru_cache(maxsize=None)
def windows():
    """Whether torch's backward takes a window's ends, which also make its causal mask end at the bottom right; those of 2.1 and
    2.2 have none."""
    known = torch.ops.aten._flash_attention_backward.default._schema.arguments
    return "window_size_left" in {argument.name for argument in known}


def refused(call):
    """Why torch's backward does not take a call, or None."""
    q, v = call.inputs["q"], call.inputs["v"]
    width = q.shape[-1]
    if q.device.type != "cuda" or torch.version.cuda is None or torch.cuda.get_device_capability(q.device) < (8, 0):
        return "it runs on NVIDIA GPUs from Ampere on"
    if not windows():
        return "this torch's takes no window"
    if q.dtype not in (torch.bfloat16, torch.float16):
        return "it takes bfloat16 and float16"
    if v is None or v.shape[-1] != width or width > 256 or width % 8:
        return "it takes keys and values of as many channels, a multiple of 8 up to 256"
    if "softcap" in call.settings:
        return "it has no softcap"
    if call.grads["lse"] is not None:
        return "it has no gradient of the log-sum-exp"
    if call.inputs["cu_seqlens"] is not None and not packed_lse():
        return "this torch keeps the log-sum-exp of packed sequences otherwise"
    return None


def arguments(call):
    """Arguments of ``aten._flash_attention_backward``, by place and by name."""
    q, k, v = (call.inputs[name].contiguous() for name in ("q", "k", "v"))
    o, lse, grad = call.outputs["o"], call.outputs["lse"], call.grads["o"]
    grad = torch.zeros_like(o) if grad is None else grad.to(q.dtype).contiguous()
    offsets, offsets_k = call.inputs["cu_seqlens"], call.inputs["cu_seqlens_k"]
    if offsets is None:
        longest, longest_k = q.shape[1], k.shape[1]
    else:
        q, k, v, o, grad = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v, o, grad))
        longest = call.bounds["cu_seqlens"][0]
        longest_k = longest if offsets_k is None else call.bounds["cu_seqlens_k"][0]
        offsets_k = offsets if offsets_k is None else offsets_k
    causal = call.settings.get("causal", False)
    # What a dropout would have drawn from: there is none.
    seed = torch.zeros(2, dtype=torch.int64, device=q.device)
    named = {
        "scale": call.settings.get("scale", q.shape[-1] ** -0.5),
        "window_size_left": call.settings.get("window_left", -1),
        "window_size_right": 0 if causal else call.settings.get("window_right", -1),
    }
    return (grad, q, k, v, o, lse, offsets, offsets_k, longest, longest_k, 0.0, causal, seed, seed.new_zeros(())), named


def flash(call):
    """Gradients of q, k and v, or None where torch's backward does not take the call."""
    if refused(call):
        return None
    given, named = arguments(call)
    found = torch.ops.aten._flash_attention_backward(*given, **named)
    return {name: grad.reshape(call.inputs[name].shape) for name, grad in zip(("q", "k", "v"), found)}
