"""Correct attention that is slow in the first call, like autotuned kernels, or when it is timed."""

import time

import right

tuned = {}


def tunes(tensors, settings):
    """Tunes for longer than the time limit, for each shape."""
    return after(600, ("tunes", tensors["q"].shape), tensors, settings)


def tunes_briefly(tensors, settings):
    return after(0.2, ("tunes_briefly", tensors["q"].shape), tensors, settings)


def tires(tensors, settings):
    """Passes its check, and hangs when it is timed."""
    tuned["tires"] = tuned.get("tires", 0) + 1
    if tuned["tires"] > 3:
        time.sleep(600)
    return right.attention(tensors, settings)


def after(seconds, key, tensors, settings):
    if key not in tuned:
        time.sleep(seconds)
        tuned[key] = True
    return right.attention(tensors, settings)
