class Autotuner:
    def check_disk_cache(self, tuning_key, configs, bench_fn):
        bench_fn()
        return True
