"""Host time of a call of firstlight's ops with its output, beside torch's own and Triton's launch, on one GPU.

``python ops_overhead.py``, with torch. The GPU's work is small, so that the host's time is what is seen: each figure is the least of nine
means over 400 calls in a row, waited for between the rows. The last lines are about the first calls of a process.
"""

import time

start = time.perf_counter()
import firstlight

imported = time.perf_counter() - start

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from firstlight import ops

dev, half = "cuda", torch.bfloat16


def least(work, rows=9, calls=400):
    best = float("inf")
    for _ in range(rows):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - start) / calls)
        torch.cuda.synchronize()
    return best * 1e6


@triton.jit
def norm(x, w, o, eps, N: tl.constexpr):
    at = tl.arange(0, N)
    row = tl.program_id(0) * N
    value = tl.load(x + row + at).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / N + eps)
    tl.store(o + row + at, (value * scale * tl.load(w + at).to(tl.float32)).to(tl.bfloat16))


def triton_norm(x, w):
    o = torch.empty_like(x)
    norm[(x.numel() // x.shape[-1],)](x, w, o, 1e-5, x.shape[-1])
    return o


def draw(*shape, dtype=half):
    return torch.randn(*shape, device=dev, dtype=dtype)


def once(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


@torch.no_grad()
def main():
    x, w = draw(1, 1, 2048), draw(2048)
    q, k, v = draw(1, 1, 32, 64), draw(1, 512, 8, 64), draw(1, 512, 8, 64)
    h, dt, b, c = draw(1, 1, 48, 64), draw(1, 1, 48), draw(1, 1, 1, 128), draw(1, 1, 1, 128)
    a, d, bias, state = (draw(*shape, dtype=torch.float32) for shape in ((48,), (48,), (48,), (1, 48, 64, 128)))
    a = -a.exp()
    loaded = once(firstlight.tables)
    first = once(lambda: ops.ssd(h, dt, a, b, c, D=d, dt_bias=bias, state=state))
    second = once(lambda: ops.attention(q, k, v, causal=True))
    third = once(lambda: ops.rms_norm(x, w))
    out = torch.empty_like(x)
    print(f"rms_norm {least(lambda: ops.rms_norm(x, w)):.1f} us, with out {least(lambda: ops.rms_norm(x, w, out=out)):.1f} us, ", end="")
    print(f"torch's {least(lambda: F.rms_norm(x, (2048,), w)):.1f} us")
    print(f"the same norm in Triton, {least(lambda: triton_norm(x, w)):.1f} us; ", end="")
    none, nothing = x[:0], torch.empty_like(x[:0])
    print(f"rms_norm of no rows, which launches nothing, {least(lambda: ops.rms_norm(none, w, out=nothing)):.1f} us")
    o = torch.empty_like(q)
    print(f"attention, a decode step, {least(lambda: ops.attention(q, k, v, causal=True)):.1f} us, ", end="")
    print(f"with out {least(lambda: ops.attention(q, k, v, causal=True, out=o)):.1f} us, ", end="")
    tq, tk, tv = (t.transpose(1, 2) for t in (q, k, v))
    print(f"torch's {least(lambda: F.scaled_dot_product_attention(tq, tk, tv, enable_gqa=True)):.1f} us")
    print(f"ssd, a decode step, {least(lambda: ops.ssd(h, dt, a, b, c, D=d, dt_bias=bias, state=state)):.1f} us")
    print(f"an empty tensor {least(lambda: torch.empty_like(x)):.1f} us, torch's add with its output {least(lambda: x + x):.1f} us")
    print(f"import {imported * 1e3:.1f} ms, loading the library {loaded:.1f} ms, the first call, of a kernel in the bundle, {first:.1f} ms, ", end="")
    print(f"the first of a second op {second:.1f} ms, of a norm {third:.1f} ms")


main()
