# Autotuning of Triton kernels.


def tune(most_warmup, most_rep, share):
    """Shortens Triton's autotuner, which compiles every configuration of a new kernel and measures each for an eighth of a
    second. Each is measured for these milliseconds, and the result is not cached on disk, so that later processes tune fully.
    With a share [n, of] only every `of`th configuration is tried, from the nth on; with [0, 0] they are tried until one runs,
    which is enough for a call that is not timed."""
    try:
        from triton import testing
        from triton.runtime.autotuner import Autotuner
    except BaseException:
        # No Triton, or a version with another autotuner, which is left unchanged.
        return False
    whole = getattr(testing.do_bench, "whole", testing.do_bench)
    prune = getattr(Autotuner.prune_configs, "whole", Autotuner.prune_configs)
    measure_one = getattr(Autotuner._bench, "whole", Autotuner._bench)
    ran = []

    def brief(call, warmup=25, rep=100, **more):
        return whole(call, warmup=min(warmup, most_warmup), rep=min(rep, most_rep), **more)

    def unkept(tuner, key, configs, measure):
        measure()
        return False

    def noted(tuner, *args, **more):
        times = measure_one(tuner, *args, **more)
        # A configuration that exceeds the GPU's resources has an infinite time.
        if (min(times) if isinstance(times, (list, tuple)) else times) < float("inf"):
            ran.append(True)
        return times

    def shared(tuner, *args, **more):
        configs = list(prune(tuner, *args, **more))
        return Tried(configs, share, ran) if share and len(configs) > 1 else configs

    brief.whole, noted.whole, shared.whole = whole, measure_one, prune
    testing.do_bench, Autotuner._bench, Autotuner.prune_configs = brief, noted, shared
    if hasattr(Autotuner, "check_disk_cache"):
        Autotuner.check_disk_cache = unkept
    return True


class Tried(list):
    """All configurations. Iteration yields those of a share, then the others until one has run."""

    def __init__(self, configs, share, ran):
        super().__init__(configs)
        self.share, self.ran = share, ran

    def __iter__(self):
        nth, of = self.share
        first = range(nth % len(self), len(self), of) if of else ()
        self.ran.clear()
        for at in first:
            yield self[at]
        for at in range(len(self)):
            if self.ran:
                return
            if at not in first:
                yield self[at]
