"""A kernel that says how it is tuned."""

from triton import testing
from triton.runtime.autotuner import Autotuner


def says(tensors, settings):
    how = []
    kept = Autotuner().check_disk_cache("key", [], lambda: how.append(testing.do_bench(None, quantiles=(0.5,))))
    raise ValueError("tuned for %d and %d ms, %s" % (*how[0], "kept" if kept else "not kept"))
