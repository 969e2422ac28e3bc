"""Several rows of x by narrow weights: forms of linear_direct, with x made ready in each block or ahead.  rows.py T NAME:BITS:READY.."""
import sys
import chain as ch
from chain import *
ow, orl = ch.weights, ch.real
def weights(n, k, bits):
    if bits != 4: return ow(n, k, bits)
    q = torch.randint(0, 16, (n, k), device=dev, dtype=torch.uint8); s = torch.rand(k // 128, n, device=dev) * 0.02 + 0.005
    return (q[:, 0::2] | q[:, 1::2] << 4).contiguous(), s.float(), None
def real(w, s):
    if w.dtype == torch.uint8:
        q = torch.stack([w & 15, w >> 4], 2).reshape(w.shape[0], -1).double() - 8
        return q * s.double().T.repeat_interleave(128, 1)
    return orl(w, s)
ch.weights, ch.real = weights, real
scratch = torch.zeros(4 << 20, device=dev, dtype=torch.uint8)
class New(Real):
    def __init__(self, name, bits, ready):
        super().__init__(name); self.bits, self.ready = bits, ready
    def kernel(self, suffix, tokens, key, fn):
        n = self.name + suffix + ("" if tokens == 1 else str(tokens))
        if (n, key) not in self.kernels: self.kernels[n, key] = Kernel(os.path.join(here, n + "-%d%d%d%d.cubin" % key), fn)
        return self.kernels[n, key]
    def call(self, place, x, w, norm, residual, o, tokens, inputs, columns, swiglu, scale, w_scale, pdl=True, clock=None):
        key = (int(norm is not None), int(x.dtype == torch.float32), int(residual is not None), int(swiglu))
        seg = -(-inputs // 256) if norm is not None else 0
        half = tokens <= (8 if self.bits == 8 else 16)
        rd = 8 * 2 * 4 * (128 // self.bits); rounds = -(-inputs // rd); r = rounds * rd
        stride = 2 * r + 64
        xb = tokens * (stride + 4 * (seg + (r // 256 if half else 0) + (r // 256 * 4 if half and self.bits == 4 else 0))) + (4 if self.bits == 4 else 0)
        xb = -(-xb // 16) * 16
        grid = min(SMS, -(-columns // 4)); share = -(-columns // grid); tiles = -(-share // (8 if swiglu else 16))
        sums = tokens * 4 * 8 * 20; fac = (-(-inputs // 128) * (2 if swiglu else 1) * share * 4 + 128) if self.bits == 4 else 0
        ring = 3 if self.bits == 4 else 4
        fit = (227 * 1024 - 10240 - fac - xb) // sums
        held = tiles if fit >= tiles else max([h for h in range(1, fit + 1) if h * rounds % ring == 0] or [0])
        if not held: raise SystemExit("no room")
        by = xb + held * sums + fac
        if self.ready:
            pieces = tokens * (r // 256)
            self.kernel("R", tokens, key, b"linear_ready").launch(-(-pieces // 4), 128, 0, [x, norm, scratch, tokens, inputs, 0, stride, seg, r // 256 if half else 0], pdl)
            x = scratch
        args = [x, w, norm, None, residual, o, None, None, None, None, None] + [columns] * 5 + [tokens, inputs, columns, 0, 0, int(o.dtype == torch.float32), scale, 1e-5, held] + [None] * 5 + [0] * 5 + [w_scale, None, None, 32]
        self.kernel("", tokens, key, b"linear_direct").launch(grid, 256, by, args, pdl)
T = int(sys.argv[1]); parts = ("in", "up") if T == 32 else ("in", "out", "up", "down")
if T == 32: ch.check = None
rows = []
for s in sys.argv[2:]:
    n, b, rd = s.split(":"); v = New(n, int(b), rd == "1")
    e = []
    try:
        if T <= 16: e = check(v, T)
        rows.append((n, e, ([graph(chain(v, T))] if T <= 16 else []) + [graph(chain(v, T, only=o)) for o in parts]))
    except BaseException as x: print(n, repr(x)[:200], flush=True)
ts = time([g for r in rows for g in r[2]]); k = len(parts) + (T <= 16)
for i, (n, e, _) in enumerate(rows):
    t = ts[i * k:i * k + k]
    print(f"T{T} {n:8s}" + (f" chain {t[0]:.3f} ms;" if T <= 16 else "") + " in a row, us: " + " ".join(f"{p} {x*25:.2f}" for p, x in zip(parts, t[-len(parts):])) + "; err " + " ".join(f"{x:.1e}" for x in e), flush=True)
