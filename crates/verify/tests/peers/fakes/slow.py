"""Attention that is right and slow in one place, as kernels are that their compiler tunes when they are first called."""

import time

import right

tuned = {}


def tunes(tensors, settings):
    """Tunes longer than anybody waits, for each width anew."""
    return after(600, ("tunes", tensors["q"].shape), tensors, settings)


def tunes_briefly(tensors, settings):
    return after(0.2, ("tunes_briefly", tensors["q"].shape), tensors, settings)


def tires(tensors, settings):
    """Is admitted, and does not come back from its timing."""
    tuned["tires"] = tuned.get("tires", 0) + 1
    if tuned["tires"] > 3:
        time.sleep(600)
    return right.attention(tensors, settings)


def after(seconds, key, tensors, settings):
    if key not in tuned:
        time.sleep(seconds)
        tuned[key] = True
    return right.attention(tensors, settings)
