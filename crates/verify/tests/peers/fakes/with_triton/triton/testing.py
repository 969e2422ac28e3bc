def do_bench(call, warmup=25, rep=100, quantiles=None):
    return warmup, rep
