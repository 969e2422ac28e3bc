"""Attention by its formula, over memoryviews."""

from array import array
from math import exp


def shaped(values, shape):
    return memoryview(array("f", values)).cast("B").cast("f", shape)


def visible(i, j, queries, keys):
    """Bottom-right alignment: the last query sees every key."""
    return j <= i + keys - queries


def attention(tensors, settings, sees=visible, only=None):
    q, k, v = (tensors[name] for name in "qkv")
    batch, queries, heads, width = q.shape
    keys, shared = k.shape[1], k.shape[2]
    causal = settings.get("causal") == "true"
    values = []
    for b in range(batch):
        for i in range(queries):
            for h in range(heads):
                kh = h // (heads // shared)
                if only is not None and i >= only:
                    values += [0.0] * v.shape[3]
                    continue
                logits = [
                    sum(q[b, i, h, d] * k[b, j, kh, d] for d in range(width)) * width**-0.5
                    if not causal or sees(i, j, queries, keys)
                    else None
                    for j in range(keys)
                ]
                most = max((x for x in logits if x is not None), default=0.0)
                weights = [0.0 if x is None else exp(x - most) for x in logits]
                total = sum(weights)
                values += [
                    sum(w * v[b, j, kh, d] for j, w in enumerate(weights)) / total if total else empty(settings)
                    for d in range(v.shape[3])
                ]
    return {"o": shaped(values, [batch, queries, heads, v.shape[3]])}


def empty(settings):
    return 0.0


def named_and_wrapped(tensors, settings):
    return attention(tensors, settings)["o"]
