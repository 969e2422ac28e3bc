"""Shapes and types of the ops' outputs from the shapes of inputs, for tracing, where tensors have no values and sizes may be symbolic.

A test compares these rules with the library's. An op without a rule runs, but cannot be traced.
"""

INT32, FLOAT32, BFLOAT16 = "int32", "float32", "bfloat16"


def _tokens(x, cu_seqlens):
    """``(B, T)`` of x ``[.., T, heads, width]``, or ``(total,)`` for packed tokens."""
    return tuple(x.shape[:-2]) if cu_seqlens is None else (x.shape[-3],)


def _attention(t, settings):
    q = t["q"]
    width = settings["value_width"] if t["v"] is None else t["v"].shape[-1]
    tokens = _tokens(q, t["cu_seqlens"])
    return {"o": ((*q.shape[:-1], width), q.dtype), "lse": ((*tokens[:-1], q.shape[-2], tokens[-1]), FLOAT32)}


def _state(t, like, shape):
    """The final state: like the initial state, or without one, a state per sequence."""
    if t["initial_state"] is not None:
        return tuple(t["initial_state"].shape), t["initial_state"].dtype
    offsets = t["cu_seqlens"]
    return (like.shape[0] if offsets is None else offsets.shape[0] - 1, *shape), FLOAT32


def _delta(t, settings):
    v = t["v"]
    return {"o": (tuple(v.shape), t["q"].dtype), "final_state": _state(t, v, (v.shape[-2], t["k"].shape[-1], v.shape[-1]))}


def _ssd(t, settings):
    x = t["x"]
    return {"o": (tuple(x.shape), x.dtype), "final_state": _state(t, x, (x.shape[-2], x.shape[-1], t["B"].shape[-1]))}


def _selective_scan(t, settings):
    u = t["u"]
    return {"o": (tuple(u.shape), u.dtype), "final_state": _state(t, u, (u.shape[-1], t["B"].shape[-1]))}


def _conv1d(t, settings):
    x, (channels, width) = t["x"], t["weight"].shape
    return {"o": (tuple(x.shape), x.dtype), "final_state": _state(t, x, (channels, width - 1))}


def _nsa(t, settings):
    q, k, chosen = t["q"], t["k"], t["block_indices"]
    tokens, heads = _tokens(q, t["cu_seqlens"]), k.shape[-2]
    count = settings.get("select_count", 16) if chosen is None else chosen.shape[-1]
    return {
        "o": ((*tokens, q.shape[-2], t["v"].shape[-1]), q.dtype),
        "indices": ((*tokens, heads, count), INT32),
        "reads": ((*tokens, heads, 3), INT32),
    }


def _rmsnorm(t, settings):
    return {"o": (tuple(t["x"].shape), t["x"].dtype)}


def _linear(t, settings):
    x, w = t["x"], t["w"]
    columns = w.shape[0] // 2 if settings.get("activation") == "swiglu" else w.shape[0]
    # Quantized weights are multiplied in bfloat16.
    storage = w.dtype if t["w_scale"] is None else BFLOAT16
    is_float32 = t["residual"] is not None or settings.get("out") == "f32"
    return {"o": ((x.shape[0], columns), FLOAT32 if is_float32 else storage)}


def _moe(t, settings):
    x, taken = t["x"], settings["top_k"] + settings.get("always", 0)
    o = x.dtype if t["residual"] is None else FLOAT32
    return {"o": (tuple(x.shape), o), "chosen": ((x.shape[0], taken), INT32), "weights": ((x.shape[0], taken), FLOAT32)}


RULES = {
    "attention": _attention,
    "kda": _delta,
    "gated_delta": _delta,
    "ssd": _ssd,
    "selective_scan": _selective_scan,
    "conv1d": _conv1d,
    "nsa": _nsa,
    "rmsnorm": _rmsnorm,
    "linear": _linear,
    "moe": _moe,
}


def shapes(name, inputs, settings):
    """The shape and the type (a torch type or its name) of each output of a call. ``inputs`` has every tensor of the op's table, ``None``
    for absent ones."""
    rule = RULES.get(name)
    if rule is None:
        raise NotImplementedError(f"firstlight's {name} has no rule for the shapes of its outputs: call it outside of traced code")
    return rule(inputs, settings)
