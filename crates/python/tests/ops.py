"""Compares every op with float64 formulas in numpy: for numpy arrays and, with torch, for tensors on the CPU and the GPU.

Run it with the package on the path: ``python ops.py [numpy] [cpu] [cuda]``. It prints a line for each case and ends with 1 if one fails.
"""

import sys

import numpy as np

import firstlight
from firstlight import ops

RNG = np.random.default_rng(7)
# Allowed relative error in the norm, by storage type. Both sides get the same rounded inputs.
ALLOWED = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.2e-2}
FAILED = []
RAN = 0


class Frame:
    """Arrays of one library, device and storage type."""

    def __init__(self, where, dtype):
        self.where, self.dtype = where, dtype
        if where != "numpy":
            import torch

            self.torch, self.device = torch, where

    def of(self, values, dtype=None):
        dtype = dtype or self.dtype
        if self.where == "numpy":
            return np.ascontiguousarray(values, dtype=dtype)
        return self.torch.tensor(np.asarray(values), device=self.device).to(getattr(self.torch, dtype))

    def back(self, array):
        if self.where == "numpy":
            return np.asarray(array, dtype=np.float64)
        return array.detach().double().cpu().numpy()

    def draw(self, *shape, scale=1.0, dtype=None):
        """Random values rounded to the storage type, and the same values in float64."""
        array = self.of(RNG.standard_normal(shape) * scale, dtype)
        return array, self.back(array)


def check(frame, name, got, wanted, allowed=None):
    global RAN
    RAN += 1
    got = frame.back(got)
    error = np.linalg.norm(got - wanted) / max(np.linalg.norm(wanted), 1e-30)
    limit = allowed or ALLOWED[frame.dtype]
    fine = got.shape == wanted.shape and np.isfinite(got).all() and error <= limit
    print(f"{'ok  ' if fine else 'FAIL'} {frame.where:5} {frame.dtype:8} {name:44} {error:.1e}")
    if not fine:
        FAILED.append((frame.where, frame.dtype, name))


def softmax_attention(q, k, v, causal, scale, window=(-1, -1), softcap=None):
    (_, tq, heads, _), (tk, kv_heads) = q.shape, k.shape[1:3]
    k, v = (np.repeat(x, heads // kv_heads, axis=2) for x in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    at = np.arange(tq)[:, None] + tk - tq
    keys = np.arange(tk)[None]
    seen = keys <= at if causal else np.ones((tq, tk), bool)
    if window[0] >= 0:
        seen &= keys >= at - window[0]
    if window[1] >= 0:
        seen &= keys <= at + window[1]
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(-1, keepdims=True)
    weights = np.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", weights / total, v), (np.log(total) + most)[..., 0]


def attention(frame):
    for batch, tq, tk, heads, kv_heads, d, causal in [
        (2, 65, 65, 4, 2, 64, True),
        (1, 7, 130, 4, 4, 128, True),
        (2, 1, 77, 8, 2, 64, True),
        (1, 33, 33, 2, 1, 128, False),
    ]:
        (q, q64), (k, k64), (v, v64) = (frame.draw(batch, t, h, d) for t, h in ((tq, heads), (tk, kv_heads), (tk, kv_heads)))
        o, lse = ops.attention(q, k, v, causal=causal, return_lse=True)
        wanted, wanted_lse = softmax_attention(q64, k64, v64, causal, d**-0.5)
        check(frame, f"attention {batch}x{tq}x{tk} D {d}", o, wanted)
        check(frame, "  its lse", lse, wanted_lse, 1e-3)
        if frame.where == "cuda" and tq > 1:
            # The memory layout of transformers: keys and values [B, Hkv, T, D].
            k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
            check(frame, "  keys and values by head", ops.attention(q, k, v, causal=causal), wanted)
    (q, q64), (k, k64), (v, v64) = (frame.draw(1, 50, 2, 64) for _ in range(3))
    wanted, _ = softmax_attention(q64, k64, v64, True, 0.3, (9, -1), 5.0)
    check(frame, "attention window, softcap, scale", ops.attention(q, k, v, causal=True, scale=0.3, window=(9, -1), softcap=5.0), wanted)
    lengths = [5, 0, 40, 1]
    ends = np.cumsum([0, *lengths])
    (q, q64), (k, k64), (v, v64) = (frame.draw(ends[-1], 2, 64) for _ in range(3))
    offsets = frame.of(ends, "int32")
    wanted = np.concatenate([softmax_attention(*(x[None, a:b] for x in (q64, k64, v64)), True, 64**-0.5)[0][0] for a, b in zip(ends, ends[1:]) if b > a])
    check(frame, "attention packed", ops.attention(q, k, v, causal=True, cu_seqlens=offsets, max_seqlen=40), wanted)


def rms_norm(frame):
    for shape in [(3, 5, 96), (1, 4096), (2, 7, 2, 64)]:
        (x, x64), (w, w64), (z, z64) = frame.draw(*shape), frame.draw(*shape[-1:]), frame.draw(*shape)
        normed = x64 / np.sqrt((x64**2).mean(-1, keepdims=True) + 1e-6) * w64
        check(frame, f"rms_norm {shape}", ops.rms_norm(x, w, eps=1e-6), normed)
        gated = x64 * z64 / (1 + np.exp(-z64))
        wanted = gated / np.sqrt((gated**2).mean(-1, keepdims=True) + 1e-5) * w64
        check(frame, "  gated", ops.rms_norm(x, w, gate=z), wanted)


def convolved(x, weight, bias, before):
    width = weight.shape[1]
    whole = np.concatenate([before, x], axis=1)
    y = sum(whole[:, at : at + x.shape[1]] * weight[:, at] for at in range(width)) + bias
    return y / (1 + np.exp(-y)), whole[:, whole.shape[1] - width + 1 :]


def conv1d(frame):
    for batch, tokens, channels in [(2, 37, 96), (1, 1, 64), (3, 130, 8)]:
        (x, x64), (w, w64), (b, b64) = frame.draw(batch, tokens, channels), frame.draw(channels, 4), frame.draw(channels)
        state, state64 = frame.draw(batch, channels, 3, dtype="float32")
        wanted, after = convolved(x64, w64, b64, state64.transpose(0, 2, 1))
        y, final = ops.conv1d(x, w, b, activation="silu", initial_state=state, return_state=True)
        check(frame, f"conv1d {batch}x{tokens}x{channels}", y, wanted)
        check(frame, "  its state", final, after.transpose(0, 2, 1))
        ops.conv1d(x, w, b, activation="silu", state=state)
        check(frame, "  its state in place", state, after.transpose(0, 2, 1))
        first = x.transpose(0, 2, 1) if frame.where == "numpy" else x.transpose(1, 2)
        first = np.ascontiguousarray(first) if frame.where == "numpy" else first.contiguous()
        y = ops.conv1d(first, w, b, activation="silu", layout="channel_first")
        wanted, _ = convolved(x64, w64, b64, np.zeros((batch, 3, channels)))
        check(frame, "  channels first", y, wanted.transpose(0, 2, 1))


def ssd_by_token(x, dt, a, b, c, d, state):
    batch, tokens, heads, _ = x.shape
    b, c = (np.repeat(v, heads // v.shape[2], axis=2) for v in (b, c))
    y = np.zeros_like(x)
    state = state.copy()
    for t in range(tokens):
        state *= np.exp(dt[:, t] * a)[..., None, None]
        state += np.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], b[:, t])
        y[:, t] = np.einsum("bhpn,bhn->bhp", state, c[:, t]) + d[:, None] * x[:, t]
    return y, state


def ssd(frame):
    for batch, tokens, heads, groups in [(2, 70, 4, 1), (1, 1, 4, 2), (1, 300, 8, 1)]:
        p, n = 64, 128
        x, x64 = frame.draw(batch, tokens, heads, p)
        dt, dt64 = frame.draw(batch, tokens, heads)
        (b, b64), (c, c64) = frame.draw(batch, tokens, groups, n, scale=0.3), frame.draw(batch, tokens, groups, n, scale=0.3)
        bias, bias64 = frame.draw(heads, dtype="float32")
        d, d64 = frame.draw(heads, dtype="float32")
        a = frame.of(-np.exp(RNG.standard_normal(heads)), "float32")
        state, state64 = frame.draw(batch, heads, p, n, dtype="float32")
        steps = np.logaddexp(0, dt64 + bias64)
        wanted, after = ssd_by_token(x64, steps, frame.back(a), b64, c64, d64, state64)
        y, final = ops.ssd(x, dt, a, b, c, D=d, dt_bias=bias, initial_state=state, return_state=True)
        check(frame, f"ssd {batch}x{tokens}x{heads}", y, wanted)
        check(frame, "  its state", final, after)
        if frame.dtype == "bfloat16":
            narrow, narrow64 = frame.draw(batch, heads, p, n)
            wanted, after = ssd_by_token(x64, steps, frame.back(a), b64, c64, d64, narrow64)
            y, final = ops.ssd(x, dt, a, b, c, D=d, dt_bias=bias, initial_state=narrow, return_state=True)
            check(frame, "  from a state in bfloat16", y, wanted)
            check(frame, "  its state", final, after)
            assert final.dtype == narrow.dtype, final.dtype
            ops.ssd(x, dt, a, b, c, D=d, dt_bias=bias, state=narrow)
            check(frame, "  its state in place", narrow, after)


def selective_scan(frame):
    """Mamba's selective scan: one decay per channel and state."""
    for batch, tokens, channels, groups in [(2, 40, 24, 1), (3, 1, 48, 1), (1, 90, 34, 2)]:
        n = 17
        (u, u64), (z, z64) = frame.draw(batch, tokens, channels), frame.draw(batch, tokens, channels)
        delta, delta64 = frame.draw(batch, tokens, channels)
        (b, b64), (c, c64) = frame.draw(batch, tokens, groups, n), frame.draw(batch, tokens, groups, n)
        (bias, bias64), (d, d64) = frame.draw(channels, dtype="float32"), frame.draw(channels, dtype="float32")
        a = frame.of(-np.exp(RNG.standard_normal((channels, n))), "float32")
        state, state64 = frame.draw(batch, channels, n, dtype="float32")
        steps, rates, after = np.logaddexp(0, delta64 + bias64), frame.back(a), state64.copy()
        b64, c64 = (np.repeat(v, channels // groups, axis=2) for v in (b64, c64))
        wanted = np.zeros_like(u64)
        for t in range(tokens):
            dt = steps[:, t, :, None]
            after = np.exp(dt * rates) * after + dt * u64[:, t, :, None] * b64[:, t]
            wanted[:, t] = ((after * c64[:, t]).sum(-1) + d64 * u64[:, t]) * z64[:, t] / (1 + np.exp(-z64[:, t]))
        given = {"D": d, "z": z, "delta_bias": bias, "initial_state": state, "return_state": True}
        y, final = ops.selective_scan(u, delta, a, b, c, **given)
        check(frame, f"selective_scan {batch}x{tokens}x{channels}", y, wanted)
        check(frame, "  its state", final, after)
        if frame.where != "numpy":
            as_mamba_ssm(frame, (u, delta, a, b, c, d, z, bias, state), (wanted, after))


def as_mamba_ssm(frame, given, wanted):
    """The same with mamba-ssm's functions: a prompt without an initial state, and one token with a state."""
    from firstlight.compat.mamba_ssm import selective_scan_fn, selective_state_update

    u, delta, a, b, c, d, z, bias, state = given
    first = {"initial_state": None, "D": d, "z": z, "delta_bias": bias, "return_state": True}
    want, after = ops.selective_scan(u, delta, a, b, c, **first)
    turned = [one.transpose(1, 2) for one in (u, delta, z)]
    b4, c4 = b.permute(0, 2, 3, 1), c.permute(0, 2, 3, 1)
    y, last = selective_scan_fn(*turned[:2], a, b4, c4, d, turned[2], bias, True, True)
    check(frame, "  as selective_scan_fn", y.transpose(1, 2), frame.back(want))
    check(frame, "  its last state", last, frame.back(after))
    if u.shape[1] == 1 and b.shape[2] == 1:
        y = selective_state_update(state, u[:, 0], delta[:, 0], a, b[:, 0, 0], c[:, 0, 0], d, z[:, 0], bias, True)
        check(frame, "  as selective_state_update", y, wanted[0][:, 0])
        check(frame, "  its state", state, wanted[1])


def kda_by_token(q, k, v, g, beta, scale, state):
    batch, tokens, heads, _ = q.shape
    state, o = state.copy(), np.zeros_like(v)
    for t in range(tokens):
        state *= np.exp(g[:, t])[..., None]
        new = v[:, t] - np.einsum("bhkv,bhk->bhv", state, k[:, t])
        state += np.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], new)
        o[:, t] = scale * np.einsum("bhkv,bhk->bhv", state, q[:, t])
    return o, state


def kda(frame):
    for batch, tokens, heads in [(1, 70, 2), (2, 1, 4), (1, 200, 2)]:
        width = 128
        (q, q64), (k, k64), (v, v64) = (frame.draw(batch, tokens, heads, width) for _ in range(3))
        g = frame.of(-np.exp(RNG.standard_normal((batch, tokens, heads, width)) - 1))
        beta = frame.of(1 / (1 + np.exp(-RNG.standard_normal((batch, tokens, heads)))))
        state, state64 = frame.draw(batch, heads, width, width, dtype="float32", scale=0.1)
        unit = [x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q64, k64)]
        wanted, after = kda_by_token(*unit, v64, frame.back(g), frame.back(beta), width**-0.5, state64)
        o, final = ops.kda(q, k, v, g, beta, l2norm=True, initial_state=state, return_state=True)
        check(frame, f"kda {batch}x{tokens}x{heads}", o, wanted)
        check(frame, "  its state", final, after)


def gated_delta(frame):
    for batch, tokens, heads in [(1, 70, 2), (2, 1, 4)]:
        width = 64
        (q, q64), (k, k64), (v, v64) = (frame.draw(batch, tokens, heads, width) for _ in range(3))
        g = frame.of(-np.exp(RNG.standard_normal((batch, tokens, heads)) - 1))
        beta = frame.of(1 / (1 + np.exp(-RNG.standard_normal((batch, tokens, heads)))))
        state, state64 = frame.draw(batch, heads, width, width, dtype="float32", scale=0.1)
        unit = [x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (q64, k64)]
        decays = np.broadcast_to(frame.back(g)[..., None], q64.shape)
        wanted, after = kda_by_token(*unit, v64, decays, frame.back(beta), width**-0.5, state64)
        o, final = ops.gated_delta(q, k, v, g, beta, l2norm=True, initial_state=state, return_state=True)
        check(frame, f"gated_delta {batch}x{tokens}x{heads}", o, wanted)
        check(frame, "  its state", final, after)


def linear(frame):
    (x, x64), (w, w64), (b, b64) = frame.draw(9, 256), frame.draw(192, 256, scale=0.1), frame.draw(192)
    check(frame, "linear", ops.linear(x, w, bias=b), x64 @ w64.T + b64)
    residual, residual64 = frame.draw(9, 96, dtype="float32")
    gate, up = np.split(x64 @ w64.T, 2, axis=1)
    wanted = residual64 + 0.5 * gate / (1 + np.exp(-gate)) * up
    check(frame, "  swiglu with a residual", ops.linear(x, w, activation="swiglu", residual=residual, scale=0.5), wanted)
    if frame.where != "numpy":
        float8(frame, x, x64)


def float8(frame, x, x64):
    """Weights in float8 (e4m3), with one scale per row or per 128 columns of a row; 200 columns have 72 in their last group."""
    for groups, depth in ((1, 200), (2, 200), (2, 256)):
        w = frame.of(RNG.standard_normal((192, depth)) * 50, "float8_e4m3fn")
        scale, scale64 = frame.draw(groups, 192, scale=0.01, dtype="float32")
        w64 = frame.back(w) * np.repeat(scale64, 128 if groups > 1 else depth, axis=0)[:depth].T
        a, a64 = x[:, :depth].contiguous(), x64[:, :depth]
        name = f"linear float8, {groups} x {depth}"
        if frame.dtype == "float16":
            refused(frame, name, lambda: ops.linear(a, w, w_scale=scale), "bf16")
            return
        o = ops.linear(a, w, w_scale=scale)
        check(frame, name, o, a64 @ w64.T, ALLOWED["bfloat16"])
        gate, up = np.split(a64 @ w64.T, 2, axis=1)
        residual, residual64 = frame.draw(9, 96, dtype="float32")
        o = ops.linear(a, w, w_scale=scale, activation="swiglu", residual=residual)
        check(frame, "  swiglu with a residual", o, residual64 + gate / (1 + np.exp(-gate)) * up, ALLOWED["bfloat16"])
    refused(frame, "float8 without factors", lambda: ops.linear(a, w), "w_scale")
    refused(frame, "scales with weights that are not quantized", lambda: ops.linear(a, a, w_scale=scale), "e4m3")
    refused(frame, "scales of the wrong size", lambda: ops.linear(a, w, w_scale=scale[:, :191]), "w_scale")


def moe(frame):
    tokens, experts, hidden, inner, top = 11, 8, 128, 64, 3
    x, x64 = frame.draw(tokens, hidden)
    logits, logits64 = frame.draw(tokens, experts, dtype="float32")
    (up, up64), (down, down64) = frame.draw(experts, 2 * inner, hidden, scale=0.1), frame.draw(experts, hidden, inner, scale=0.1)
    o, chosen, weights = ops.moe(x, logits, up, down, top_k=top, return_choice=True)
    order = np.argsort(-logits64, axis=1, kind="stable")[:, :top]
    wanted = np.zeros_like(x64)
    for t in range(tokens):
        picked = logits64[t, order[t]]
        share = np.exp(picked - picked.max())
        for e, weight in zip(order[t], share / share.sum()):
            gate, value = np.split(up64[e] @ x64[t], 2)
            wanted[t] += weight * (down64[e] @ (gate / (1 + np.exp(-gate)) * value))
    check(frame, "moe", o, wanted)
    check(frame, "  its choice", chosen, order.astype(np.float64), 1e-9)


def nsa(frame):
    (q, q64), (k, k64), (v, v64) = frame.draw(1, 90, 4, 64), frame.draw(1, 90, 2, 64), frame.draw(1, 90, 2, 64)
    gate = frame.of(RNG.random((1, 90, 4)))
    wanted, _ = softmax_attention(q64, k64, v64, True, 0.125, (31, -1))
    check(frame, "nsa, its window", ops.nsa(q, k, v, g_swa=gate, window=32), wanted * frame.back(gate)[..., None])


def refused(frame, name, work, words):
    try:
        work()
        said = "nothing"
    except firstlight.Refused as error:
        said = str(error)
    fine = words in said
    print(f"{'ok  ' if fine else 'FAIL'} {frame.where:5} {name}: {said}")
    if not fine:
        FAILED.append((frame.where, name))


def refusals(frame):
    """Errors are raised before anything is written."""
    x, _ = frame.draw(2, 5, 64)
    for name, work, words in [
        ("a wrong shape", lambda: ops.rms_norm(x, frame.draw(63)[0]), "weight"),
        ("a wrong setting", lambda: ops.conv1d(x, frame.draw(64, 4)[0], activation="gelu"), "gelu"),
        ("a missing tensor", lambda: ops.attention(frame.draw(1, 3, 2, 64)[0], frame.draw(1, 3, 2, 64)[0]), "`v`"),
    ]:
        refused(frame, name, work, words)


def evidence(frame):
    """Calls of every op and launches of its kernels are counted."""
    status = firstlight.status(0 if frame.where == "cuda" else -1)
    for name in ("attention", "conv1d", "gated_delta", "kda", "linear", "moe", "nsa", "rmsnorm", "selective_scan", "ssd"):
        launched = sum(count for kernel, count in status["launches"].items() if kernel.startswith(name + "."))
        fine = status["calls"].get(name, 0) > 0 and launched > 0
        if not fine:
            FAILED.append((frame.where, "evidence", name))
    print("copied on the way:", status["copies"])


def main(wheres):
    for where in wheres:
        for dtype in ("float32", "float16") if where == "numpy" else ("float32", "bfloat16", "float16"):
            frame = Frame(where, dtype)
            for op in (attention, rms_norm, conv1d, ssd, selective_scan, kda, gated_delta, linear, moe, nsa):
                # There is no float32 GEMM kernel on a GPU; these calls are refused.
                if where == "cuda" and dtype == "float32" and op in (attention, linear, moe, nsa):
                    continue
                try:
                    op(frame)
                except firstlight.Refused as error:
                    print("FAIL", where, dtype, op.__name__, error)
                    FAILED.append((where, dtype, op.__name__))
        refusals(frame)
        evidence(frame)
    print(f"{RAN} passed, {len(FAILED)} failed" if not FAILED else f"{RAN - len(FAILED)} passed, {len(FAILED)} failed: {FAILED}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["numpy"]))
