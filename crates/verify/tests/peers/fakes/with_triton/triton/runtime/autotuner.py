"""An autotuner of four configurations, of which the first has no room on the GPU."""

from triton import testing


class Autotuner:
    def __init__(self):
        self.tried, self.took = [], (0, 0)

    def prune_configs(self, kwargs):
        return [0, 1, 2, 3]

    def _bench(self, *args, config, **meta):
        self.tried.append(config)
        if config == 0:
            return [float("inf")] * 3
        self.took = testing.do_bench(None, quantiles=(0.5, 0.2, 0.8))
        return [1.0] * 3

    def check_disk_cache(self, tuning_key, configs, bench_fn):
        bench_fn()
        return True
