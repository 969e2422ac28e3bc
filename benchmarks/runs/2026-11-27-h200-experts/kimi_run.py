"""kimi_run.py NAME:RING_KB ...  Kimi-Linear's norm, router and experts of e4m3: layers in one launch, and a launch a layer."""
import sys, os
mine = sys.argv[1:]; sys.argv = sys.argv[:1]
import tiny_run as tr
from tiny_run import *
H, E, TOP, ALWAYS, I, L = 2304, 256, 8, 1, 1024, int(os.environ.get("LAYERS", 8))
class Kimi:
    def __init__(self):
        self.inner = 0; self.layers = []
        for i in range(L):
            self.layers.append({"gu": fp8(E + ALWAYS, 2 * I, H), "down": fp8(E + ALWAYS, H, I), "r": (torch.randn(E, H, device=dev) * 0.05).bfloat16(), "n3": torch.rand(H, device=dev) + .5,
                                "c": torch.randn(E, device=dev) * .05, "logits": torch.zeros(E, device=dev)})
        self.h0 = torch.randn(H, device=dev); self.h = [self.h0.clone(), torch.zeros_like(self.h0)]
        self.hn = torch.empty(H, device=dev, dtype=torch.bfloat16)
    def phases(self, n, first=0):
        out = []
        for i, l in list(enumerate(self.layers))[first:n]:
            a, b = self.h[i % 2], self.h[1 - i % 2]
            out.append(norm(x=a, weight=l["n3"], o=self.hn, w=l["r"], logits=l["logits"], inputs=H, columns=E, eps=1e-5, scale=1.0))
            out.append(up(x=self.hn, w=l["gu"][0], w_scale=l["gu"][1], logits=l["logits"], correction=l["c"], inputs=H, local=1, sigmoid=1, renormalise=1, sum_eps=1e-20, weight_scale=2.446))
            out.append(down(w=l["down"][0], w_scale=l["down"][1], residual=a, o=b, columns=H, scale=.5))
        return out
    def reference(self, n):
        h = self.h0.double(); off = 0; silu = torch.nn.functional.silu
        for l in self.layers[:n]:
            hn = h * torch.rsqrt((h * h).mean() + 1e-5) * l["n3"].double(); logits = l["r"].double() @ hn
            off = max(off, ((l["logits"].double() - logits).norm() / logits.norm()).item())
            s = torch.sigmoid(l["logits"].double()); e = (torch.sigmoid(l["logits"]) + l["c"]).topk(TOP).indices; p = s[e]; p = p / (p.sum() + 1e-20) * 2.446
            p = torch.cat([p, torch.ones(ALWAYS, device=dev, dtype=torch.float64)]); e = torch.cat([e, torch.arange(E, E + ALWAYS, device=dev)]); y = 0
            for q, k in zip(p, e):
                g = wide(l["gu"][0][k], l["gu"][1][k]) @ hn
                y = y + wide(l["down"][0][k], l["down"][1][k]) @ (silu(g[:I]) * g[I:] * q)
            h = h + .5 * y
        return h, off
class ChainK(Chain4):
    def __init__(self, path, ring): super().__init__(path, ring); self.bytes = (ring << 10) + 18432 + 10240 + 256
m = Kimi(); rows = []
for spec in mine:
    path, ring = spec.split(":"); c = ChainK(path + ".cubin", int(ring)); errs = []
    def reset(): m.h[0].copy_(m.h0); torch.cuda.synchronize()
    for n in (1, 2, 3):
        reset(); hold = c.prepare(m, m.phases(n)); c.launch(hold); torch.cuda.synchronize()
        ref, off = m.reference(n); got = m.h[n % 2].double()
        errs.append("%.1e/%.1e" % (((got - ref).norm() / (ref - m.h0.double()).norm()).item(), off))
    hs = []
    for _ in range(3): reset(); hold = c.prepare(m, m.phases(3)); c.launch(hold); torch.cuda.synchronize(); hs.append(m.h[1].clone())
    print(spec, "regs", c.k.regs, "err/logits", *errs, "same bits", all(torch.equal(hs[0], x) for x in hs), flush=True)
    full = c.prepare(m, m.phases(L)); one = [c.prepare(m, m.phases(i + 1, i)) for i in range(L)]
    c.launch(full); torch.cuda.synchronize()
    rows.append((spec, [graph(lambda: c.launch(full)), graph(lambda: [c.launch(p) for p in one])], c, full))
ts = time([g for r in rows for g in r[1]])
for i, r in enumerate(rows): print("%-20s a layer in one launch %.2f us, by itself %.2f" % (r[0], ts[2 * i] * 1000 / L, ts[2 * i + 1] * 1000 / L), flush=True)
for spec, _, c0, full in rows:
    path, ring = spec.split(":"); sp = path + "-s.cubin"
    if not os.path.exists(os.path.join(here, sp)): continue
    c = ChainK(sp, int(ring)); pr = c.prepare(m, m.phases(L)); s = torch.zeros(3 * L, SMS, 2, device=dev, dtype=torch.int64)
    for _ in range(3): c.launch(pr, s)
    torch.cuda.synchronize(); t = s.cpu().double() / 1000
    for i, k in enumerate(["norm", "up", "down"]):
        sel, prev = t[3 + i:-3:3], t[2 + i:-4:3]; last = prev[:, :, 1].max(1).values; d = lambda a: f"{a.mean().item():.2f}"
        print(sp, k, "total", d(sel[:, :, 1].max(1).values - last), "mean of blocks", d(sel[:, :, 1] - sel[:, :, 0]), "spread", d(sel[:, :, 1].max(1).values - sel[:, :, 1].min(1).values), flush=True)
