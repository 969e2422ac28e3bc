import ctypes, mmap, threading, time, torch
cu = ctypes.CDLL("libcuda.so.1"); torch.zeros(1, device="cuda"); P = ctypes.c_void_p
libc = ctypes.CDLL(None, use_errno=True)
def ms(t): return 1e3 * (time.perf_counter() - t)
def alloc(n):
    p = P(); t = time.perf_counter(); r = cu.cuMemHostAlloc(ctypes.byref(p), ctypes.c_size_t(n), 0); a = ms(t); assert r == 0, r
    t = time.perf_counter(); ctypes.memset(p, 0, n); return p, a, ms(t)
def mapped(n, huge):
    t = time.perf_counter(); m = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge: m.madvise(14)
    a = ctypes.addressof(ctypes.c_char.from_buffer(m)); ctypes.memset(a, 0, n); f = ms(t)
    t = time.perf_counter(); r = cu.cuMemHostRegister(P(a), ctypes.c_size_t(n), 0); assert r == 0, r
    return (m, a), f, ms(t)
MB = 1 << 20
def rows(name, make, n, k):
    got = [make(n) for _ in range(k)]; a = sorted(g[1] for g in got); b = sorted(g[2] for g in got)
    print(f"{name} {n//MB} MiB x{k}: first {a[k//2]:.2f} (max {a[-1]:.2f}) then {b[k//2]:.2f} (max {b[-1]:.2f}) ms; GiB/s {n*k/2**30/(sum(a)+sum(b))*1e3:.2f}")
    return got
class Beside:
    def __enter__(s):
        s.x = torch.zeros(1 << 20, device="cuda"); s.times = []; s.go = True
        def loop():
            while s.go:
                t = time.perf_counter()
                for _ in range(20): s.x.add_(1)
                torch.cuda.synchronize(); s.times.append(ms(t))
        s.t = threading.Thread(target=loop); s.t.start(); time.sleep(0.3); s.n0 = len(s.times); s.alone = sorted(s.times); return s
    def __exit__(s, *e):
        s.go = False; s.t.join(); d = sorted(s.times[s.n0:])
        print(f"   beside: alone median {s.alone[len(s.alone)//2]:.2f} max {s.alone[-1]:.2f}; during median {d[len(d)//2]:.2f} p99 {d[int(len(d)*.99)-1]:.2f} max {d[-1]:.2f} of {len(d)}")
keep = []
for name, make, n, k in [("alloc", alloc, 8*MB, 64), ("alloc", alloc, 64*MB, 16), ("alloc", alloc, 512*MB, 4),
        ("reg", lambda n: mapped(n, False), 8*MB, 64), ("reg huge", lambda n: mapped(n, True), 8*MB, 64), ("reg huge", lambda n: mapped(n, True), 64*MB, 16), ("reg huge", lambda n: mapped(n, True), 512*MB, 4)]:
    keep.append(rows(name, make, n, k))
    with Beside(): keep.append(rows(name + " beside", make, n, k))
