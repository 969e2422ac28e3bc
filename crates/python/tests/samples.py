"""Sample calls of every op of ``firstlight.ops`` with torch tensors, for the tests of tracing and gradients."""

import torch
import torch.nn.functional as F

from firstlight import ops


def _draws(dtype, device, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=1.0, of=dtype):
        return (torch.randn(*shape, generator=generator) * scale).to(device, of)

    return draw


def samples(dtype=torch.float32, device="cpu"):
    """Yields names, functions and their positional tensors. A function that updates a state in place also returns
    the state."""
    draw = _draws(dtype, device, 11)
    full = torch.float32
    ends = torch.tensor([0, 5, 5, 21, 24], dtype=torch.int32, device=device)
    slots = torch.tensor([2, 0], dtype=torch.int32, device=device)

    q, k, v = draw(2, 9, 4, 64), draw(2, 13, 2, 64), draw(2, 13, 2, 64)
    yield "attention", lambda q, k, v: ops.attention(q, k, v, causal=True), (q, k, v)
    yield "attention, lse", lambda q, k, v: ops.attention(q, k, v, scale=0.2, window=(4, 2), return_lse=True), (q, k, v)
    yield "attention, softcap", lambda q, k, v: ops.attention(q, k, v, causal=True, softcap=3.0), (q, k, v)
    packed = draw(24, 4, 64), draw(24, 2, 64), draw(24, 2, 64)
    yield "attention, packed", lambda q, k, v: ops.attention(q, k, v, causal=True, cu_seqlens=ends, max_seqlen=16, return_lse=True), packed

    def into(q, k, v):
        o = torch.empty_like(q)
        return ops.attention(q, k, v, out=o), o

    yield "attention, out", into, (q, k, v)
    pages = draw(6, 16, 2, 64), draw(6, 16, 2, 64)
    table = torch.tensor([[0, 3], [5, 1]], dtype=torch.int32, device=device)
    lengths = torch.tensor([20, 7], dtype=torch.int32, device=device)
    paged = lambda q, k, v: ops.attention(q, k, v, cache_seqlens=lengths, block_table=table)
    yield "attention, paged", paged, (draw(2, 1, 4, 64), *pages)
    latent = draw(2, 1, 4, 64), draw(2, 13, 1, 64)
    yield "attention, latent", lambda q, k: ops.attention(q, k, value_width=48), latent

    for name, op in (("kda", ops.kda), ("gated_delta", ops.gated_delta)):
        width = 128 if name == "kda" else 64
        q, k = (F.normalize(draw(2, 9, 2, width, of=full), dim=-1).to(dtype) for _ in range(2))
        g = draw(2, 9, 2, width, of=full) if name == "kda" else draw(2, 9, 2, of=full)
        given = q, k, draw(2, 9, 2, width), -g.exp().to(dtype), draw(2, 9, 2, of=full).sigmoid().to(dtype)
        state = draw(2, 2, width, width, scale=0.1, of=full)
        yield name, op, given
        yield f"{name}, state", lambda *t, op=op: op(*t[:5], initial_state=t[5], return_state=True), (*given, state)
        yield f"{name}, in place", _over(lambda *t, op=op, **s: op(*t, l2norm=True, **s)), (*given, state)

    x, dt, a = draw(2, 21, 4, 32), draw(2, 21, 4), -draw(4, of=full).exp()
    b, c, d = draw(2, 21, 2, 16), draw(2, 21, 2, 16), draw(4)
    pool = draw(3, 4, 32, 16, of=full)
    yield "ssd", lambda *t: ops.ssd(*t[:5], D=t[5]), (x, dt, a, b, c, d)
    yield "ssd, state", lambda *t: ops.ssd(*t, dt_limit=(0.01, 0.5), return_state=True), (x, dt, a, b, c)
    yield "ssd, in place", _over(lambda *t, **s: ops.ssd(*t, **s)), (x, dt, a, b, c, pool[:2].clone())
    # A pool of states with a slot for each of two sequences.
    at = lambda *t, **s: ops.ssd(*t, state_indices=slots, **s)
    yield "ssd, pool", _over(at), (x[:, :1], dt[:, :1], a, b[:, :1], c[:, :1], pool)
    whole = [t.reshape(42, *t.shape[2:]) for t in (x, dt, b, c)]
    offsets = torch.tensor([0, 12, 42], dtype=torch.int32, device=device)
    many = lambda x, dt, a, b, c: ops.ssd(x, dt, a, b, c, cu_seqlens=offsets, max_seqlen=30, return_state=True)
    yield "ssd, packed", many, (whole[0], whole[1], a, *whole[2:])

    # It has no GPU kernels.
    if device == "cpu":
        u, delta, z = (draw(2, 9, 24) for _ in range(3))
        given = u, delta, -draw(24, 16, of=full).exp(), draw(2, 9, 1, 16), draw(2, 9, 1, 16), draw(24), z
        scan = lambda *t: ops.selective_scan(*t[:5], D=t[5], z=t[6], return_state=True)
        yield "selective_scan, state", scan, given

    x, weight, bias = draw(2, 11, 24), draw(24, 4), draw(24)
    before = draw(2, 24, 3, of=full)
    yield "conv1d", lambda x, w, b: ops.conv1d(x, w, b, activation="silu"), (x, weight, bias)
    yield "conv1d, plain", lambda x, w: ops.conv1d(x, w), (x, weight)
    yield "conv1d, channels first", lambda x, w, b: ops.conv1d(x.transpose(1, 2), w, b, layout="channel_first"), (x, weight, bias)
    yield "conv1d, state", lambda x, w, b, s: ops.conv1d(x, w, b, initial_state=s, return_state=True), (x, weight, bias, before)
    yield "conv1d, in place", _over(lambda x, w, b, **s: ops.conv1d(x, w, b, activation="silu", **s)), (x, weight, bias, before)
    packed = lambda x, w, b: ops.conv1d(x, w, b, activation="silu", cu_seqlens=ends, max_seqlen=16)
    yield "conv1d, packed", packed, (draw(24, 24), weight, bias)

    q, k, v = draw(1, 70, 4, 32), draw(1, 70, 2, 32), draw(1, 70, 2, 32)
    gates = [draw(1, 70, 4).sigmoid() for _ in range(3)]
    yield "nsa", lambda q, k, v, g: ops.nsa(q, k, v, g_swa=g, window=16), (q, k, v, gates[0])
    three = lambda q, k, v, c, s, w: ops.nsa(q, k, v, g_cmp=c, g_slc=s, g_swa=w, window=16, return_indices=True)
    yield "nsa, indices", three, (q, k, v, *gates)

    x, z = draw(3, 5, 96), draw(3, 5, 96)
    yield "rms_norm", lambda x, w: ops.rms_norm(x, w, eps=1e-6), (x, draw(96))
    yield "rms_norm, gated", lambda x, w, z: ops.rms_norm(x, w, gate=z), (x, draw(96), z)
    late = lambda x, w, z: ops.rms_norm(x, w, gate=z, norm_before_gate=True, activation="sigmoid")
    yield "rms_norm, groups", late, (x.view(3, 5, 4, 24), draw(4, 24), z.view(3, 5, 4, 24))
    yield "rms_norm, five dimensions", lambda x: ops.rms_norm(x), (draw(2, 1, 3, 2, 16),)

    x, w, residual = draw(7, 64), draw(96, 64, scale=0.1), draw(7, 48, of=full)
    yield "linear", lambda x, w, b: ops.linear(x, w, bias=b), (x, w, draw(96))
    whole = lambda x, w, n, r, b: ops.linear(x, w, norm=n, residual=r, bias=b, activation="swiglu", scale=0.5, eps=1e-6)
    yield "linear, whole", whole, (x, w, draw(64), residual, draw(96))

    narrow, factors = draw(96, 64, scale=50.0, of=torch.float8_e4m3fn), draw(1, 96, scale=0.01, of=full)
    yield "linear, float8", lambda x, w, s: ops.linear(x, w, w_scale=s), (x, narrow, factors)

    x, logits, up, down = draw(7, 32), draw(7, 6, of=full), draw(6, 32, 32, scale=0.2), draw(6, 32, 16, scale=0.2)
    yield "moe", lambda *t: ops.moe(*t, top_k=2), (x, logits, up, down)
    yield "moe, choice", lambda *t: ops.moe(*t, top_k=3, score="sigmoid", weight_scale=2.0, return_choice=True), (x, logits, up, down)


def _over(op):
    """A call that updates its last tensor in place, and also returns it."""

    def run(*tensors):
        return op(*tensors[:-1], state=tensors[-1]), tensors[-1]

    return run


def fresh(tensors):
    """Copies with the same sizes and strides, which a call may modify."""
    return tuple([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t) for t in tensors])


def several(found):
    return found if isinstance(found, tuple) else (found,)
