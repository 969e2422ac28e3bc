import sys, json
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
class New(Real):
    def __init__(self, name, bits=8, half=True, W=8, Ld=2):
        self.W, self.Ld = W, Ld
        super().__init__(name); self.bits, self.half = bits, half
    def call(self, place, x, w, norm, residual, o, tokens, inputs, columns, swiglu, scale, w_scale, pdl=True, clock=None):
        key = (int(norm is not None), int(x.dtype == torch.float32), int(residual is not None), int(swiglu))
        name = self.name + ("" if tokens == 1 else str(tokens))
        if (name, key) not in self.kernels: self.kernels[name, key] = Kernel(os.path.join(here, name + "-%d%d%d%d.cubin" % key), b"linear_direct")
        seg = -(-inputs // 256) if norm is not None else 0
        rd = self.W * self.Ld * 4 * (128 // self.bits); r = -(-inputs // rd) * rd
        xb = tokens * (2 * r + 64 + 4 * (seg + (r // 256 if self.half else 0) + (r // 256 * 4 if self.bits == 4 else 0))) + 8
        grid = min(SMS, -(-columns // 4)); tiles = -(-(-(-columns // grid)) // (8 if swiglu else 16))
        by = -(-xb // 16) * 16 + tiles * tokens * 4 * self.W * 20 + (-(-inputs // 128) * (2 if swiglu else 1) * -(-columns // grid) * 4 + 64 if self.bits == 4 else 0)
        args = [x, w, norm, None, residual, o, None, None, None, None, None] + [columns] * 5 + [tokens, inputs, columns, 0, 0, int(o.dtype == torch.float32), scale, 1e-5, tiles] + [None] * 5 + [0] * 5 + [w_scale] + ([None] if self.half else [])
        self.kernels[name, key].launch(grid, 32 * self.W, by, args, pdl)
if __name__ == "__main__":
    for T in (1, 8):
        rows = []
        for s in sys.argv[1:]:
            n, b, h, *more = s.split(":"); v = New(n, int(b), h == "1", *map(int, more))
            try: e = check(v, T)
            except SystemExit as x: continue
            rows.append((n, e, [graph(chain(v, T))] + [graph(chain(v, T, only=o)) for o in ("in", "out", "up", "down")]))
        ts = time([g for r in rows for g in r[2]])
        for i, (n, e, _) in enumerate(rows):
            t = ts[i * 5:i * 5 + 5]
            print(f"T{T} {n:8s} chain {t[0]:.3f} ms; in a row, us: in {t[1]*25:.2f} out {t[2]*25:.2f} up {t[3]*25:.2f} down {t[4]*25:.2f}; err " + " ".join(f"{x:.1e}" for x in e), flush=True)
    # adversarial ranges of x
    for s in sys.argv[1:]:
        n, b, h, *more = s.split(":"); v = New(n, int(b), h == "1", *map(int, more))
        if h != "1": continue
        for T in (1, 8):
            l = layers(v.bits)[3]
            if not os.path.exists(os.path.join(here, n + ('' if T == 1 else str(T)) + '-0010.cubin')): continue
            for sc in (1e-30, 1e-6, 1.0, 1e6, 1e30):
                x = (torch.randn(T, INNER, device=dev) * sc).bfloat16(); x[:, 7] *= 200
                h0 = torch.zeros(T, H, device=dev); o = torch.full((T, H), float("nan"), device=dev)
                v.call("onto", x, l["out"][0], None, h0, o, T, INNER, H, 0, 1.0, l["out"][1], False); torch.cuda.synchronize()
                ref = x.double() @ real(*l["out"]).T
                print(n, T, sc, "rel %.1e" % ((o.double() - ref).norm() / ref.norm()).item())
