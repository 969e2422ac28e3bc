# How Triton's kernels find their configurations.


def tune(most_warmup, most_rep):
    """Triton measures every configuration of a kernel that is new to it for an eighth of a second. Here each is measured for
    these milliseconds, and what is found so is kept nowhere, for later processes are to find the best ones."""
    try:
        from triton import testing
        from triton.runtime.autotuner import Autotuner
    except BaseException:
        # No Triton, or one that is arranged otherwise: what is there tunes as it does.
        return False
    whole = getattr(testing.do_bench, "whole", testing.do_bench)

    def brief(call, warmup=25, rep=100, **more):
        return whole(call, warmup=min(warmup, most_warmup), rep=min(rep, most_rep), **more)

    def unkept(tuner, key, configs, measure):
        measure()
        return False

    brief.whole = whole
    testing.do_bench = brief
    if hasattr(Autotuner, "check_disk_cache"):
        Autotuner.check_disk_cache = unkept
    return True
