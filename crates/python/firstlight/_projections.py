"""``ops.linear`` and ``ops.moe``: projections with float and quantized weights."""

from ._foreign import again
from ._route import call


def linear(
    x,
    w,
    *,
    w_scale=None,
    w_zero=None,
    w_offset=None,
    w_group=None,
    x_order=None,
    norm=None,
    bias=None,
    residual=None,
    activation=None,
    scale=None,
    eps=None,
    out_dtype=None,
    out=None,
):
    """Linear projection with a fused RMSNorm, bias, activation, scale and residual: ``residual + scale act(rms(x) w^T + bias)``.

    x ``[..., K]`` has w's type, or float32 with 16-bit weights; w ``[N, K]``. Returns o ``[..., M]`` in w's type, where M is N, or N / 2 with
    ``activation="swiglu"``, for which the first half of the rows of w is the gate projection. ``"relu_squared"`` is max(0, y)^2. ``norm``
    ``[K]`` is the weight of an RMSNorm of x. ``residual`` ``[..., M]`` is float32. With it, or with ``out_dtype="float32"`` (or
    ``torch.float32``), the result is float32.

    Quantized weights are multiplied in bfloat16, with x in bfloat16 or float32, and require ``w_scale``:

    - float8_e4m3fn (torch): ``w * w_scale``, scales in float32. Convert the scales of 128 x 128 blocks, ``[N / 128, K / 128]`` as in
      DeepSeek's checkpoints, by ``blocks.t().repeat_interleave(128, 1)``;
    - int8: ``w * w_scale``, scales in float32, bfloat16 or float16;
    - int4, packed as uint8 ``[N, K / 2]``: a byte has two adjacent values of a row, the first in the low half (see
      ``firstlight.quantization``). ``w_scale * (w - w_zero)`` with zero points ``w_zero`` in uint8, by default 8, or
      ``w_scale * w - w_offset`` in float32.

    ``w_scale``, ``w_zero`` and ``w_offset`` are ``[1, N]``, one value per row, or ``[G, N]``, one per group of ``w_group`` columns of a row.
    The group size is a multiple of 32 (of 16 for int8). Its default is 128 if that results in G groups, otherwise K / G. ``x_order`` ``[K]``
    (int32) has the column of x for each column of int8 or int4 weights whose columns were sorted by group (GPTQ's act-order).

    Types: x, w and bias in one of float32, bfloat16, float16, and those above. Gradients: of x, w, norm, bias and residual; none with
    ``w_scale``. Sources: SwiGLU (arXiv:2002.05202), squared ReLU of Primer (arXiv:2109.08668).
    """
    try:
        shape, columns = x.shape, _columns(w)
        if w_group is None and w_scale is not None:
            w_group = _group("w_scale", w_scale, columns)
    except AttributeError:
        return again(linear, locals())
    settings = (
        ("activation", activation),
        ("w_group", w_group),
        ("scale", None if scale is None else float(scale)),
        ("eps", None if eps is None else float(eps)),
        ("out", _out(out_dtype)),
    )
    lead = shape[:-1] if len(shape) > 2 else None
    if lead is not None:
        x, residual = _rows(x), _rows(residual)
    inputs = {
        "x": x,
        "w": w,
        "w_scale": w_scale,
        "w_zero": w_zero,
        "w_offset": w_offset,
        "x_order": x_order,
        "norm": norm,
        "bias": bias,
        "residual": residual,
    }
    o = call("linear", settings, inputs, None if out is None else {"o": _rows(out) if lead is not None else out})
    if lead is None:
        return o
    return o.reshape(*lead, o.shape[-1]) if out is None else _written(out, o)


def moe(
    x,
    logits,
    w_gate_up,
    w_down,
    *,
    top_k,
    activation=None,
    limit=None,
    alpha=None,
    score=None,
    renormalise=None,
    sum_eps=None,
    weight_scale=None,
    scale=None,
    always=None,
    experts_first=None,
    correction=None,
    gate_up_scale=None,
    down_scale=None,
    gate_up_offset=None,
    down_offset=None,
    w_group=None,
    gate_up_bias=None,
    down_bias=None,
    residual=None,
    return_choice=False,
    out=None,
):
    """Mixture of experts: ``residual + scale sum_e weight_e (W_down,e act(W_gate_up,e x))`` over each token's ``top_k`` experts.

    x ``[..., H]``; logits ``[..., E]`` (float32) of the router; w_gate_up ``[L, 2I, H]``, I rows of the gate projection, then I of the up
    projection; w_down ``[L, H, I]``. Returns o ``[..., H]`` in x's type, or float32 with a float32 ``residual``; with ``return_choice`` also
    the chosen experts (int32) and their weights, both ``[..., K]`` with K = top_k + always.

    - ``activation``: ``"swiglu"``, silu(gate) up; ``"relu_squared"``, max(0, up)^2, with w_gate_up ``[L, I, H]`` (Nemotron);
      ``"clamped_swiglu"``, g sigmoid(alpha g) (u + 1) with g = min(gate, limit) and u = up clamped to [-limit, limit], which needs
      ``gate_up_bias`` ``[L, 2I]`` and ``down_bias`` ``[L, H]`` in float32 (gpt-oss, alpha 1.702, limit 7; its checkpoints interleave the
      rows of gate and up: reorder them first).
    - ``score``: ``"softmax_of_chosen"`` (Granite), ``"softmax_of_all"`` (Jamba) or ``"sigmoid"`` with a ``correction`` ``[E]``
      (Kimi-Linear), whose weights are divided by their sum + ``sum_eps`` unless ``renormalise`` is false. ``weight_scale`` multiplies them.
    - Shared experts: L is E + ``always``, and every token uses the last ``always`` experts with weight 1.
    - ``experts_first``: for expert parallelism. The weights are those of L experts starting at this one, and o is the sum over them.

    Quantized weights are float8_e4m3fn, int8 or int4 (uint8 ``[..., columns / 2]``, packed as for ``linear``) with x in bfloat16. They
    require ``gate_up_scale`` ``[L, G, 2I]`` and ``down_scale`` ``[L, G, H]`` in float32, G as for ``linear``. An int4 weight is
    scale * w - offset, with ``gate_up_offset`` and ``down_offset``: scale * zero point, by default scale * 8.

    Types: x and weights in one of float32, bfloat16, float16, and those above. Gradients: none. Sources: experts (arXiv:1701.06538),
    sigmoid scores of DeepSeek-V3 (arXiv:2412.19437).
    """
    try:
        shape, lead = x.shape, None
        if w_group is None and gate_up_scale is not None:
            w_group = _group("gate_up_scale", gate_up_scale, _columns(w_gate_up))
            if w_group is None and down_scale is not None:
                w_group = _group("down_scale", down_scale, _columns(w_down))
    except AttributeError:
        return again(moe, locals())
    settings = (
        ("top_k", int(top_k)),
        ("activation", activation),
        ("limit", None if limit is None else float(limit)),
        ("alpha", None if alpha is None else float(alpha)),
        ("score", score),
        ("renormalise", renormalise),
        ("sum_eps", None if sum_eps is None else float(sum_eps)),
        ("weight_scale", None if weight_scale is None else float(weight_scale)),
        ("scale", None if scale is None else float(scale)),
        ("always", always or None),
        ("experts_first", experts_first),
        ("w_group", w_group),
    )
    if len(shape) > 2:
        lead = shape[:-1]
        x, logits, residual = _rows(x), _rows(logits), _rows(residual)
    inputs = {
        "x": x,
        "logits": logits,
        "correction": correction,
        "w_gate_up": w_gate_up,
        "w_down": w_down,
        "gate_up_scale": gate_up_scale,
        "down_scale": down_scale,
        "gate_up_offset": gate_up_offset,
        "down_offset": down_offset,
        "gate_up_bias": gate_up_bias,
        "down_bias": down_bias,
        "residual": residual,
    }
    want = ("o", "chosen", "weights") if return_choice else ("o",)
    given = None if out is None else {"o": _rows(out) if lead is not None else out}
    found = call("moe", settings, inputs, given, None, want)
    if lead is None:
        return found
    first, *others = found if return_choice else (found,)
    first = first.reshape(shape) if out is None else _written(out, first)
    return (first, *(one.reshape(*lead, one.shape[-1]) for one in others)) if return_choice else first


def _rows(array):
    """Flattens all dimensions but the last."""
    return None if array is None else array.reshape(-1, array.shape[-1])


def _written(out, rows):
    """Copies the rows to the caller's output, of which they may be a view."""
    out[...] = rows.reshape(out.shape)
    return out


def _columns(w):
    """The number of columns of weights; a uint8 byte has two."""
    return w.shape[-1] * (2 if str(w.dtype).endswith("uint8") else 1)


def _group(name, scale, columns):
    """The group size from the shape of the scales; ``None`` for one scale per row."""
    groups = scale.shape[-2]
    return None if groups == 1 else columns_of_group(name, columns, groups)


def columns_of_group(name, columns, groups):
    """The group size: 128 if that results in this number of groups, of which the last may be shorter; otherwise columns / groups."""
    if -(-columns // 128) == groups:
        return 128
    if columns % groups:
        raise ValueError(f"`{name}` has {groups} groups for {columns} columns, which {groups} does not divide: give the columns of a group")
    return columns // groups


def _out(dtype):
    if dtype is None:
        return None
    if not str(dtype).endswith("float32"):
        raise ValueError(f"`out_dtype` is {dtype}; float32 is the other type that a result can have")
    return "f32"
