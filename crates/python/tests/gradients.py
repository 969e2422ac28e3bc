"""Compares the gradients of ops with float64 autograd of the formulas, and tests the errors of ops without gradients.

``python gradients.py [cpu] [cuda] [sample]``. A sample uses float32, and compiles one call of each op. It prints a line for
each case and ends with 1 if one fails.
"""

import sys

import torch
import torch.nn.functional as F
from cases import check, end

import firstlight
from firstlight import ops

# Relative error in the norm: gradients are sums over rounded values.
ALLOWED = {torch.float32: 3e-6, torch.bfloat16: 1e-2}
# dA is a sum of terms of both signs.
SCAN_ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
SAMPLE = "sample" in sys.argv
RANDOM = torch.Generator().manual_seed(3)


def draw(*shape, scale=1.0):
    return torch.randn(*shape, generator=RANDOM) * scale


def attention(q, k, v, causal=False, scale=None, softcap=None, window=(-1, -1)):
    (tq, heads), (tk, kv_heads) = q.shape[1:3], k.shape[1:3]
    k, v = (x.repeat_interleave(heads // kv_heads, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    before = torch.arange(tq)[:, None] + tk - tq - torch.arange(tk)
    seen = (before >= 0) if causal else torch.ones(tq, tk, dtype=torch.bool)
    seen &= (before <= window[0]) if window[0] >= 0 else True
    seen &= (before >= -window[1]) if window[1] >= 0 else True
    scores = scores.masked_fill(~seen, float("-inf"))
    # The output of a query without visible keys is 0, and so is its gradient.
    lone = ~seen.any(1)
    scores = scores.masked_fill(lone[:, None], 0)
    o = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    return o.masked_fill(lone[:, None, None], 0), scores.logsumexp(-1).masked_fill(lone, 0)


def packed(q, k, v, ends, ends_k, **settings):
    spans = zip(ends, ends[1:], ends_k, ends_k[1:])
    return torch.cat([attention(q[None, a:b], k[None, c:d], v[None, c:d], **settings)[0][0] for a, b, c, d in spans])


def conv1d(x, weight, bias=None, state=None, activation=None, ends=None):
    if ends is not None:
        return torch.cat([conv1d(x[None, a:b], weight, bias, None, activation)[0] for a, b in zip(ends, ends[1:]) if b > a])
    width = weight.shape[1]
    before = x.new_zeros(x.shape[0], width - 1, x.shape[2]) if state is None else state[..., -(width - 1) :].transpose(1, 2)
    y = F.conv1d(torch.cat([before, x], 1).transpose(1, 2), weight[:, None], bias, groups=weight.shape[0]).transpose(1, 2)
    return F.silu(y) if activation else y


def rms_norm(x, weight=None, gate=None, eps=1e-5, activation="silu", norm_before_gate=False):
    act = None if gate is None else F.silu(gate) if activation == "silu" else gate.sigmoid()
    if act is not None and not norm_before_gate:
        x = x * act
    y = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    y = y if weight is None else y * weight
    return y if act is None or not norm_before_gate else y * act


def linear(x, w, norm=None, bias=None, residual=None, activation=None, scale=1.0, eps=1e-5):
    x = x if norm is None else rms_norm(x, norm, eps=eps)
    y = F.linear(x, w, bias)
    if activation == "swiglu":
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    if activation == "relu_squared":
        y = F.relu(y).square()
    return y * scale + (0 if residual is None else residual)


def delta(q, k, v, g, beta, state=None, A_log=None, dt_bias=None, l2norm=False):
    """The delta rule, token by token: g ``[B, T, HV, K]`` for kda, ``[B, T, HV]`` for gated_delta. Returns o and the final state."""
    rep = v.shape[2] // q.shape[2]
    if A_log is not None:
        rate = A_log.exp()
        g = -(rate[:, None] if g.dim() == 4 else rate) * F.softplus(g + dt_bias)
        beta = beta.sigmoid()
    if l2norm:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, k = (x.repeat_interleave(rep, 2) for x in (q, k))
    g = g if g.dim() == 4 else g[..., None]
    state = q.new_zeros(q.shape[0], v.shape[2], q.shape[3], v.shape[3]) if state is None else state
    o = []
    for t in range(q.shape[1]):
        state = g[:, t, :, :, None].exp() * state
        write = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], state))
        state = state + k[:, t, :, :, None] * write[:, :, None]
        o.append(q.shape[3] ** -0.5 * torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(o, 1), state


def cases(device):
    """Yields a name, the op, its formula in float64, and the positional inputs of both."""
    q, k, v = draw(2, 9, 4, 64), draw(2, 13, 2, 64), draw(2, 13, 2, 64)
    for name, settings in {
        "attention": {},
        "attention, causal": {"causal": True},
        "attention, causal and window": {"causal": True, "window": (3, -1)},
        "attention, window and scale": {"window": (2, 1), "scale": 0.3},
        "attention, softcap": {"softcap": 2.0, "causal": True},
    }.items():
        plain = lambda q, k, v, settings=settings: ops.attention(q, k, v, **settings)
        yield name, plain, lambda q, k, v, settings=settings: attention(q, k, v, **settings)[0], (q, k, v)
    both = lambda q, k, v: ops.attention(q, k, v, causal=True, return_lse=True)
    if device == "cpu":
        yield "attention, lse too", both, lambda q, k, v: attention(q, k, v, causal=True), (q, k, v)
        latent = lambda q, k: ops.attention(q, k, value_width=48)
        yield "attention, latent", latent, lambda q, k: attention(q, k, k[..., :48])[0], (q, k)
    # More queries than keys: the first queries see none.
    more = k, q[:, :, :2], q[:, :, 2:]
    yield "attention, more queries", lambda *t: ops.attention(*t, causal=True), lambda *t: attention(*t, causal=True)[0], more
    wide = draw(1, 33, 2, 128), draw(1, 33, 1, 128), draw(1, 33, 1, 128)
    yield "attention, D 128", lambda *t: ops.attention(*t, causal=True), lambda *t: attention(*t, causal=True)[0], wide
    ends, ends_k = [0, 5, 5, 21, 24], [0, 6, 9, 29, 32]
    at, at_k = (torch.tensor(one, dtype=torch.int32, device=device) for one in (ends, ends_k))
    q, k, v = draw(24, 4, 64), draw(32, 2, 64), draw(32, 2, 64)
    mine = lambda q, k, v: ops.attention(q, k, v, causal=True, cu_seqlens=at, max_seqlen=16)
    yield "attention, packed", mine, lambda *t: packed(*t, ends, ends, causal=True), (q, k[:24], v[:24])
    mine = lambda q, k, v: ops.attention(q, k, v, causal=True, cu_seqlens=at, max_seqlen=16, cu_seqlens_k=at_k, max_seqlen_k=20)
    yield "attention, packed, other keys", mine, lambda *t: packed(*t, ends, ends_k, causal=True), (q, k, v)

    x, w, b, state = draw(2, 11, 24), draw(24, 4), draw(24), draw(2, 24, 3)
    yield "conv1d", lambda *t: ops.conv1d(*t, activation="silu"), lambda *t: conv1d(*t, activation="silu"), (x, w, b)
    yield "conv1d, plain, W 2", ops.conv1d, conv1d, (x, w[:, :2].contiguous())
    mine = lambda x, w, b: ops.conv1d(x.transpose(1, 2).contiguous(), w, b, activation="silu", layout="channel_first").transpose(1, 2)
    yield "conv1d, channels first", mine, lambda *t: conv1d(*t, activation="silu"), (x, w, b)
    mine = lambda x, w, b, s: ops.conv1d(x, w, b, activation="silu", initial_state=s)
    yield "conv1d, state", mine, lambda *t: conv1d(*t, activation="silu"), (x, w, b, state)
    mine = lambda x, w, b: ops.conv1d(x, w, b, activation="silu", cu_seqlens=at, max_seqlen=16)
    yield "conv1d, packed", mine, lambda *t: conv1d(*t, activation="silu", ends=ends), (draw(24, 24), w, b)

    x, w, z = draw(3, 5, 96), draw(96), draw(3, 5, 96)
    yield "rms_norm", lambda x, w: ops.rms_norm(x, w, eps=1e-3), lambda x, w: rms_norm(x, w, eps=1e-3), (x, w)
    yield "rms_norm, no weight", ops.rms_norm, rms_norm, (x,)
    yield "rms_norm, gated", lambda x, w, z: ops.rms_norm(x, w, gate=z), rms_norm, (x, w, z)
    settings = {"activation": "sigmoid", "norm_before_gate": True}
    mine = lambda x, w, z: ops.rms_norm(x, w, gate=z, **settings)
    yield "rms_norm, groups, gated after", mine, lambda *t: rms_norm(*t, **settings), (draw(2, 3, 4, 24), draw(4, 24), draw(2, 3, 4, 24))
    yield "rms_norm, five dimensions", ops.rms_norm, rms_norm, (draw(2, 1, 3, 2, 16), draw(16))

    q, k, v, beta, state = draw(2, 19, 2, 16), draw(2, 19, 2, 16), draw(2, 19, 4, 24), draw(2, 19, 4), draw(2, 4, 16, 24)
    for name, g in {"kda": draw(2, 19, 4, 16), "gated_delta": draw(2, 19, 4)}.items():
        op = getattr(ops, name)
        mine = lambda q, k, v, g, b, op=op: op(q, k, v, -g.square(), b.sigmoid(), l2norm=True)
        formula = lambda q, k, v, g, b: delta(q, k, v, -g.square(), b.sigmoid(), l2norm=True)[0]
        yield name, mine, formula, (q, k, v, g, beta)
        mine = lambda q, k, v, g, b, s, a, d, op=op: op(q, k, v, g, b, initial_state=s, A_log=a, dt_bias=d, l2norm=True, return_state=True)
        yield f"{name}, state", mine, lambda *t: delta(*t, l2norm=True), (q, k, v, g, beta, state, draw(4), draw(*g.shape[2:]))

    x, w, b = draw(7, 64), draw(96, 64, scale=0.1), draw(96)
    yield "linear", lambda x, w, b: ops.linear(x, w, bias=b), lambda x, w, b: linear(x, w, bias=b), (x, w, b)
    names = ("norm", "bias", "residual")
    settings = {"activation": "swiglu", "scale": 0.5, "eps": 1e-3}
    mine = lambda x, w, *t: ops.linear(x, w, **dict(zip(names, t)), **settings)
    formula = lambda x, w, *t: linear(x, w, **dict(zip(names, t)), **settings)
    yield "linear, whole", mine, formula, (x, w, draw(64), b, draw(7, 48))
    squares = {"activation": "relu_squared", "scale": 0.5}
    yield "linear, squares", lambda x, w, b: ops.linear(x, w, bias=b, **squares), lambda x, w, b: linear(x, w, bias=b, **squares), (x, w, b)


def ssd(x, dt, rate, b, c, d=None, z=None, bias=None, state=None, dfinal=False):
    dt, per_group = dt if bias is None else dt + bias, x.shape[2] // b.shape[2]
    step = F.softplus(dt)
    b, c = (t.repeat_interleave(per_group, 2) for t in (b, c))
    h = x.new_zeros(x.shape[0], *x.shape[2:], b.shape[3]) if state is None else state
    rows = []
    for t in range(x.shape[1]):
        h = torch.exp(step[:, t] * rate)[..., None, None] * h + torch.einsum("bh,bhp,bhn->bhpn", step[:, t], x[:, t], b[:, t])
        rows.append(torch.einsum("bhpn,bhn->bhp", h, c[:, t]))
    y = torch.stack(rows, 1)
    y = y if d is None else y + d[:, None] * x
    y = y if z is None else y * F.silu(z)
    return (y, h) if dfinal else y


def scans(device, dtype):
    """Gradients of ops that have them in eager mode only."""
    for heads, groups, p, n, tokens in ((2, 1, 5, 7, 11), (4, 2, 64, 128, 70)):
        x, dt, rate = draw(2, tokens, heads, p), draw(2, tokens, heads), -torch.rand(heads, generator=RANDOM) * 4
        b, c, d = draw(2, tokens, groups, n), draw(2, tokens, groups, n), draw(heads)
        z, bias, state = draw(2, tokens, heads, p), draw(heads), draw(2, heads, p, n)
        for name, more in {"": (), ", gated": (d, z, bias), ", states": (d, None, bias, state)}.items():
            inputs = [x, dt, rate, b, c, *(one for one in more if one is not None)]
            at = [n for n, one in enumerate((0,) * 5 + more) if one is not None or n < 5]
            final = ", states" == name

            def whole(*given, at=at):
                every = [None] * 9
                for place, one in zip(at, given):
                    every[place] = one
                return every

            def mine(*given, final=final, whole=whole):
                *first, d, z, bias, state = whole(*given)
                return ops.ssd(*first, D=d, z=z, dt_bias=bias, initial_state=state, return_state=final)

            plain = lambda *given, final=final, whole=whole: ssd(*whole(*given), dfinal=final)
            kept = [one.to(device, torch.float32 if place in (2, 5, 7, 8) else dtype) for place, one in zip(at, inputs)]
            exact = [one.double().cpu() for one in kept]
            seeds = [draw(*o.shape) for o in several(plain(*exact))]
            found, wanted = gradients(mine, kept, seeds), gradients(plain, exact, seeds)
            error = distance(found, wanted)
            alike = all((f.shape, f.dtype) == (one.shape, one.dtype) for f, one in zip(found, kept))
            label = f"{device} {str(dtype).removeprefix('torch.')} ssd{name}, P {p}"
            check(label, alike and error <= SCAN_ALLOWED[dtype], f"{error:.1e}")


def several(found):
    return found if isinstance(found, tuple) else (found,)


def gradients(function, inputs, seeds, second=False):
    """Gradients of the inputs, or second-order gradients through the sum of their squares."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    found = several(function(*inputs))
    first = torch.autograd.grad(found, inputs, [s.to(f) for s, f in zip(seeds, found)], create_graph=second)
    if not second:
        return first
    return torch.autograd.grad(sum(g.square().sum() for g in first), inputs, materialize_grads=True)


def distance(found, wanted):
    """The largest relative error of an input's gradient."""
    wanted = [w.double().cpu() for w in wanted]
    return max(((f.double().cpu() - w).norm() / w.norm().clamp_min(1e-9)).item() for f, w in zip(found, wanted))


def compare(name, function, formula, inputs, device, dtype):
    # States and residuals are always float32.
    wide = lambda at: at in {"conv1d, state": (3,), "linear, whole": (4,), "kda, state": (5,), "gated_delta, state": (5,)}.get(name, ())
    inputs = [x.to(device, torch.float32 if wide(at) else dtype) for at, x in enumerate(inputs)]
    exact = [x.double().cpu() for x in inputs]
    seeds = [draw(*o.shape) for o in several(formula(*exact))]
    label = f"{device} {str(dtype).removeprefix('torch.')} {name}"
    found, wanted = gradients(function, inputs, seeds), gradients(formula, exact, seeds)
    error = distance(found, wanted)
    alike = all((f.shape, f.dtype) == (x.shape, x.dtype) for f, x in zip(found, inputs))
    check(label, alike and error <= ALLOWED[dtype], f"{error:.1e}")
    if name.startswith(("kda", "gated_delta")):
        return  # In eager calls only, and without gradients of gradients.
    if dtype == torch.float32:
        error = distance(gradients(function, inputs, seeds, True), gradients(formula, exact, seeds, True))
        check("  of gradients", error <= 10 * ALLOWED[dtype], f"{error:.1e}")
    if device == "cpu" and dtype != torch.float32:
        return
    # Inductor's C++ compilation takes seconds per graph: one graph per op.
    inductor = device == "cuda" or name in (("rms_norm",) if SAMPLE else ("attention", "conv1d", "rms_norm", "linear"))
    if SAMPLE and "," in name:
        return
    for backend in ("aot_eager", "inductor") if inductor else ("aot_eager",):
        torch._dynamo.reset()
        run = torch.compile(function, fullgraph=True, backend=backend)
        error = distance(gradients(run, inputs, seeds), wanted)
        check(f"  compiled by {backend}", error <= ALLOWED[dtype], f"{error:.1e}")


def kernels(device):
    """An eager backward runs the gradient's kernel, once for all inputs; gradients of gradients do not."""
    x, w, z = (draw(2, 5, 3, 64).to(device).requires_grad_(), draw(64).to(device).requires_grad_(), draw(2, 5, 3, 64).to(device).requires_grad_())
    c, taps = draw(2, 9, 24).to(device).requires_grad_(), draw(24, 4).to(device).requires_grad_()
    half = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (draw(1, 9, heads, 64).to(device, half).requires_grad_() for heads in (4, 2, 2))
    calls = {
        "rmsnorm_backward": (lambda: ops.rms_norm(x, w, gate=z), (x, w, z)),
        "conv1d_backward": (lambda: ops.conv1d(c, taps, activation="silu"), (c, taps)),
        "attention_backward": (lambda: ops.attention(q, k, v, causal=True), (q, k, v)),
    }
    for name, (run, inputs) in calls.items():
        count = lambda: firstlight.status()["calls"].get(name, 0)
        before = count()
        torch.autograd.grad(run().sum(), inputs)
        eager = count()
        torch.autograd.grad(run().sum(), inputs, create_graph=True)
        check(f"{device} {name} runs once", (eager - before, count() - eager) == (1, 0), f"{eager - before}, {count() - eager}")


def part(device):
    """Only required gradients: of one input, of a module's parameters, and none under no_grad."""
    x, w = draw(3, 8).to(device), torch.nn.Parameter(draw(8).to(device))
    ops.rms_norm(x, w).sum().backward()
    check(f"{device} a parameter", x.grad is None and w.grad is not None and w.grad.abs().sum() > 0)
    with torch.no_grad():
        check(f"{device} under no_grad", not ops.rms_norm(x, w).requires_grad)
    with torch.inference_mode():
        check(f"{device} in inference_mode", ops.rms_norm(x, w).is_inference())


def refusals(device):
    """A call without a backward raises before it computes, in eager mode and in a graph."""
    x = draw(1, 5, 2, 128).to(device).requires_grad_()
    g, beta = -torch.ones(1, 5, 2, 128, device=device), torch.ones(1, 5, 2, device=device)
    b = draw(1, 5, 1, 16).to(device)
    ssd = (draw(1, 5, 2, 32).to(device).requires_grad_(), draw(1, 5, 2).to(device), -torch.ones(2, device=device), b, b)
    state = draw(1, 24, 3).to(device)
    conv = (draw(1, 5, 24).to(device).requires_grad_(), draw(24, 4).to(device))
    ends = torch.tensor([0, 5], dtype=torch.int32, device=device)
    narrow, factors = draw(96, 128).to(device, torch.float8_e4m3fn), torch.ones(1, 96, device=device)
    many = {
        "kda over a state": (lambda: ops.kda(x, x, x, g, beta, state=draw(1, 2, 128, 128).to(device)), "give `initial_state` instead"),
        "ssd over a state": (lambda: ops.ssd(*ssd, state=draw(1, 2, 32, 16).to(device)), "give `initial_state` instead"),
        "conv1d over a state": (lambda: ops.conv1d(*conv, state=state), "give `initial_state` instead"),
        "conv1d, packed states": (lambda: ops.conv1d(*conv, cu_seqlens=ends, initial_state=state), "with states of packed sequences"),
        "attention over pages": (lambda: ops.attention(x, x, x, cache_seqlens=ends[1:]), "with `cache_seqlens`"),
        "linear in float8": (lambda: ops.linear(x[0, :, 0], narrow, w_scale=factors), "with `w_scale`"),
    }
    graph = {"kda in a graph": (lambda: ops.kda(x, x, x, g, beta), "firstlight's kda has no backward in graphs yet")}
    for name, (work, words) in {**many, **graph}.items():
        for how in ("compiled",) if name in graph else ("eager", "compiled"):
            torch._dynamo.reset()
            try:
                (work if how == "eager" else torch.compile(work, fullgraph=True, backend="aot_eager"))()
                said = "nothing"
            except Exception as error:
                said, kind = str(error), type(error)
                if how == "eager" and kind is not NotImplementedError:
                    said = f"{kind.__name__}: {said}"
            check(f"{device} {name}, {how}", words in said and not said.startswith("Runtime"), "" if words in said else said[:300])


def flash_plumbing():
    """torch's flash attention backward accepts our arguments on meta tensors, which is all that can be tested without a GPU."""
    from firstlight import _backward, _flash

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    newer = version >= (2, 11)
    check("its window", _flash.windows() or version < (2, 4), str(_flash.windows()))
    check("its log-sum-exp of packed sequences", _flash.packed_lse() or not newer, str(_flash.packed_lse()))
    for packed in (False, True) if _flash.windows() else ():
        shape, rows = ((24, 4, 64), (4, 24)) if packed else ((2, 12, 4, 64), (2, 4, 12))
        make = lambda *sizes, dtype=torch.bfloat16: torch.empty(sizes, dtype=dtype, device="meta")
        q, k = make(*shape), make(*shape[:-2], 2, 64)
        ends = make(4, dtype=torch.int32) if packed else None
        inputs = {"q": q, "k": k, "v": k, "cu_seqlens": ends, "cu_seqlens_k": None}
        outputs = {"o": make(*shape), "lse": make(*rows, dtype=torch.float32)}
        bounds = {"cu_seqlens": (9, 24)} if packed else {}
        grads = {"o": make(*shape), "lse": None}
        call = _backward.Call(inputs, {"causal": True, "window_left": 5}, bounds, outputs, grads, {"q", "k", "v"})
        given, named = _flash.arguments(call)
        found = torch.ops.aten._flash_attention_backward(*given, **named)
        fine = [one.shape for one in found] == [q.shape, k.shape, k.shape] and given[8:10] == ((9, 9) if packed else (12, 12))
        sides = (named["window_size_left"], named["window_size_right"], named["scale"])
        check(f"flash backward's arguments, {'packed' if packed else 'dense'}", fine and sides == (5, 0, 0.125), _flash.refused(call))


def main(devices):
    flash_plumbing()
    for device in devices:
        for dtype in (torch.float32,) if SAMPLE else (torch.float32, torch.bfloat16):
            for name, function, formula, inputs in cases(device):
                if device == "cuda" and dtype == torch.float32 and name.startswith(("attention", "linear")):
                    continue
                compare(name, function, formula, inputs, device, dtype)
            scans(device, dtype)
        kernels(device)
        part(device)
        refusals(device)
    return end()


if __name__ == "__main__":
    sys.exit(main([one for one in sys.argv[1:] if one != "sample"] or ["cpu"]))
