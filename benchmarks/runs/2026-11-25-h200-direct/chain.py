"""Chain of h-micro's four projections, 40 layers: variants of linear_stream (cubins beside this file) timed as graphs with PDL."""
import ctypes as C, sys, os, json, statistics
import torch
here = os.path.dirname(os.path.abspath(__file__))
cu = C.CDLL("libcuda.so.1")
torch.zeros(1, device="cuda")
dev = torch.device("cuda")
SMS = torch.cuda.get_device_properties(0).multi_processor_count
def ok(r, what=""):
    if r: raise SystemExit(f"{what} failed: {r}")
class Attr(C.Structure):
    _fields_ = [("id", C.c_uint), ("pad", C.c_uint), ("value", C.c_ubyte * 64)]
class Config(C.Structure):
    _fields_ = [(n, C.c_uint) for n in ("gx","gy","gz","bx","by","bz","shared")] + [("stream", C.c_void_p), ("attrs", C.POINTER(Attr)), ("n", C.c_uint)]
class Kernel:
    def __init__(self, path, name=b"linear_stream"):
        m = C.c_void_p(); ok(cu.cuModuleLoad(C.byref(m), path.encode()), "load " + path)
        self.f = C.c_void_p(); ok(cu.cuModuleGetFunction(C.byref(self.f), m, name), "function")
        v = C.c_int(); cu.cuFuncGetAttribute(C.byref(v), 4, self.f); self.regs = v.value
    def launch(self, grid, block, shared, args, pdl=True):
        ok(cu.cuFuncSetAttribute(self.f, 8, shared), f"shared {shared}")
        boxes = [C.c_void_p(0 if a is None else a.data_ptr()) if (a is None or torch.is_tensor(a)) else C.c_float(a) if isinstance(a, float) else C.c_int(a) for a in args]
        ptrs = (C.c_void_p * len(boxes))(*[C.cast(C.pointer(b), C.c_void_p) for b in boxes])
        at = Attr(); at.id = 6; at.value[0] = 1
        cfg = Config(grid, 1, 1, block, 1, 1, shared, torch.cuda.current_stream().cuda_stream, C.pointer(at), 1 if pdl else 0)
        ok(cu.cuLaunchKernelEx(C.byref(cfg), self.f, ptrs, None), "launch")
FEW = 8
MOST = 232448
class Variant:
    """name; bits; warps; step; stages candidates (few); bytes a step; files: from / onto"""
    def __init__(self, name, bits, frm, onto, step=64, warps=8, stages=None, rows=16, clocks=None, fixed_bytes=None, step_bytes=None, carve=None, direct=0, loads=4):
        self.direct, self.loads = direct, loads
        self.carve = carve
        self.name, self.bits, self.step, self.warps, self.rows = name, bits, step, warps, rows
        self.stages = stages or ([6,5,4] if bits == 16 else [12,10,8])
        self.step_bytes = step_bytes or rows * step * bits // 8
        self.files = {"from": frm, "onto": onto}
        self.kernels = {}
        self.clocks = clocks
    def kernel(self, place, stages):
        key = (place, stages)
        if key not in self.kernels:
            k = self.kernels[key] = Kernel(os.path.join(here, self.files[place].format(stages=stages)))
            if self.carve is not None: ok(cu.cuFuncSetAttribute(k.f, 9, self.carve), "carve")
        return self.kernels[key]
    def call(self, place, x, w, norm, residual, o, tokens, inputs, columns, swiglu, scale, w_scale, pdl=True, clock=None):
        rnd = self.warps * self.step if not self.direct else self.warps * self.loads * 4 * (128 // self.bits)
        allx = -(-inputs // rnd) * rnd
        half = (MOST + 1024) // 2 - 1024
        sums = self.warps * 20 * 4 * 2 * (self.rows // 16)
        sq = -(-inputs // 256) * 4 if norm is not None else 0
        for st in self.stages:
            by = self.warps * st * self.step_bytes + tokens * (sums + 2 * allx + 64 + sq)
            if self.direct or by <= half - 128: break
        else: raise SystemExit("no room")
        if self.direct:
            tiles = -(-(-(-columns // SMS)) // (8 if swiglu else 16))
            st, by = 0, tokens * (2 * allx + 64) + (-(-tokens * -(-inputs // 256) // 4) * 16 if norm is not None else 0) + tiles * self.warps * tokens * 80
        much = not self.direct and (2 if swiglu else 1) * columns * inputs * self.bits // 8 >= 4 << 20
        if place == "from" and much: by = half + 128
        deferred = 1 if norm is not None else 0
        x_f32 = int(x.dtype == torch.float32)
        args = [x, w, norm, None, residual, o, None, None, None, None, None] + [columns] * 5 + [tokens, inputs, columns, x_f32, 0, 0, int(o.dtype == torch.float32), int(swiglu), scale, 1e-5, allx, 1, deferred, 0,
                clock, None, None, None, None, 0, 0, 0, 0, 0, w_scale]
        self.kernel(place, st).launch(min(SMS, -(-columns // 4)), 32 * self.warps, by, args, pdl)
class Real(Variant):
    """linear_direct as it stands"""
    def __init__(self, name, carve=None, dummy=None, dummy_carve=None):
        self.name, self.bits, self.carve, self.dummy, self.dummy_carve = name, 8, carve, dummy, dummy_carve
        self.kernels = {}
    def call(self, place, x, w, norm, residual, o, tokens, inputs, columns, swiglu, scale, w_scale, pdl=True, clock=None):
        key = (int(norm is not None), int(x.dtype == torch.float32), int(residual is not None), int(swiglu))
        if key not in self.kernels:
            k = self.kernels[key] = Kernel(os.path.join(here, self.name + "-%d%d%d%d.cubin" % key), b"linear_direct")
            if self.carve is not None: ok(cu.cuFuncSetAttribute(k.f, 9, self.carve), "carve")
        seg = -(-inputs // 256) if norm is not None else 0
        xb = tokens * (2 * (-(-inputs // 1024) * 1024) + 64 + 4 * seg)
        grid = min(SMS, -(-columns // 4)); tiles = -(-(-(-columns // grid)) // (8 if swiglu else 16))
        by = -(-xb // 16) * 16 + tiles * tokens * 4 * 8 * 20
        args = [x, w, norm, None, residual, o, None, None, None, None, None] + [columns] * 5 + [tokens, inputs, columns, 0, 0, int(o.dtype == torch.float32), scale, 1e-5, tiles] + [getattr(self, 'stamp', None)] + [None] * 4 + [0] * 5 + [w_scale]
        self.kernels[key].launch(grid, 256, by, args, pdl)
        if self.dummy and place == "from" and not swiglu and columns > 4096:
            if "d" not in self.kernels:
                k = self.kernels["d"] = Kernel(os.path.join(here, "dummy.cubin"), b"dummy")
                if self.dummy_carve is not None: ok(cu.cuFuncSetAttribute(k.f, 9, self.dummy_carve), "carve")
                self.state = torch.zeros(40, 1 << 19, device="cuda"); self.at = 0
            st = self.state[self.at % 40]; self.at += 1
            self.kernels["d"].launch(256, 128, self.dummy, [st, o, 1 << 19], pdl)
def graph(fn):
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        fn(); s.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=s): fn()
    torch.cuda.synchronize(); return g
def time(gs, reps=9):
    """median ms of each, interleaved"""
    out = [[] for _ in gs]
    for g in gs: g.replay()
    torch.cuda.synchronize()
    for _ in range(reps):
        for i, g in enumerate(gs):
            a, b = torch.cuda.Event(True), torch.cuda.Event(True)
            a.record(); g.replay(); b.record(); b.synchronize(); out[i].append(a.elapsed_time(b))
    return [statistics.median(o) for o in out]
H, INNER, PROJ, MLP = 2048, 4096, 8512, 8192
LAYERS = 40
torch.manual_seed(1)
def weights(n, k, bits):
    w = torch.randn(n, k, device=dev) * 0.05
    if bits == 16: return w.bfloat16(), None, w.bfloat16().double
    s = (w.abs().amax(1) / 448)
    q = (w / s[:, None]).to(torch.float8_e4m3fn)
    return q, s.float(), None
def real(w, s): return w.double() if s is None else w.float().double() * s.double()[:, None]
pool = {}
def layers(bits):
    if bits not in pool:
        pool[bits] = [{n: weights(*sh, bits)[:2] for n, sh in (("in", (PROJ, H)), ("out", (H, INNER)), ("up", (2 * MLP, H)), ("down", (H, MLP)))} for _ in range(LAYERS)]
    return pool[bits]
norm = (torch.rand(H, device=dev) + 0.5).bfloat16()
def chain(v, T=1, only=None, n=LAYERS, pdl=True):
    L = layers(v.bits)
    h = torch.randn(T, H, device=dev); h0 = h.clone()
    p = torch.empty(T, PROJ, device=dev, dtype=torch.bfloat16); xin = torch.randn(T, INNER, device=dev).bfloat16()
    m = torch.randn(T, MLP, device=dev).bfloat16()
    def run():
        if only is None: h.copy_(h0)
        for l in L[:n]:
            if only in (None, "in"): v.call("from", h, l["in"][0], norm, None, p, T, H, PROJ, 0, 1.0, l["in"][1], pdl)
            if only in (None, "out"): v.call("onto", (p.view(-1)[:T * INNER] if T == 1 else xin), l["out"][0], None, h, h, T, INNER, H, 0, 0.22, l["out"][1], pdl)
            if only in (None, "up"): v.call("from", h, l["up"][0], norm, None, m, T, H, MLP, 1, 1.0, l["up"][1], pdl)
            if only in (None, "down"): v.call("onto", m, l["down"][0], None, h, h, T, MLP, H, 0, 0.22, l["down"][1], pdl)
    return run
def check(v, T=1):
    l = layers(v.bits)[3]
    h = torch.randn(T, H, device=dev); worst = 0
    def rms(x): return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * norm.double()
    o = torch.full((T, PROJ), float("nan"), device=dev, dtype=torch.bfloat16)
    v.call("from", h, l["in"][0], norm, None, o, T, H, PROJ, 0, 1.0, l["in"][1], False); torch.cuda.synchronize()
    ref = rms(h.double()) @ real(*l["in"]).T; e1 = ((o.double() - ref).norm() / ref.norm()).item()
    x = torch.randn(T, INNER, device=dev).bfloat16(); o = torch.full((T, H), float("nan"), device=dev)
    v.call("onto", x, l["out"][0], None, h, o, T, INNER, H, 0, 0.22, l["out"][1], False); torch.cuda.synchronize()
    ref = h.double() + 0.22 * (x.double() @ real(*l["out"]).T); e2 = ((o.double() - ref).norm() / ref.norm()).item()
    o = torch.full((T, MLP), float("nan"), device=dev, dtype=torch.bfloat16)
    v.call("from", h, l["up"][0], norm, None, o, T, H, MLP, 1, 1.0, l["up"][1], False); torch.cuda.synchronize()
    g = rms(h.double()) @ real(*l["up"]).T; ref = torch.nn.functional.silu(g[:, :MLP]) * g[:, MLP:]; e3 = ((o.double() - ref).norm() / ref.norm()).item()
    x = torch.randn(T, MLP, device=dev).bfloat16(); o = torch.full((T, H), float("nan"), device=dev)
    v.call("onto", x, l["down"][0], None, h, o, T, MLP, H, 0, 0.22, l["down"][1], False); torch.cuda.synchronize()
    ref = h.double() + 0.22 * (x.double() @ real(*l["down"]).T); e4 = ((o.double() - ref).norm() / ref.norm()).item()
    return [e1, e2, e3, e4]
if __name__ == "__main__":
    spec = json.load(open(os.path.join(here, "variants.json")))
    vs = [Real(**s) if 'bits' not in s else Variant(**s) for s in spec]
    Ts = [int(t) for t in (sys.argv[1] if len(sys.argv) > 1 else "1").split(",")]
    for T in Ts:
        rows = []
        for v in vs:
            try: e = check(v, T)
            except SystemExit as x: print(v.name, x); continue
            row = [v.name, " ".join(f"{x:.1e}" for x in e)]
            try:
                gs = [graph(chain(v, T))] + [graph(chain(v, T, only=o)) for o in ("in", "out", "up", "down")]
                rows.append((row, gs))
            except SystemExit as x: print(v.name, x)
        ts = time([g for _, gs in rows for g in gs])
        for i, (row, gs) in enumerate(rows):
            t = ts[i * 5:i * 5 + 5]
            print(f"T{T} {row[0]:16s} chain {t[0]:.3f} ms; in a row, us: in {t[1]*25:.2f} out {t[2]*25:.2f} up {t[3]*25:.2f} down {t[4]*25:.2f}; err {row[1]}", flush=True)
