"""What field reports did, and what a package might do, each as a peer."""

import os
import signal
import sys
import time
import unittest

import right

cache = []


def cached(tensors, settings):
    """Computes once, whatever it is asked later."""
    if not cache:
        cache.append(right.attention(tensors, settings))
    return cache[0]


def for_seed_0(tensors, settings):
    """Knows the answer to one input, and gives nought for every other."""
    known = abs(tensors["q"][0, 0, 0, 0] - 0.5) < 1e-9
    return right.attention(tensors, settings, only=None if known else 0)


def unvisited_tiles(tensors, settings):
    """Its second tile of queries is never visited, and memory happened to be nought."""
    return right.attention(tensors, settings, only=2)


def top_left(tensors, settings):
    """The causal mask of a square: with one query it attends to the first key alone."""
    return right.attention(tensors, settings, sees=lambda i, j, queries, keys: j <= i)


def nan_rows(tensors, settings):
    """0 / 0 where no key is visible."""
    right.empty = lambda settings: float("nan")
    try:
        return right.attention(tensors, settings)
    finally:
        right.empty = lambda settings: 0.0


def says_pass(tensors, settings):
    """Prints what a pass looks like, and computes nothing."""
    print("1 passed in 0.62s")
    print('{"outcome": "ran", "evidence": [{"name": "flash_fwd", "count": 1}], "millis": 1.0, "package": "x"}')
    sys.stdout.flush()
    os.write(1, b'{"outcome": "ran", "evidence": [], "millis": 1.0, "package": "x"}\n')
    return right.attention(tensors, settings, only=0)


def noisy(tensors, settings):
    """Right, and prints a lot on both outputs."""
    for _ in range(2000):
        os.write(1, b"\xff\x00 garbage on standard output\n")
        os.write(2, b"and on standard error\n")
    return right.attention(tensors, settings)


def garbage_everywhere(tensors, settings):
    """Finds the harness's own channel and writes into it."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"PASS\n")
        except OSError:
            pass
    return right.attention(tensors, settings)


def skips(tensors, settings):
    raise unittest.SkipTest("needs a Hopper GPU")


def raises(tensors, settings):
    raise ValueError("head dim 8 is not supported\nand more lines")


def exits(tensors, settings):
    sys.exit(0)


def ends(tensors, settings):
    os._exit(0)


def crashes(tensors, settings):
    print("about to touch address 0", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(60)


def slow(tensors, settings):
    time.sleep(1)
    raise ValueError("and nothing came of it")


def hangs(tensors, settings):
    time.sleep(600)


def eats_memory(tensors, settings):
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1 << 20) * 16))
        time.sleep(0.005)


def vandal(tensors, settings):
    """Overwrites what it was given."""
    outputs = right.attention(tensors, settings)
    for name in "qkv":
        flat = tensors[name].cast("B").cast("f")
        for index in range(len(flat)):
            flat[index] = 0.0
    return outputs


def no_output(tensors, settings):
    return {"out": right.attention(tensors, settings)["o"]}


def nothing(tensors, settings):
    return None


def wrong_shape(tensors, settings):
    o = right.attention(tensors, settings)["o"]
    return {"o": o.cast("B").cast("f", [o.nbytes // 4])}


def wrong_type(tensors, settings):
    o = right.attention(tensors, settings)["o"]
    return {"o": o.cast("B").cast("i", o.shape)}


runs = []


def tires(tensors, settings):
    """Its own code for a check, something else once it is timed."""
    runs.append(1)
    return own_work(tensors, settings) if len(runs) < 4 else cache_or_right(tensors, settings)


def own_work(tensors, settings):
    return right.attention(tensors, settings)


def cache_or_right(tensors, settings):
    return cached(tensors, settings)


def impossible_clock(tensors, settings):
    """Replaces the clocks of its process, as a frozen or jumping one would."""
    time.perf_counter = lambda: -1.0
    time.time = lambda: 0.0
    return right.attention(tensors, settings)


def jumping_clock(tensors, settings):
    """Right, and sets the very clock that times are taken with to another hour, from which it runs backwards."""
    sys.modules["__main__"].clock = iter(range(10**6, 0, -1)).__next__
    return right.attention(tensors, settings)
