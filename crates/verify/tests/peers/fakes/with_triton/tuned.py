"""A kernel that says how it is tuned."""

from triton.runtime.autotuner import Autotuner


def says(tensors, settings):
    tuner = Autotuner()
    configs = tuner.prune_configs({})
    assert len(configs) == 4 and configs[0] == 0
    kept = tuner.check_disk_cache("key", configs, lambda: [tuner._bench(config=config) for config in configs])
    tried = ",".join(map(str, tuner.tried))
    raise ValueError("tried %s for %d and %d ms, %s" % (tried, *tuner.took, "kept" if kept else "not kept"))
