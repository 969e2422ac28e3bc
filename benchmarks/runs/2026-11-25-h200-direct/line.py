import torch, numpy as np, chain as c
def timeline(name, with_dummy, blocks=256, shared=8192):
    v = c.Real(name); L = c.layers(8); n = 40; per = 5 if with_dummy else 4
    clk = torch.zeros(n, per, 256, 8, dtype=torch.int64, device="cuda")
    h = torch.randn(1, c.H, device="cuda"); h0 = h.clone()
    p = torch.empty(1, c.PROJ, device="cuda", dtype=torch.bfloat16); m = torch.randn(1, c.MLP, device="cuda").bfloat16()
    state = torch.zeros(40, 1 << 19, device="cuda")
    d = c.Kernel(c.os.path.join(c.here, "dummy.cubin"), b"dummy")
    def one(place, x, w, norm, res, o, K, N, sw, sc, s, t):
        v.stamp = t; v.call(place, x, w, norm, res, o, 1, K, N, sw, sc, s)
    def go():
        h.copy_(h0)
        for i, l in enumerate(L):
            j = 0
            one("from", h, l["in"][0], c.norm, None, p, c.H, c.PROJ, 0, 1.0, l["in"][1], clk[i, j]); j += 1
            if with_dummy: d.launch(blocks, 128, shared, [state[i], p, 1 << 19, clk[i, j]]); j += 1
            one("onto", p.view(-1)[:c.INNER], l["out"][0], None, h, h, c.INNER, c.H, 0, 0.22, l["out"][1], clk[i, j]); j += 1
            one("from", h, l["up"][0], c.norm, None, m, c.H, c.MLP, 1, 1.0, l["up"][1], clk[i, j]); j += 1
            one("onto", m, l["down"][0], None, h, h, c.MLP, c.H, 0, 0.22, l["down"][1], clk[i, j]); j += 1
    g = c.graph(go)
    for _ in range(3): g.replay()
    torch.cuda.synchronize()
    t = clk.cpu().numpy().reshape(n * per, 256, 8)
    names = ["in", "ssd", "out", "up", "down"] if with_dummy else ["in", "out", "up", "down"]
    print("ms", c.time([g])[0], "; us relative to the end (last block) of the kernel before: start first..median..last, waited median, x ready, products' end, end median, end last")
    for k in range(per):
        rows = []
        for q in range(per + 1, n * per - 1):
            if q % per != k: continue
            a = t[q]; a = a[a[:, 5] > 0]; b = t[q - 1]; b = b[b[:, 5] > 0]
            e = b[:, 5].max()
            rows.append([a[:, 0].min() - e, np.median(a[:, 0]) - e, a[:, 0].max() - e, np.median(a[:, 1]) - e, np.median(a[:, 2]) - e, np.median(a[:, 3]) - e, np.median(a[:, 4]) - e, np.median(a[:, 5]) - e, a[:, 5].max() - e])
        r = np.median(np.array(rows), axis=0) / 1e3
        print(f"  {names[k]:5s}", " ".join(f"{n_} {x:.2f}" for n_, x in zip(("first", "start", "last", "asked", "waited", "x", "products", "end", "END"), r)))
for name in ("r3", "r4", "r5", "r6"):
    print(name); timeline(name, False); timeline(name, True)
    if name == "r4": timeline(name, True, 264, 100); timeline(name, True, 64, 8192)
