# How Triton's kernels find their configurations.

# Milliseconds that each configuration is measured for where any of them will do.
BRIEF = {"warmup": 1, "rep": 4}


def tune_briefly():
    """Triton measures every configuration of a kernel that is new to it for an eighth of a second. Where a call is verified
    and not timed, any of its configurations will do: they are measured for less, and what is found so is kept nowhere, for
    later processes are to find the best ones."""
    try:
        from triton import testing
        from triton.runtime.autotuner import Autotuner
    except BaseException:
        # No Triton, or one that is arranged otherwise: what is there tunes as it does.
        return False
    whole = testing.do_bench

    def brief(call, warmup=25, rep=100, **more):
        return whole(call, warmup=min(warmup, BRIEF["warmup"]), rep=min(rep, BRIEF["rep"]), **more)

    def unkept(tuner, key, configs, measure):
        measure()
        return False

    testing.do_bench = brief
    if hasattr(Autotuner, "check_disk_cache"):
        Autotuner.check_disk_cache = unkept
    return True
