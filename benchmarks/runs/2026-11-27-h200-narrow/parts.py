"""nar.py DIR T FMT:SPEC ... : forms of linear_direct. SPEC = in,out,up,down each as PARTS x SHARING e.g. 11,T,11,T (T: through)."""
import sys, os
import chain as ch
from chain import *
BITS = {"q4": 4, "r8": 8, "z4": 4, "e8": 8, "i8": 8, "i4": 4, "qk": 4, "q6": 8, "q8": 8}
SHAPES = {"in": (PROJ, H), "out": (H, INNER), "up": (2 * MLP, H), "down": (H, MLP)}
FB = {"q4": 16, "r8": 32, "z4": 32, "e8": 32, "i8": 32, "i4": 32, "qk": 32, "q6": 32, "q8": 16}
def make(f, n, k):
    if f == "e8":
        w = torch.randn(n, k, device=dev) * .05; s = w.abs().amax(1) / 448
        return (w / s[:, None]).to(torch.float8_e4m3fn), s.float(), None
    if f == "r8":
        return torch.randint(-127, 128, (n, k), device=dev, dtype=torch.int8), torch.rand(1, n, device=dev) * 1.2e-3 + 2e-4, None
    if f in ("i8", "q6", "q8"):
        g = {"i8": 128, "q6": 16, "q8": 32}[f]
        q = torch.randint(-127, 128, (n, k), device=dev, dtype=torch.int8) if f != "q6" else torch.randint(-32, 32, (n, k), device=dev, dtype=torch.int8)
        s = torch.rand(k // g, n, device=dev) * (1.2e-3 if f != "q6" else 3e-3) + 2e-4
        return q, (s.half() if f == "q8" else s), None
    q = torch.randint(0, 256, (n, k // 2), device=dev, dtype=torch.uint8)
    g = 128 if f in ("i4", "z4") else 32
    s = torch.rand(k // g, n, device=dev) * 0.01 + 0.002
    if f == "q4": s = s.half()
    if f == "z4": return q, s, torch.randint(0, 16, (k // g, n), device=dev, dtype=torch.uint8)
    return q, s, ((torch.rand(k // g, n, device=dev) * 0.1 - 0.02) if f == "qk" else None)
def real(f, w, s, o):
    if f == "e8": return w.float().double() * s.double()[:, None]
    if BITS[f] == 4:
        q = torch.stack([w & 15, w >> 4], 2).reshape(w.shape[0], -1).double()
        if f == "z4": return (q - o.double().T.repeat_interleave(128, 1)) * s.double().T.repeat_interleave(128, 1)
        if f == "q4": return (q - 8) * s.double().T.repeat_interleave(32, 1)
        if f == "i4": return (q - 8) * s.double().T.repeat_interleave(128, 1)
        return q * s.double().T.repeat_interleave(32, 1) - o.double().T.repeat_interleave(32, 1)
    g = w.shape[1] // s.shape[0]
    return w.double() * s.double().T.repeat_interleave(g, 1)
pools = {}
FILE = {"z4": "i4"}
def pool_of(f, n=LAYERS):
    if f not in pools: pools[f] = [{nm: make(f, *sh) for nm, sh in SHAPES.items()} for _ in range(n)]
    return pools[f]
kern = {}
def kernel(d, n, fn):
    p = os.path.join(here, d, n + ".cubin")
    if p not in kern: kern[p] = Kernel(p, fn)
    return kern[p]
scratch = torch.zeros(8 << 20, device=dev, dtype=torch.uint8)
partial = torch.zeros(4 * 32 * 8512 + 4096, device=dev)
counters = torch.zeros(256, device=dev, dtype=torch.int32)
class Form:
    def __init__(self, d, f, spec):
        self.d, self.f, self.spec = d, f, dict(zip(("in", "out", "up", "down"), spec.split(",")))
        self.name = f"{d} {f} {spec}"
    def call(self, which, x, w, norm, residual, o, T, inputs, columns, swiglu, scale, pdl=True):
        f, sp = self.f, self.spec[which]; d = self.d
        through = sp == "T"; parts, sharing = (1, 1) if through else (int(sp[0]), int(sp[1]))
        TK = 8 if T <= 8 else 16 if T <= 16 else 32
        four = BITS[f] == 4; folded = f in ("qk", "q6", "q8", "q4") and T > 8
        halved = T <= 8 or f in ("i8", "i4", "z4", "r8") and T <= 16
        byb = f in ("qk", "q8", "q4") and not folded
        rd = 8 * (256 if four or byb else 128); depth = inputs // parts; rounds = -(-depth // rd); cols = rounds * rd
        ofseg = 4 if not four else 68 if byb else 20
        xb = T * (2 * cols + 64 + (ofseg * cols // 256 if halved else 0)) + (4 if four else 0); xb = -(-xb // 16) * 16
        if through: xb = 0
        grid = min(SMS, -(-columns // 4))
        clusters = grid // parts
        share = -(-columns // clusters); tile = 8 if swiglu else 16; tiles = -(-share // tile)
        sums = T * 4 * 8 * 20
        fac = 4 * (-(-depth // 128) * (2 * share if swiglu else share) + 32) if f in ("i8", "i4", "z4") else 0
        ring = 3 if four or byb else 4
        most = MOST - (10 << 10) - fac
        for room in (min(80 << 10, most), most):
            fit = (room - xb) // sums
            if fit < 0: continue
            held = tiles if fit >= tiles else max([h for h in range(1, fit + 1) if h * rounds % ring == 0] or [0])
            if held: break
        else: held = 0
        if not held: raise SystemExit("no room " + self.name)
        by = xb + held * sums + fac
        if not through:
            rT = 8 if T <= (16 if f in ("i8", "i4", "z4", "r8") else 8) else 32
            k = kernel(self.R, f"R-{FILE.get(f, f)}-{rT}-{int(norm is not None)}{int(x.dtype == torch.float32)}", b"linear_direct_ready")
            seg = -(-inputs // rd) * rd // 256
            split = self.R == "g" and norm is None
            k.launch((T, -(-seg // 8)) if split else T, 32 * min(seg, 8 if split else 32), 0, [x, norm, scratch, T, inputs, 0, 1e-5] + ([] if self.R == "m" else [inputs // parts]), pdl)
            x = scratch
        args = [x, w[0], None, None, residual, o] + [None] * 5 + [columns] * 5 + [T, inputs, columns, 0, 0, int(o.dtype == torch.float32), scale, 1e-5, held] + [None] * 5 + [0] * 5 + [w[1], w[2] if f == "z4" else None, None if f == "z4" else w[2], FB[f], partial if parts > 1 else None, counters if parts > 1 else None]
        k = kernel(d, f"{FILE.get(f, f)}-{TK}-{int(swiglu)}{int(residual is not None)}{int(through)}" + f"-{parts}{sharing}", b"linear_direct")
        k.launch(clusters * parts, 256, by, args, pdl)
Form.FIT = {}
nrm = (torch.rand(H, device=dev) + 0.5).bfloat16()
class Data:
    def __init__(s, T):
        s.h = torch.randn(T, H, device=dev); s.h0 = s.h.clone(); s.p = torch.empty(T, PROJ, device=dev, dtype=torch.bfloat16)
        s.y = torch.randn(T, INNER, device=dev).bfloat16(); s.m = torch.randn(T, MLP, device=dev).bfloat16()
def one(v, which, l, D, T, o=None, norm_onto=None, pdl=True):
    if which == "in": v.call("in", D.h, l["in"], nrm, None, D.p if o is None else o, T, H, PROJ, 0, 1.0, pdl)
    if which == "out": v.call("out", D.y, l["out"], None, D.h, D.h if o is None else o, T, INNER, H, 0, 0.22, pdl)
    if which == "up": v.call("up", D.h, l["up"], nrm, None, D.m if o is None else o, T, H, MLP, 1, 1.0, pdl)
    if which == "down": v.call("down", D.m, l["down"], None, D.h, D.h if o is None else o, T, MLP, H, 0, 0.22, pdl)
refs = {}
def check(v, T):
    f = v.f; l = pool_of(f)[3]
    if (f, T) not in refs:
        torch.manual_seed(5); D = Data(T)
        rms = lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * nrm.double()
        r = {}
        W = lambda n: real(f, *l[n]).T
        r["in"] = rms(D.h.double()) @ W("in"); r["out"] = D.h.double() + .22 * (D.y.double() @ W("out"))
        g = rms(D.h.double()) @ W("up"); r["up"] = torch.nn.functional.silu(g[:, :MLP]) * g[:, MLP:]; r["down"] = D.h.double() + .22 * (D.m.double() @ W("down"))
        refs[f, T] = D, r
    D, r = refs[f, T]; out = []
    for n, ref in r.items():
        o = torch.full(ref.shape, float("nan"), device=dev, dtype=torch.bfloat16 if n in ("in", "up") else torch.float32)
        one(v, n, l, D, T, o, pdl=False); torch.cuda.synchronize()
        base = 0 if n in ("in", "up") else D.h.double()
        out.append(((o.double() - ref).norm() / (ref - base).norm()).item())
    return out
def chain_of(v, T, only=None):
    D = Data(T); L = pool_of(v.f)
    def run():
        for l in L:
            for n in ("in", "out", "up", "down"):
                if only in (None, n): one(v, n, l, D, T)
    return run
if __name__ == "__main__":
    rows = []
    print(torch.cuda.get_device_name(), SMS, flush=True)
    for s in sys.argv[2:]:
        p = s.split(":"); f, T, spec = p[:3]; R = p[3] if len(p) > 3 else "f"; T = int(T)
        v = Form(p[4] if len(p) > 4 else sys.argv[1], f, spec); v.R = R; v.name += " " + R
        try:
            e = check(v, T); again = [check(v, T) for _ in range(2)]; same = all(a == e for a in again)
            gs = [graph(chain_of(v, T))] + [graph(chain_of(v, T, n)) for n in SHAPES]
            rows.append((v, T, e, same, gs))
        except SystemExit as x: print(s, x, flush=True)
    ts = time([g for r in rows for g in r[4]], 5)
    for i, (v, T, e, same, gs) in enumerate(rows):
        t = ts[i * 5:i * 5 + 5]
        print(f"T{T} {v.name:18s} chain {t[0]:.3f} ms; us: in {t[1]*25:.2f} out {t[2]*25:.2f} up {t[3]*25:.2f} down {t[4]*25:.2f}; same {same} err " + " ".join(f"{x:.2e}" for x in e), flush=True)
    print("counters", int(counters.abs().sum()))
