import sys, os, ctypes as C, statistics
sys.argv = [sys.argv[0]] + sys.argv[1:]
import torch
import chain as ch
from chain import *
L = int(os.environ.get("LAYERS", 40))
FIELDS = "kind:i pad:i x:p w:p norm:p bias:p residual:p o0:p o1:p o2:p o3:p o4:p o5:p conv_weight:p conv_bias:p initial_state:p final_state:p state_indices:p w_scale:p dt:p rate:p b:p c:p d:p z:p dt_bias:p start1:i start2:i start3:i start4:i start5:i tokens:i inputs:i columns:i norm_f32:i bias_f32:i out_f32:i scale:f eps:f conv_weight_f32:i conv_bias_f32:i conv_silu:i conv_first:i conv_channels:i x_f32:i swiglu:i convolved:i heads:i groups:i head_dim:i x_row:i dt_row:i b_row:i c_row:i z_row:i dt_f32:i rate_f32:i d_f32:i d_per_channel:i softplus:i dt_min:f dt_max:f".split()
class Phase(C.Structure):
    _fields_ = [(f.split(":")[0], {"i": C.c_int, "p": C.c_void_p, "f": C.c_float}[f.split(":")[1]]) for f in FIELDS]
SIZE = -(-C.sizeof(Phase) // 16) * 16
def phase(**k):
    p = Phase()
    for n, v in k.items(): setattr(p, n, v.data_ptr() if torch.is_tensor(v) else v)
    return p
HEADS, P, N = 64, 64, 128
CONV = INNER + 2 * N
def weights4(n, k):
    q = torch.randint(0, 16, (n, k), device=dev, dtype=torch.uint8); s = torch.rand(-(-k // 128), n, device=dev) * 0.02 + 0.005
    return (q[:, 0::2] | q[:, 1::2] << 4).contiguous(), s.float(), q
def wide(w, s, bits, q=None):
    if bits == 16: return w.float()
    if bits == 8: return w.float() * s[:, None]
    return (q.float() - 8) * s.T.repeat_interleave(128, 1)[:, :q.shape[1]]
class Model:
    def __init__(self, bits, n=L):
        self.bits = bits; self.layers = []
        for i in range(n):
            l = {}
            for name, sh in (("in", (PROJ, H)), ("out", (H, INNER)), ("up", (2 * MLP, H)), ("down", (H, MLP))):
                if bits == 4:
                    w, s, q = weights4(*sh); l[name] = (w, s, q if i < 2 else None)
                else: l[name] = weights(*sh, bits)[:2] + (None,)
            l["n1"] = torch.rand(H, device=dev) + .5; l["n2"] = torch.rand(INNER, device=dev) + .5; l["n3"] = torch.rand(H, device=dev) + .5
            l["cw"] = torch.randn(CONV, 4, device=dev) * .3; l["cb"] = torch.randn(CONV, device=dev) * .1
            l["cs"] = torch.randn(1, CONV, 3, device=dev); l["ss"] = torch.randn(1, HEADS, P, N, device=dev)
            l["rate"] = -torch.rand(HEADS, device=dev) - .5; l["d"] = torch.randn(HEADS, device=dev); l["db"] = torch.randn(HEADS, device=dev)
            self.layers.append(l)
        self.h0 = torch.randn(1, H, device=dev); self.h = self.h0.clone()
        self.z = torch.empty(INNER, device=dev, dtype=torch.bfloat16); self.xbc = torch.empty(CONV, device=dev, dtype=torch.bfloat16); self.dt = torch.empty(HEADS, device=dev, dtype=torch.bfloat16)
        self.y = torch.randn(INNER, device=dev).bfloat16(); self.m = torch.empty(MLP, device=dev, dtype=torch.bfloat16)
    def phases(self, n, scan=True):
        out = []
        def lin(x, w, columns, inputs, outs, **k):
            starts = [columns] * 5; at = 0
            for i, o in enumerate(outs[:-1]): at += o.numel(); starts[i] = at
            f = {f"o{i}": o for i, o in enumerate(outs)} | {f"start{i+1}": s for i, s in enumerate(starts)}
            if w[1] is not None: f["w_scale"] = w[1]
            return phase(kind=0, x=x, w=w[0], tokens=1, inputs=inputs, columns=columns, x_f32=int(x.dtype == torch.float32), out_f32=int(outs[0].dtype == torch.float32), eps=1e-5, norm_f32=1, bias_f32=1, **({"scale": 1.0} | f | k))
        for l in self.layers[:n]:
            out.append(lin(self.h, l["in"], PROJ, H, [self.z, self.xbc, self.dt], norm=l["n1"], convolved=1, conv_weight=l["cw"], conv_bias=l["cb"], initial_state=l["cs"], final_state=l["cs"], conv_weight_f32=1, conv_bias_f32=1, conv_silu=1, conv_first=INNER, conv_channels=CONV))
            if scan: out.append(phase(kind=1, x=self.xbc, b=self.xbc[INNER:], c=self.xbc[INNER + N:], dt=self.dt, rate=l["rate"], d=l["d"], z=self.z, dt_bias=l["db"], initial_state=l["ss"], final_state=l["ss"], o0=self.y, heads=HEADS, groups=1, head_dim=P, rate_f32=1, d_f32=1, bias_f32=1, softplus=1, dt_min=0.0, dt_max=1e30))
            out.append(lin(self.y, l["out"], H, INNER, [self.h], norm=l["n2"], residual=self.h, scale=.22))
            out.append(lin(self.h, l["up"], MLP, H, [self.m], norm=l["n3"], swiglu=1))
            out.append(lin(self.m, l["down"], H, MLP, [self.h], residual=self.h, scale=.22))
        return out
    def reference(self, n):
        h = self.h0[0].double(); rms = lambda x, w: x * torch.rsqrt((x * x).mean() + 1e-5) * w.double()
        silu = torch.nn.functional.silu
        for l in self.layers[:n]:
            W = {k: wide(*l[k][:2], self.bits, l[k][2]).double() for k in ("in", "out", "up", "down")}
            p = W["in"] @ rms(h, l["n1"]); z, xbc, dt = p[:INNER], p[INNER:INNER + CONV], p[INNER + CONV:]
            xbc = silu((torch.cat([l["cs"][0].double(), xbc[:, None]], 1) * l["cw"].double()).sum(1) + l["cb"].double())
            x, B, Cc = xbc[:INNER].view(HEADS, P), xbc[INNER:INNER + N], xbc[INNER + N:]
            dt = torch.nn.functional.softplus(dt + l["db"].double())
            s = torch.exp(dt * l["rate"].double())[:, None, None] * l["ss"][0].double() + (dt[:, None] * x)[:, :, None] * B
            y = ((s * Cc).sum(-1) + l["d"].double()[:, None] * x).reshape(-1) * silu(z)
            h = h + .22 * (W["out"] @ rms(y, l["n2"]))
            g = W["up"] @ rms(h, l["n3"])
            h = h + .22 * (W["down"] @ (silu(g[:MLP]) * g[MLP:]))
        return h
class Chain:
    def __init__(self, path, bits, round_, ring=4):
        self.k = Kernel(os.path.join(here, path), b"chain"); self.bits, self.round = bits, round_
        self.meeting = torch.zeros(1, device=dev, dtype=torch.int32); self.two = os.path.basename(path)[0] == "e"
    def prepare(self, phases):
        raw = b"".join(bytes(p).ljust(SIZE, b"\0") for p in phases)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(dev), len(phases)
    def launch(self, prepared, stamps=None, pdl=False, tiles=16):
        if self.two:
            by = (self.round << 10) + 20 * 1024 + 8192
            return self.k.launch(SMS, 544, by, [prepared[0], prepared[1], self.meeting, 0, 0, stamps], pdl)
        most = -(-MLP // self.round) * self.round; seg = -(-most // 256)
        by = -(-(most * 2 + 64 + 4 * seg) // 16) * 16 + tiles * 8 * 80
        self.k.launch(SMS, 256, by, [prepared[0], prepared[1], self.meeting, most, tiles, stamps], pdl)
models = {}
def model(bits):
    if bits not in models: models[bits] = Model(bits)
    return models[bits]
if __name__ == "__main__":
    names = sys.argv[1:]
    rows = []
    for spec in names:
        path, bits, rnd = spec.split(":"); bits, rnd = int(bits), int(rnd)
        m = model(bits); c = Chain(path, bits, rnd)
        states = [(l["cs"].clone(), l["ss"].clone()) for l in m.layers[:2]]
        ref = m.reference(2)
        m.h.copy_(m.h0); pr = c.prepare(m.phases(2)); c.launch(pr); torch.cuda.synchronize()
        err = ((m.h[0].double() - ref).norm() / (ref - m.h0[0].double()).norm()).item()
        for l, (a, b) in zip(m.layers, states): l["cs"].copy_(a); l["ss"].copy_(b)
        m.h.copy_(m.h0); one = m.phases(2)
        for p in one:
            pr1 = c.prepare([p]); c.launch(pr1); torch.cuda.synchronize()
        err1 = ((m.h[0].double() - ref).norm() / (ref - m.h0[0].double()).norm()).item()
        for l, (a, b) in zip(m.layers, states): l["cs"].copy_(a); l["ss"].copy_(b)
        full, noscan = c.prepare(m.phases(L)), c.prepare(m.phases(L, False))
        lin = {n: c.prepare([p for p in m.phases(L, False)[i::4]]) for i, n in enumerate(("in", "out", "up", "down"))}
        c.launch(full); torch.cuda.synchronize(); gs = [graph(lambda: c.launch(full)), graph(lambda: c.launch(noscan))] + [graph(lambda x=x: c.launch(x)) for x in lin.values()]
        rows.append((path, c.k.regs, err, err1, gs, full, noscan, lin, c)); print(path, c.k.regs, "%.1e %.1e" % (err, err1), flush=True); torch.cuda.synchronize()
    # today's kernels
    if os.path.exists(os.path.join(here, "variants.json")):
        import json
        for s in json.load(open(os.path.join(here, "variants.json"))):
            v = Real(**s) if "bits" not in s else Variant(**s)
            print(v.name, "errors", check(v, 1))
            rows.append((v.name, 0, 0, 0, [graph(chain(v, 1))]))
    ts = time([g for r in rows for g in r[4]]); at = 0
    for r in rows:
        t = ts[at:at + len(r[4])]; at += len(r[4])
        print(f"{r[0]:24s} regs {r[1]} err {r[2]:.1e} one by one {r[3]:.1e} | " + ("with scan %.3f ms, without %.3f | in a row us: " % (t[0], t[1]) + " ".join("%.2f" % (x * 1000 / L) for x in t[2:]) if len(t) > 1 else "chain %.3f ms" % t[0]), flush=True)
    for spec in names:
        path, bits, rnd = spec.split(":"); bits, rnd = int(bits), int(rnd)
        sp = path.replace(".cubin", "-t.cubin")
        if os.path.exists(os.path.join(here, sp)):
            m = model(bits); c = Chain(sp, bits, rnd); pr = c.prepare(m.phases(L))
            st = torch.zeros(8448 + 132 * 32, device=dev, dtype=torch.int64)
            for _ in range(3): c.launch(pr, st)
            torch.cuda.synchronize()
            t = st[:8448].view(132, 32, 2).cpu().double(); iss = st[8448:].view(132, 32).cpu().double()
            zero = t[:, 0, 0].min()
            for b in (0, 1, 40, 77, 131):
                print(sp, "block", b, "issued", " ".join("%.2f" % ((iss[b, i] - zero) / 1000) for i in range(16)), "| wait", " ".join("%.2f-%.2f" % tuple((t[b, i] - zero) / 1000) for i in range(16)), "| sums %.2f-%.2f" % tuple((t[b, 30] - zero) / 1000), flush=True)
            print(sp, "ends: min %.2f mean %.2f max %.2f" % tuple(((t[:, 30, 1] - zero) / 1000)[k] if isinstance(k, int) else k(((t[:, 30, 1] - zero) / 1000)) for k in (torch.min, torch.mean, torch.max)))
        sp = path.replace(".cubin", "-s.cubin")
        if not os.path.exists(os.path.join(here, sp)): continue
        m = model(bits); c = Chain(sp, bits, rnd); ph = m.phases(L); pr = c.prepare(ph)
        st = torch.zeros(len(ph), SMS, 4, device=dev, dtype=torch.int64)
        for _ in range(3): c.launch(pr, st)
        torch.cuda.synchronize(); t = st.cpu().double()
        begin = t[:, :, 0]; kinds = ["in", "scan", "out", "up", "down"]
        for i, k in enumerate(kinds):
            sel = t[5 + i:-5:5]  # phases of this kind, without the first and last layer
            prev = t[4 + i:-6:5]
            last = prev[:, :, 3].max(1).values
            d = lambda a: f"{a.mean().item()/1000:.2f}"
            print(sp, k, "total", d(sel[:, :, 3].max(1).values - last), "| last arrival to met (mean, max):", d((sel[:, :, 1] - last[:, None])), d((sel[:, :, 1] - last[:, None]).max(1).values), "x", d(sel[:, :, 2] - sel[:, :, 1]), "products", d(sel[:, :, 3] - sel[:, :, 2]), "spread of ends", d(sel[:, :, 3].max(1).values - sel[:, :, 3].min(1).values), flush=True)
