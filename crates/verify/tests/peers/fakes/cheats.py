"""Peers that cheat or break, as in reported bugs or as a package could."""

import os
import signal
import sys
import time
import unittest

import right

cache = []


def cached(tensors, settings):
    """Returns the first result for all later inputs."""
    if not cache:
        cache.append(right.attention(tensors, settings))
    return cache[0]


def for_seed_0(tensors, settings):
    """Has a stored result for one input, and returns zeros for all others."""
    known = abs(tensors["q"][0, 0, 0, 0] - 0.5) < 1e-9
    return right.attention(tensors, settings, only=None if known else 0)


def unvisited_tiles(tensors, settings):
    """Never computes the second tile of queries, and the memory happens to be zero."""
    return right.attention(tensors, settings, only=2)


def top_left(tensors, settings):
    """A causal mask aligned at the top left: a single query attends to the first key only."""
    return right.attention(tensors, settings, sees=lambda i, j, queries, keys: j <= i)


def nan_rows(tensors, settings):
    """Returns 0 / 0 for queries that see no key."""
    right.empty = lambda settings: float("nan")
    try:
        return right.attention(tensors, settings)
    finally:
        right.empty = lambda settings: 0.0


def says_pass(tensors, settings):
    """Prints the output of a passed test, and computes nothing."""
    print("1 passed in 0.62s")
    print('{"outcome": "ran", "evidence": [{"name": "flash_fwd", "count": 1}], "millis": 1.0, "package": "x"}')
    sys.stdout.flush()
    os.write(1, b'{"outcome": "ran", "evidence": [], "millis": 1.0, "package": "x"}\n')
    return right.attention(tensors, settings, only=0)


def noisy(tensors, settings):
    """Correct, but prints much to stdout and stderr."""
    for _ in range(2000):
        os.write(1, b"\xff\x00 garbage on standard output\n")
        os.write(2, b"and on standard error\n")
    return right.attention(tensors, settings)


def garbage_everywhere(tensors, settings):
    """Writes to all open file descriptors, including the harness's pipe."""
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
    """Overwrites its inputs."""
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
    """Computes the first three calls, which are verified, and returns a cached result when it is timed."""
    runs.append(1)
    return own_work(tensors, settings) if len(runs) < 4 else cache_or_right(tensors, settings)


def own_work(tensors, settings):
    return right.attention(tensors, settings)


def cache_or_right(tensors, settings):
    return cached(tensors, settings)


def impossible_clock(tensors, settings):
    """Replaces the clocks of its process by constants."""
    time.perf_counter = lambda: -1.0
    time.time = lambda: 0.0
    return right.attention(tensors, settings)


def jumping_clock(tensors, settings):
    """Correct, but replaces the clock that the harness uses by one that runs backwards."""
    sys.modules["__main__"].clock = iter(range(10**6, 0, -1)).__next__
    return right.attention(tensors, settings)
