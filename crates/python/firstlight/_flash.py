"""Gradients of attention on NVIDIA GPUs by torch's flash attention backward, from firstlight's output and log-sum-exp."""

from functools import lru_cache

import torch


@lru_cache(maxsize=None)
def packed_lse():
    """Whether torch's log-sum-exp of packed sequences is ``[H, total]`` like firstlight's, and not ``[B, H, longest]`` as up to 2.6. The
    test runs torch's forward on meta tensors."""
    if not windows():
        return False
    q = torch.empty(5, 2, 64, dtype=torch.float16, device="meta")
    ends = torch.empty(3, dtype=torch.int32, device="meta")
    try:
        found = torch.ops.aten._flash_attention_forward(q, q, q, ends, ends, 3, 3, 0.0, False, False)
    except NotImplementedError:  # no meta kernel up to 2.5
        return False
    return found[1].dim() == 2


@lru_cache(maxsize=None)
def windows():
    """Whether torch's backward takes a window. Torch 2.1 and 2.2 have none. Only with a window is its causal mask aligned to the bottom
    right."""
    known = torch.ops.aten._flash_attention_backward.default._schema.arguments
    return "window_size_left" in {argument.name for argument in known}


def refused(call):
    """The reason why torch's backward does not support a call, or None."""
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
    """The positional and the keyword arguments of ``aten._flash_attention_backward``."""
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
    # The dropout seed, unused because there is no dropout.
    seed = torch.zeros(2, dtype=torch.int64, device=q.device)
    named = {
        "scale": call.settings.get("scale", q.shape[-1] ** -0.5),
        "window_size_left": call.settings.get("window_left", -1),
        "window_size_right": 0 if causal else call.settings.get("window_right", -1),
    }
    return (grad, q, k, v, o, lse, offsets, offsets_k, longest, longest_k, 0.0, causal, seed, seed.new_zeros(())), named


def flash(call):
    """Gradients of q, k and v, or None if torch's backward does not support the call."""
    if refused(call):
        return None
    given, named = arguments(call)
    found = torch.ops.aten._flash_attention_backward(*given, **named)
    return {name: grad.reshape(call.inputs[name].shape) for name, grad in zip(("q", "k", "v"), found)}
