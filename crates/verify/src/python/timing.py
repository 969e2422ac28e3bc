# What ran, and how long it took.


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def watched(case, run):
    """Runs it once and gives (result, what ran): kernels on a GPU, operators of torch or functions elsewhere."""
    if torch is None:
        return watched_functions(run)
    from torch.profiler import ProfilerActivity, profile

    on_gpu = case.device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        result = run()
        synchronize(case.device)
    counts = {}
    for event in seen.events():
        if on_gpu and "CUDA" not in str(event.device_type):
            continue
        counts[event.name] = counts.get(event.name, 0) + 1
    return result, [{"name": name, "count": count} for name, count in counts.items()]


def watched_functions(run):
    counts = {}

    def see(frame, event, argument):
        if event == "call":
            name = "%s.%s" % (frame.f_globals.get("__name__", "?"), frame.f_code.co_name)
        elif event == "c_call":
            name = "%s.%s" % (getattr(argument, "__module__", None) or "builtins", argument.__name__)
        else:
            return
        # Generators and the like have no name of their own, and len() is no evidence.
        if "<" not in name and not name.startswith("builtins."):
            counts[name] = counts.get(name, 0) + 1

    sys.setprofile(see)
    try:
        result = run()
    finally:
        sys.setprofile(None)
    own = __name__ + "."
    return result, [{"name": name, "count": count} for name, count in counts.items() if not name.startswith(own) and name != "sys.setprofile"]


def poison(case, outputs):
    """Leaves NaN in freed memory of the outputs' sizes, where a library's next empty tensor is likely to be."""
    if torch is None:
        return
    filled = [torch.full_like(tensor, float("nan")) for tensor in outputs if tensor.is_floating_point()]
    synchronize(case.device)
    del filled


def heard_by_nobody(ids):
    pass


def heard(prepared):
    """One generation: for each token the seconds after which its ids were there, and how many they were."""
    steps = []

    def put(ids):
        # As numbers: what a GPU has yet to compute is not there.
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        steps.append([clock() - begin, len(ids)])

    synchronize(prepared.case.device)
    begin = clock()
    prepared.run(put)
    return steps


class Prepared:
    """A peer's call that was judged, as it is timed."""

    def __init__(self, case, run):
        self.case, self.run, self.graphs = case, run, {}
        self.flush, self.writes = None, 1

    def time(self, millis, fewest, most, replays):
        """Milliseconds of single runs, by the device's own clock; means of `replays` runs from a recorded graph."""
        timed = self.on_cpu if self.case.device == "cpu" else self.on_gpu
        if replays and self.case.device != "cpu":
            graph = self.graph(replays)
            one = lambda: timed(graph.replay) / replays
        else:
            replays, one = 1, lambda: timed(self.run)
        one()
        samples, begin = [], clock()
        while len(samples) < fewest or (len(samples) < most and (clock() - begin) * 1e3 < millis):
            samples.append(one())
        return samples, replays

    def graph(self, replays):
        if replays not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            self.run()
            synchronize("cuda")
            with torch.cuda.graph(graph):
                for _ in range(replays):
                    self.run()
            self.graphs[replays] = graph
        return self.graphs[replays]

    def on_cpu(self, run):
        begin = clock()
        run()
        return (clock() - begin) * 1e3

    def on_gpu(self, run):
        if self.flush is None:
            # Larger than the L2 cache: written before each run, so that none finds its inputs there.
            cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 << 20
            self.flush = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")
            self.writes = self.writes_that_hide(run)
        for _ in range(self.writes):
            self.flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def writes_that_hide(self, run):
        """How often the flush is written, so that the host has given the GPU every launch before the first one starts:
        a library's own time on the host is not measured, as firstlight's is not."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        begin.record()
        self.flush.zero_()
        end.record()
        end.synchronize()
        synchronize("cuda")
        start = clock()
        run()
        host = (clock() - start) * 1e3
        synchronize("cuda")
        return 1 + min(200, int(1.5 * host / max(begin.elapsed_time(end), 1e-3)))


