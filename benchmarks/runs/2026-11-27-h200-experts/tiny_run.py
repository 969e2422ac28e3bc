"""tiny_run.py NAME:RING_KB[:COLUMNS] ...  h-tiny's layers of e4m3 in one launch: projections, convolution, scan, norm and router, experts. Records of persistent/cuda/phase.cuh."""
import sys, os
specs = sys.argv[1:]; sys.argv = sys.argv[:1]
from chain import *
from chain import Kernel, graph, time
L = int(os.environ.get("LAYERS", 40))
LIN = "x:p w:p w_scale:p w_offset:p norm:p residual:p o0:p o1:p o2:p o3:p o4:p o5:p conv_weight:p conv_bias:p initial_state:p final_state:p state_indices:p x_packets:p packets:p form:i inputs:i start1:i start2:i start3:i start4:i start5:i columns:i swiglu:i out_f32:i stored:i factor_bits:i scale:f eps:f conv_silu:i conv_first:i conv_channels:i".split()
SCAN = "x:p z:p dt:p b:p c:p rate:p d:p dt_bias:p initial_state:p final_state:p state_indices:p o:p x_packets:p z_packets:p dt_packets:p b_packets:p c_packets:p packets:p heads:i head_dim:i head_magic:u heads_of_group:i softplus:i stored:i dt_min:f dt_max:f".split()
NORM = "x:p weight:p o:p w:p logits:p x_packets:p packets:p inputs:i columns:i eps:f scale:f".split()
UP = "x:p w:p w_scale:p logits:p correction:p logits_packets:p packets:p inputs:i local:i sigmoid:i renormalise:i sum_eps:f weight_scale:f".split()
DOWN = "w:p w_scale:p residual:p o:p x_packets:p packets:p columns:i scale:f".split()
types = {"i": C.c_int, "p": C.c_void_p, "f": C.c_float, "u": C.c_uint}
def struct(fields, kind):
    class S(C.Structure):
        _fields_ = [(f.split(":")[0], types[f.split(":")[1]]) for f in fields]
    S.kind = kind
    def make(**k):
        s = S()
        for n, v in k.items(): setattr(s, n, v.data_ptr() if torch.is_tensor(v) else v)
        return s
    return make
lin, scan, norm, up, down = struct(LIN, 0), struct(SCAN, 1), struct(NORM, 2), struct(UP, 3), struct(DOWN, 4)
PLACES, PLACE, SIZE = 4, 16384, 240
HEADS, P, N = 48, 64, 128
E, TOP, ALWAYS, I = 64, 6, 2, 512
def fp8(*sh):
    w = torch.randn(*sh, device=dev) * 0.03; s = w.abs().amax(-1) / 448
    return (w / s[..., None]).to(torch.float8_e4m3fn), s.float().contiguous()
wide = lambda w, s: w.float().double() * s.double()[..., None]
class Tiny:
    def __init__(self, H, n=L):
        self.H = H; self.inner = 2 * H; self.heads = self.inner // P
        INNER = self.inner; self.conv = INNER + 2 * N; self.proj = INNER + self.conv + self.heads
        self.layers = []
        for i in range(n):
            l = {"in": fp8(self.proj, H), "out": fp8(H, INNER), "gu": fp8(E + ALWAYS, 2 * I, H), "down": fp8(E + ALWAYS, H, I), "r": (torch.randn(E, H, device=dev) * 0.1).bfloat16()}
            l["n1"] = torch.rand(H, device=dev) + .5; l["n2"] = torch.rand(INNER, device=dev) + .5; l["n3"] = torch.rand(H, device=dev) + .5
            l["cw"] = torch.randn(self.conv, 4, device=dev) * .3; l["cb"] = torch.randn(self.conv, device=dev) * .1
            l["cs"] = torch.randn(1, self.conv, 3, device=dev); l["ss"] = torch.randn(1, self.heads, P, N, device=dev)
            l["rate"] = -torch.rand(self.heads, device=dev) - .5; l["d"] = torch.randn(self.heads, device=dev); l["db"] = torch.randn(self.heads, device=dev)
            l["logits"] = torch.zeros(E, device=dev)
            self.layers.append(l)
        self.h0 = torch.randn(H, device=dev); self.h = [self.h0.clone(), torch.zeros_like(self.h0)]
        b = lambda n: torch.empty(n, device=dev, dtype=torch.bfloat16)
        self.z, self.xbc, self.dt, self.y, self.hn = b(INNER), b(self.conv), b(self.heads), b(INNER), b(H)
    def phases(self, n):
        H, INNER = self.H, self.inner; out = []
        x_form = {True: 4 * 4 + 3, False: 4 * 4 + 1}
        def linear(form, x, w, columns, inputs, outs, **k):
            starts = [columns] * 5; at = 0
            for i, o in enumerate(outs[:-1]): at += o.numel(); starts[i] = at
            f = {f"o{i}": o for i, o in enumerate(outs)} | {f"start{i+1}": s for i, s in enumerate(starts)}
            return lin(form=form, x=x, w=w[0], w_scale=w[1], inputs=inputs, columns=columns, out_f32=int(outs[0].dtype == torch.float32), eps=1e-5, factor_bits=32, stored=1, **({"scale": 1.0} | f | k))
        for i, l in enumerate(self.layers[:n]):
            a, b = self.h[i % 2], self.h[1 - i % 2]
            out.append(linear(x_form[True], a, l["in"], self.proj, H, [self.z, self.xbc, self.dt], norm=l["n1"], conv_weight=l["cw"], conv_bias=l["cb"], initial_state=l["cs"], final_state=l["cs"], conv_silu=1, conv_first=INNER, conv_channels=self.conv))
            out.append(scan(x=self.xbc, b=self.xbc[INNER:], c=self.xbc[INNER + N:], dt=self.dt, rate=l["rate"], d=l["d"], z=self.z, dt_bias=l["db"], initial_state=l["ss"], final_state=l["ss"], o=self.y, heads=self.heads, heads_of_group=self.heads, head_dim=P, head_magic=-(-(1 << 32) // P), softplus=1, stored=1, dt_min=0.0, dt_max=1e30))
            out.append(linear(x_form[False], self.y, l["out"], H, INNER, [a], norm=l["n2"], residual=a, scale=.22))
            out.append(norm(x=a, weight=l["n3"], o=self.hn, w=l["r"], logits=l["logits"], inputs=H, columns=E, eps=1e-5, scale=1.0))
            out.append(up(x=self.hn, w=l["gu"][0], w_scale=l["gu"][1], logits=l["logits"], inputs=H, local=1, renormalise=1, sum_eps=0.0, weight_scale=1.0))
            out.append(down(w=l["down"][0], w_scale=l["down"][1], residual=a, o=b, columns=H, scale=.22))
        return out
    def reference(self, n):
        """By the router's choice as the kernels' logits have it; and how far these are off."""
        H, INNER = self.H, self.inner
        h = self.h0.double(); rms = lambda x, w: x * torch.rsqrt((x * x).mean() + 1e-5) * w.double()
        silu = torch.nn.functional.silu; off = 0
        for l in self.layers[:n]:
            p = wide(*l["in"]) @ rms(h, l["n1"]); z, xbc, dt = p[:INNER], p[INNER:INNER + self.conv], p[INNER + self.conv:]
            xbc = silu((torch.cat([l["cs0"][0].double(), xbc[:, None]], 1) * l["cw"].double()).sum(1) + l["cb"].double())
            x, B, Cc = xbc[:INNER].view(self.heads, P), xbc[INNER:INNER + N], xbc[INNER + N:]
            dt = torch.nn.functional.softplus(dt + l["db"].double())
            s = torch.exp(dt * l["rate"].double())[:, None, None] * l["ss0"][0].double() + (dt[:, None] * x)[:, :, None] * B
            y = ((s * Cc).sum(-1) + l["d"].double()[:, None] * x).reshape(-1) * silu(z)
            h = h + .22 * (wide(*l["out"]) @ rms(y, l["n2"]))
            hn = rms(h, l["n3"]); logits = l["r"].double() @ hn
            off = max(off, ((l["logits"].double() - logits).norm() / logits.norm()).item())
            v, e = l["logits"].double().topk(TOP); p = torch.cat([torch.softmax(v, 0), torch.ones(ALWAYS, device=dev, dtype=torch.float64)])
            e = torch.cat([e, torch.arange(E, E + ALWAYS, device=dev)]); y = 0
            for q, k in zip(p, e):
                g = wide(l["gu"][0][k], l["gu"][1][k]) @ hn
                y = y + wide(l["down"][0][k], l["down"][1][k]) @ (silu(g[:I]) * g[I:] * q)
            h = h + .22 * y
        return h, off
class Chain4:
    def __init__(self, path, ring):
        self.k = Kernel(os.path.join(here, path), b"persistent_chain"); self.bytes = (ring << 10) + 26 * 1024 + 256
        self.launches = torch.zeros(2, device=dev, dtype=torch.int32); self.packets = torch.zeros(PLACES, PLACE, device=dev, dtype=torch.int64)
    def prepare(self, m, phases):
        at = lambda i: self.packets[i % PLACES].data_ptr()
        INNER = m.inner
        for i, p in enumerate(phases):
            if i + 1 < len(phases): p.packets = at(i)
            if i == 0: continue
            base = at(i - 1)
            if p.kind == 1:
                p.z_packets, p.x_packets, p.b_packets, p.c_packets, p.dt_packets = base, base + 4 * INNER, base + 8 * INNER, base + 8 * INNER + 4 * N, base + 8 * INNER + 8 * N
            elif p.kind == 3: p.logits_packets = base
            else: p.x_packets = base
        raw = b"".join((bytes(C.c_int(p.kind)) + bytes(4) + bytes(p)).ljust(SIZE, b"\0") for p in phases)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(dev), len(phases)
    def launch(self, pr, stamps=None):
        self.k.launch(SMS, 288, self.bytes, [pr[0], pr[1], self.launches, stamps] + [None] * 18 + [0] * 12 + [0.0, 0.0] + [0] * 3, False)
models = {}
if __name__ == "__main__":
    print(torch.cuda.get_device_name(), SMS, flush=True)
    rows = []
    for spec in specs:
        path, ring, *more = spec.split(":"); H = int(more[0]) if more else 1536
        m = models.setdefault(H, None) or Tiny(H); models[H] = m
        c = Chain4(path + ".cubin", int(ring))
        for l in m.layers: l.setdefault("cs0", l["cs"].clone()); l.setdefault("ss0", l["ss"].clone())
        def reset():
            for l in m.layers[:3]: l["cs"].copy_(l["cs0"]); l["ss"].copy_(l["ss0"])
            m.h[0].copy_(m.h0); torch.cuda.synchronize()
        errs = []
        for n in (1, 2, 3):
            reset(); hold = c.prepare(m, m.phases(n)); c.launch(hold); torch.cuda.synchronize()
            ref, off = m.reference(n); got = m.h[n % 2].double()
            errs.append("%.1e/%.1e" % (((got - ref).norm() / (ref - m.h0.double()).norm()).item(), off))
        hs = []
        for _ in range(3): reset(); hold = c.prepare(m, m.phases(3)); c.launch(hold); torch.cuda.synchronize(); hs.append(m.h[1].clone())
        same = all(torch.equal(hs[0], x) for x in hs)
        full = c.prepare(m, m.phases(L)); c.launch(full); torch.cuda.synchronize()
        rows.append((spec, graph(lambda: c.launch(full)), c, full, m)); print(spec, "regs", c.k.regs, "err/logits", *errs, "same bits", same, flush=True)
    ts = time([r[1] for r in rows])
    for i, r in enumerate(rows): print("%-24s %.3f ms, a layer %.2f us" % (r[0], ts[i], ts[i] * 1000 / L), flush=True)
    for spec, _, c0, full, m in rows:
        path, ring, *_ = spec.split(":"); sp = path + "-s.cubin"
        if not os.path.exists(os.path.join(here, sp)): continue
        c = Chain4(sp, int(ring)); pr = c.prepare(m, m.phases(L)); n = 6 * L
        s = torch.zeros(n, SMS, 2, device=dev, dtype=torch.int64)
        for _ in range(3): c.launch(pr, s)
        torch.cuda.synchronize(); t = s.cpu().double() / 1000
        for i, k in enumerate(["in", "scan", "out", "norm", "up", "down"]):
            sel, prev = t[6 + i:-6:6], t[5 + i:-7:6]
            last = prev[:, :, 1].max(1).values; d = lambda a: f"{a.mean().item():.2f}"
            print(sp, k, "total", d(sel[:, :, 1].max(1).values - last), "mean of blocks", d(sel[:, :, 1] - sel[:, :, 0]), "spread", d(sel[:, :, 1].max(1).values - sel[:, :, 1].min(1).values), flush=True)
