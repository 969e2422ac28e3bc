"""pk_run.py NAME:BITS:RING_KB[:block] ...  Record of persistent/cuda/phase.cuh."""
import sys, os
specs = sys.argv[1:]; sys.argv = sys.argv[:1]
import staying as st
from staying import *
LIN = "x:p w:p w_scale:p w_offset:p norm:p residual:p o0:p o1:p o2:p o3:p o4:p o5:p conv_weight:p conv_bias:p initial_state:p final_state:p state_indices:p x_packets:p packets:p form:i start1:i start2:i start3:i start4:i start5:i columns:i swiglu:i out_f32:i stored:i factor_bits:i scale:f eps:f conv_silu:i conv_first:i conv_channels:i".split()
SCAN = "x:p z:p dt:p b:p c:p rate:p d:p dt_bias:p initial_state:p final_state:p state_indices:p o:p x_packets:p z_packets:p dt_packets:p b_packets:p c_packets:p packets:p heads:i head_dim:i head_magic:u heads_of_group:i softplus:i stored:i dt_min:f dt_max:f".split()
types = {"i": C.c_int, "p": C.c_void_p, "f": C.c_float, "u": C.c_uint}
def struct(fields):
    class S(C.Structure): _fields_ = [(f.split(":")[0], types[f.split(":")[1]]) for f in fields]
    return S
Lin, Scn = struct(LIN), struct(SCAN)
REGIONS, REGION = 4, 16384
BITS = {"e8": 8, "q8": 8, "q4": 4, "qk": 4}
FACTOR = {"e8": 32, "q8": 16, "q4": 17, "qk": 32}
offsets = {}
class Form(Model):
    """A model whose weights are of a kind."""
    def __init__(self, kind, n=L):
        self.kind = kind
        super().__init__(8, n)
        if kind == "e8": return
        for i, l in enumerate(self.layers):
            for name, sh in (("in", (PROJ, H)), ("out", (H, INNER)), ("up", (2 * MLP, H)), ("down", (H, MLP))):
                n_, k = sh
                if kind == "q8":
                    q = torch.randint(-127, 128, sh, device=dev, dtype=torch.int8); s = (torch.rand(k // 32, n_, device=dev) * 1.2e-3 + 2e-4).half()
                    full = lambda q=q, s=s: q.double() * s.double().T.repeat_interleave(32, 1); w = q; off = None
                else:
                    q = torch.randint(0, 16, sh, device=dev, dtype=torch.uint8); w = (q[:, 0::2] | q[:, 1::2] << 4).contiguous()
                    g = 128 if kind == "q4" else 32
                    s = torch.rand(k // g, n_, device=dev) * 0.02 + 0.005; s = s.bfloat16() if kind == "q4" else s
                    if kind == "qk":
                        off = torch.rand(k // g, n_, device=dev) * 0.1 - 0.05; offsets[w.data_ptr()] = off
                        full = lambda q=q, s=s, off=off: q.double() * s.double().T.repeat_interleave(32, 1) - off.double().T.repeat_interleave(32, 1)
                    else: full = lambda q=q, s=s: (q.double() - 8) * s.double().T.repeat_interleave(128, 1)
                l[name] = (w, s, full if i < 2 else None, )
    def reference(self, n):
        if self.kind == "e8": return super().reference(n)
        h = self.h0[0].double(); rms = lambda x, w: x * torch.rsqrt((x * x).mean() + 1e-5) * w.double()
        silu = torch.nn.functional.silu
        for l in self.layers[:n]:
            W = {k: l[k][2]() for k in ("in", "out", "up", "down")}
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
forms = {}
def model(kind):
    if kind not in forms: forms[kind] = Form(kind)
    return forms[kind]
def packed(phases, packets, kind):
    out = []; n = len(phases); chunk = 8 * 2 * 4 * (128 // BITS[kind])
    for i, p in enumerate(phases):
        q = Scn() if p.kind == 1 else Lin()
        for f in (f.split(":")[0] for f in st.FIELDS):
            if hasattr(q, f): setattr(q, f, getattr(p, f))
        if p.kind == 1:
            q.o = p.o0; q.head_magic = -(-(1 << 32) // p.head_dim); q.heads_of_group = p.heads // p.groups
        else:
            loads = p.inputs // 8 // (64 if p.x_f32 else 128)
            q.form = loads * 4 + p.x_f32 * 2 + int(bool(p.norm))
            if not p.convolved: q.conv_channels = 0
            q.factor_bits = FACTOR[kind]
            if p.w in offsets: q.w_offset = offsets[p.w].data_ptr()
        q.stored = int(n == 1 or i + 1 == n or p.kind == 0 and bool(p.residual)) if not os.environ.get("STORE") else 1
        if n > 1 and i + 1 < n: q.packets = packets[i % REGIONS].data_ptr()
        if n > 1 and i > 0:
            base = packets[(i - 1) % REGIONS].data_ptr()
            if p.kind == 1:
                at = lambda c: base + 4 * c
                q.z_packets, q.x_packets, q.b_packets, q.c_packets, q.dt_packets = at(0), at(INNER), at(2 * INNER), at(2 * INNER + N), at(2 * INNER + 2 * N)
            else: q.x_packets = base
        out.append(q)
    return out
class Chain3:
    def __init__(self, path, bits, ring, extra, name=b"persistent_chain"):
        self.k = Kernel(os.path.join(here, path), name); self.bits, self.ring = bits, ring
        self.meeting = torch.zeros(2, device=dev, dtype=torch.int32)
        self.packets = torch.zeros(REGIONS, REGION, device=dev, dtype=torch.int64)
        self.extra = extra * 1024 + 26 * 1024 + 256
    def prepare(self, phases):
        ps = packed(phases, self.packets, self.bits); size = 224
        raw = b"".join((bytes(C.c_int(isinstance(p, Scn))) + bytes(4) + bytes(p)).ljust(size, b"\0") for p in ps)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).to(dev), len(ps)
    def launch(self, pr, stamps=None, pdl=False):
        self.k.launch(SMS, 288 if self.bits == 'e8' else 320, (self.ring << 10) + self.extra, [pr[0], pr[1], self.meeting] + [None] * 19 + [0] * 11 + [0.0, 0.0] + [0] * 3, pdl)
if __name__ == "__main__":
    rows = []
    print(torch.cuda.get_device_name(), SMS, flush=True)
    for spec in specs:
        path, bits, ring, extra = spec.split(":")[:4]
        m = model(bits); c = Chain3(path + ".cubin", bits, int(ring), int(extra))
        states = [(l["cs"].clone(), l["ss"].clone()) for l in m.layers[:2]]
        ref = m.reference(2)
        def reset():
            for l, (a, b) in zip(m.layers, states): l["cs"].copy_(a); l["ss"].copy_(b)
            m.h.copy_(m.h0)
        err = lambda: ((m.h[0].double() - ref).norm() / (ref - m.h0[0].double()).norm()).item()
        hold = []
        def go(ps): hold.append(c.prepare(ps)); c.launch(hold[-1]); torch.cuda.synchronize()
        reset(); go(m.phases(2)); e = err()
        reset()
        for p in m.phases(2): go([p])
        e1 = err(); reset()
        full, noscan = c.prepare(m.phases(L)), c.prepare(m.phases(L, False))
        c.launch(full); torch.cuda.synchronize()
        hs = []
        for _ in range(3): reset(); go(m.phases(2)); hs.append(m.h.clone())
        reset(); same = all(torch.equal(hs[0], x) for x in hs)
        gs = [graph(lambda: c.launch(full)), graph(lambda: c.launch(noscan))]
        rows.append((spec, gs, c, full, noscan)); print(spec, "regs", c.k.regs, "err %.1e one by one %.1e same bits %s" % (e, e1, same), flush=True)
    ts = time([g for r in rows for g in r[1]])
    for i, r in enumerate(rows): print("%-24s with scans %.3f ms, without %.3f" % (r[0], ts[2 * i], ts[2 * i + 1]), flush=True)
    for spec, _, c, *_ in rows:
        path, bits, ring, extra = spec.split(":")[:4]; sp = path + "-s.cubin"
        if not os.path.exists(os.path.join(here, sp)): continue
        m = model(bits); c = Chain3(sp, bits, int(ring), int(extra)); ph = m.phases(L); pr = c.prepare(ph)
        s = torch.zeros(len(ph), SMS, 5, device=dev, dtype=torch.int64)
        for _ in range(3): c.launch(pr, s)
        torch.cuda.synchronize(); t = s.cpu().double()
        for i, k in enumerate(["in", "scan", "out", "up", "down"]):
            sel, prev = t[5 + i:-5:5], t[4 + i:-6:5]
            last = prev[:, :, 4].max(1).values; d = lambda a: f"{a.mean().item()/1000:.2f}"
            print(sp, k, "total", d(sel[:, :, 4].max(1).values - last), "| begin->x there", d(sel[:, :, 1] - sel[:, :, 0]), "last end->x there", d((sel[:, :, 1] - last[:, None])), "x ready", d(sel[:, :, 2] - sel[:, :, 1]), "products", d(sel[:, :, 3] - sel[:, :, 2]), "finish", d(sel[:, :, 4] - sel[:, :, 3]), "spread", d(sel[:, :, 4].max(1).values - sel[:, :, 4].min(1).values), flush=True)
