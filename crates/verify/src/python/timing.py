# Profiling and timing.


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def profiled(case, run):
    """Runs a call once; returns the result and counts by name of GPU kernels, or on a CPU of torch operators or functions."""
    if torch is None:
        return profiled_functions(run)
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


def profiled_functions(run):
    counts = {}

    def see(frame, event, argument):
        if event == "call":
            name = "%s.%s" % (frame.f_globals.get("__name__", "?"), frame.f_code.co_name)
        elif event == "c_call":
            name = "%s.%s" % (getattr(argument, "__module__", None) or "builtins", argument.__name__)
        else:
            return
        # Lambdas and generators have no name, and builtins such as len() are no evidence.
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
    """Fills and frees memory of the outputs' sizes with NaN, which a library's next empty tensor probably reuses."""
    if torch is None:
        return
    filled = [torch.full_like(tensor, float("nan")) for tensor in outputs if tensor.is_floating_point()]
    synchronize(case.device)
    del filled


def ignore_ids(ids):
    pass


def timed_generation(prepared):
    """Runs one generation; returns for each step the seconds until its ids were on the host, and their number."""
    steps = []

    def put(ids):
        # Copies the ids to the host, which waits for the GPU.
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        steps.append([clock() - begin, len(ids)])

    synchronize(prepared.case.device)
    begin = clock()
    prepared.run(put)
    return steps


class Prepared:
    """A judged call of a peer that can be timed."""

    def __init__(self, case, run):
        self.case, self.run, self.graphs = case, run, {}
        self.flush, self.writes = None, 1

    def time(self, millis, fewest, most, replays):
        """Milliseconds of single runs by the device's clock; with `replays`, means of that many runs in a CUDA graph."""
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
            # Larger than L2, and written before each run, so that inputs are not in L2.
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
        """How often the flush buffer is written so that the GPU is busy until the host has enqueued all launches of a run:
        host time is not measured, neither the library's nor firstlight's."""
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


