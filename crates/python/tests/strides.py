"""Tests that memory layouts of models need no copies on a GPU, and compares with float64 formulas in numpy.

Run it with the package on the path and a GPU: ``python strides.py``. It prints a line for each case and ends with 1 if one fails or if
a tensor was copied.
"""

import sys

import numpy as np
from ops import FAILED, Frame, check, softmax_attention, ssd_by_token

import firstlight
from firstlight import ops


def attention(frame):
    """Keys and values ``[B, Hkv, T, D]`` in memory, as a slice of a longer cache, and as slices of one projection."""
    for batch, tq, tk, heads, kv_heads, d in [
        (2, 65, 65, 4, 2, 64),
        (2, 1, 77, 8, 2, 64),
        (1, 300, 300, 4, 1, 128),
        (3, 1, 1100, 4, 2, 128),
        (1, 33, 129, 4, 2, 256),
        (2, 17, 40, 2, 2, 96),
        (1, 40, 40, 2, 1, 320),
        (1, 1, 50, 2, 1, 512),
        (1, 20, 20, 3, 1, 36),
    ]:
        (q, q64), (k, k64), (v, v64) = (frame.draw(batch, t, h, d) for t, h in ((tq, heads), (tk, kv_heads), (tk, kv_heads)))
        wanted, _ = softmax_attention(q64, k64, v64, True, d**-0.5)
        by_head = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
        check(frame, f"attention {batch}x{tq}x{tk} D {d}, by head", ops.attention(q, *by_head, causal=True), wanted)
        longer = []
        for x in (k, v):
            cache = frame.torch.full((batch, kv_heads, tk + 9, d), float("nan"), device=x.device, dtype=x.dtype)
            cache[:, :, 4 : tk + 4] = x.transpose(1, 2)
            longer.append(cache[:, :, 4 : tk + 4].transpose(1, 2))
        if d % 8 == 0:
            check(frame, "  part of a longer cache", ops.attention(q, *longer, causal=True), wanted)
        both = frame.torch.stack((k, v), dim=2)
        check(frame, "  parts of one projection", ops.attention(q, both[:, :, 0], both[:, :, 1], causal=True), wanted)


def ssd(frame):
    """x, B and C are slices of one projection, dt and z of another."""
    p, n = 64, 128
    for batch, tokens, heads, groups, gated in [(2, 70, 8, 1, True), (1, 1, 4, 2, True), (1, 2100, 8, 1, False), (3, 1, 8, 1, False), (2, 130, 8, 2, True)]:
        width = heads * p
        mixed, mixed64 = frame.draw(batch, tokens, width + 2 * groups * n, scale=0.5)
        other, other64 = frame.draw(batch, tokens, width + heads)
        parts = [width, groups * n, groups * n]
        x, b, c = (part.view(batch, tokens, -1, size) for part, size in zip(mixed.split(parts, -1), (p, n, n)))
        x64, b64, c64 = (part.reshape(batch, tokens, -1, size) for part, size in zip(np.split(mixed64, np.cumsum(parts)[:2], -1), (p, n, n)))
        z, dt = other.split([width, heads], -1)
        z, z64, dt64 = z.view(batch, tokens, heads, p), other64[..., :width].reshape(batch, tokens, heads, p), other64[..., width:]
        bias, bias64 = frame.draw(heads, dtype="float32")
        d, d64 = frame.draw(heads, dtype="float32")
        a = frame.of(-np.exp(np.linspace(-2, 1, heads)), "float32")
        state, state64 = frame.draw(batch, heads, p, n, dtype="float32")
        wanted, after = ssd_by_token(x64, np.logaddexp(0, dt64 + bias64), frame.back(a), b64, c64, d64, state64)
        if gated:
            wanted = wanted * z64 / (1 + np.exp(-z64))
        y, final = ops.ssd(x, dt, a, b, c, D=d, z=z if gated else None, dt_bias=bias, initial_state=state, return_state=True)
        check(frame, f"ssd {batch}x{tokens}x{heads}, parts of projections", y, wanted)
        check(frame, "  its state", final, after)


def rms_norm(frame):
    """x and the gate are slices of a projection, with and without groups."""
    for batch, tokens, groups, size in [(2, 7, 1, 4096), (1, 1, 1, 3072), (3, 5, 4, 128), (2, 3, 1, 96)]:
        whole, whole64 = frame.draw(batch, tokens, 3, groups * size)
        weight, weight64 = frame.draw(size)
        x, gate = (whole[:, :, at].unflatten(-1, (groups, size)) for at in (0, 2))
        x64, gate64 = (whole64[:, :, at].reshape(batch, tokens, groups, size) for at in (0, 2))
        gated = x64 * gate64 / (1 + np.exp(-gate64))
        wanted = gated / np.sqrt((gated**2).mean(-1, keepdims=True) + 1e-5) * weight64
        check(frame, f"rms_norm {batch}x{tokens}x{groups}x{size}, parts of a projection", ops.rms_norm(x, weight, gate=gate), wanted)


def misaligned(frame):
    """Slices of any alignment, after aligned calls of the same sizes: they are copied, and never read out of bounds."""
    draw, torch = frame.draw, frame.torch
    (q, q64), (k, k64), (v, v64) = (draw(1, 70, 2, 64) for _ in range(3))
    wanted, _ = softmax_attention(q64, k64, v64, True, 0.125)
    (x, x64), (weight, weight64) = draw(3, 5, 4096), draw(4096)
    normed = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-5) * weight64

    def shifted(array):
        memory = torch.full((array.numel() + 8,), float("nan"), device=array.device, dtype=array.dtype)
        return memory[1 : array.numel() + 1].view(array.shape).copy_(array)

    for _ in range(2):
        if frame.dtype != "float32":
            check(frame, "attention, aligned", ops.attention(q, k, v, causal=True), wanted)
            check(frame, "  k begins at an odd element", ops.attention(q, shifted(k), v, causal=True), wanted)
            check(frame, "  all three", ops.attention(shifted(q), shifted(k), shifted(v), causal=True), wanted)
        check(frame, "rms_norm, aligned", ops.rms_norm(x, weight), normed)
        check(frame, "  x begins at an odd element", ops.rms_norm(shifted(x), weight), normed)
        check(frame, "  the weight", ops.rms_norm(x, shifted(weight)), normed)


def main():
    for dtype in ("bfloat16", "float16", "float32"):
        frame = Frame("cuda", dtype)
        for op in (attention, ssd, rms_norm):
            # There is no float32 GEMM kernel on a GPU.
            if dtype == "float32" and op is attention:
                continue
            try:
                op(frame)
            except firstlight.Refused as error:
                print("FAIL", dtype, op.__name__, error)
                FAILED.append((dtype, op.__name__))
    copies = firstlight.status(0)["copies"]
    for dtype in ("bfloat16", "float16", "float32"):
        misaligned(Frame("cuda", dtype))
    copied = firstlight.status(0)["copies"]
    if not {"attention.k", "rmsnorm.x", "rmsnorm.weight"} <= copied.keys() - copies.keys():
        FAILED.append(f"misaligned parts were not copied: {copied}")
    print(f"copied on the way: {copies}; misaligned parts: {copied}; failed: {FAILED}")
    return 1 if FAILED or copies else 0


if __name__ == "__main__":
    sys.exit(main())
