"""The ops on arrays of torch, numpy and CuPy, without copies: on a GPU on the current stream, with memory from the array library.

Letters in shapes: B sequences of T tokens, H heads (Hkv of keys and values), D channels. Packed sequences are concatenated,
``[total, ...]``, with their offsets ``cu_seqlens`` ``[N + 1]`` (int32) and the length ``max_seqlen`` of the longest one, because the host
never reads offsets back from a GPU. The default of ``max_seqlen`` is the total length.

Storage types are float32, bfloat16 and float16. States and log-sum-exps are float32, except that ``ssd`` also takes bfloat16 states. A
call that no kernel supports raises ``firstlight.Refused`` with the reason; ``firstlight.why`` returns the kernel that a call would run and
the reason against each other one. The READMEs of the ops in the project's sources have formulas and errors; ``firstlight verify`` compares
each kernel with a float64 reference.
"""

from ._foreign import again
from ._library import FLOAT32
from ._projections import linear, moe
from ._route import call

__all__ = ["attention", "conv1d", "gated_delta", "kda", "linear", "moe", "nsa", "rms_norm", "selective_scan", "ssd"]


def _offsets(tokens, cu_seqlens, longest):
    """The longest sequence and the total of offsets over ``tokens`` tokens."""
    return (tokens if longest is None else int(longest), tokens) if cu_seqlens is not None else (0, 0)


def _tokens(x, rank):
    """The number of tokens of packed sequences, ``[total, ...]`` or ``[1, total, ...]``; ``rank`` is that of the dense form."""
    return x.shape[1] if len(x.shape) == rank else x.shape[0]


def _limit(value):
    """One side of a window: None (no limit) if it is negative."""
    return None if value is None or value < 0 else int(value)


def _states(state, initial_state, state_indices, final):
    """The inputs, outputs and names of returned outputs of a call with states. ``state`` is updated in place, ``initial_state`` only read."""
    if state is not None and initial_state is not None:
        raise ValueError("give `state`, which is written over, or `initial_state`, which is kept")
    before = state if state is not None else initial_state
    inputs = {"initial_state": before, "state_indices": state_indices}
    return inputs, {"final_state": state}, ("o", "final_state") if final and state is None else ("o",)


# An output with the shape and type of the first input.
_LIKE_FIRST = {"o": (None, None)}


def _shapes(o, before, pooled):
    """Shape and type of the output (``None``: those of the first input), and of the final state if there is an initial state."""
    if before is None:
        return _LIKE_FIRST if o is None else {"o": (o, None)}
    shapes = {"o": (o, None)}
    if pooled is None:
        shapes["final_state"] = tuple(before.shape), FLOAT32
    return shapes


def attention(
    q,
    k,
    v=None,
    *,
    causal=False,
    scale=None,
    softcap=None,
    window=None,
    cu_seqlens=None,
    max_seqlen=None,
    cu_seqlens_k=None,
    max_seqlen_k=None,
    cache_seqlens=None,
    block_table=None,
    value_width=None,
    sinks=None,
    return_lse=False,
    out=None,
):
    """``softmax(scale q k^T + mask) v``, with grouped heads.

    q ``[B, Tq, H, D]`` or packed ``[total, H, D]``. k ``[B, Tk, Hkv, D]``, packed, or a paged cache ``[blocks, block_size, Hkv, D]`` with a
    ``block_table`` ``[B, max_blocks]``. v like k with Dv channels, or None with ``value_width``, if the values are the first channels of the
    keys (a latent KV cache). ``cache_seqlens`` ``[B]`` is the number of keys in use of each sequence. The default of ``scale`` is D^-1/2.
    ``causal`` is aligned to the bottom right: query i sees key j <= i + Tk - Tq. ``window`` is (left, right), -1 for no limit. ``sinks``
    ``[H]`` are attention sinks: an additional logit per head in the softmax, without a value (gpt-oss).

    Returns o ``[B, Tq, H, Dv]`` in q's type, and with ``return_lse`` the log-sum-exp ``[B, H, Tq]`` (packed ``[H, total]``) in float32. For
    a query without visible keys, o is 0 and lse is -inf.

    Types: q, k and v in one of float32, bfloat16, float16; ``sinks`` in any of these. Gradients: of q, k, v and sinks, through o and lse;
    none with ``cache_seqlens`` or ``block_table``. Sources: FlashAttention-2 (arXiv:2307.08691), softcap of Gemma 2 (arXiv:2408.00118),
    sinks of gpt-oss (arXiv:2309.17453).
    """
    settings = (
        ("causal", bool(causal)),
        ("scale", None if scale is None else float(scale)),
        ("window_left", None if window is None else _limit(window[0])),
        ("window_right", None if window is None else _limit(window[1])),
        ("softcap", float(softcap) if softcap else None),
        ("value_width", value_width),
    )
    bounds = {}
    if cu_seqlens is not None:
        bounds["cu_seqlens"] = _offsets(_tokens(q, 4), cu_seqlens, max_seqlen)
    if cu_seqlens_k is not None:
        bounds["cu_seqlens_k"] = _offsets(_tokens(k, 4), cu_seqlens_k, max_seqlen_k)
    if cache_seqlens is not None:
        most = block_table.shape[1] * k.shape[1] if block_table is not None else k.shape[1]
        bounds["cache_seqlens"] = (most if max_seqlen_k is None else int(max_seqlen_k), 0)
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens": cu_seqlens,
        "cu_seqlens_k": cu_seqlens_k,
        "block_table": block_table,
        "cache_seqlens": cache_seqlens,
    }
    try:
        width = value_width if v is None else v.shape[-1]
        shapes = {"o": ((*q.shape[:-1], width), None)} if width is not None else None
    except AttributeError:
        return again(attention, locals())
    if sinks is not None:
        from ._sinks import attention_with_sinks

        return attention_with_sinks(sinks, settings, inputs, out, bounds, return_lse)
    return call("attention", settings, inputs, {"o": out}, bounds, ("o", "lse") if return_lse else ("o",), shapes)


def kda(
    q,
    k,
    v,
    g,
    beta,
    *,
    A_log=None,
    dt_bias=None,
    scale=None,
    gate=None,
    lower_bound=None,
    l2norm=False,
    allow_neg_eigval=None,
    cu_seqlens=None,
    max_seqlen=None,
    state=None,
    initial_state=None,
    state_indices=None,
    return_state=False,
    out=None,
):
    """Kimi Delta Attention: ``S_t = (I - beta_t k_t k_t^T) diag(exp(g_t)) S_(t-1) + beta_t k_t v_t^T``, ``o_t = scale q_t^T S_t``.

    q, k ``[B, T, H, K]``; v ``[B, T, HV, V]``; g ``[B, T, HV, K]`` log decays, or gate logits with ``A_log`` ``[HV]`` and ``dt_bias``
    ``[HV, K]``; beta ``[B, T, HV]``, or with ``A_log`` its logits. ``state`` ``[N, HV, K, V]`` (float32) is updated in place.
    ``initial_state`` is not modified; ``return_state`` returns the final state. ``state_indices`` ``[N]`` index a pool of states; -1 is
    padding.

    Returns o ``[B, T, HV, V]``, and with ``return_state`` the final state.

    Types: q, k, v, g and beta in one of float32, bfloat16, float16; A_log and dt_bias in float32 too. Gradients: in eager calls without
    ``state`` and ``state_indices``, the same bits in each run. Source: Kimi Linear (arXiv:2510.26692).
    """
    settings = (
        ("scale", None if scale is None else float(scale)),
        ("gate", gate),
        ("lower_bound", None if lower_bound is None else float(lower_bound)),
        ("l2norm", bool(l2norm)),
        ("allow_neg_eigval", allow_neg_eigval),
    )
    inputs, outputs, want = _states(state, initial_state, state_indices, return_state)
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "A_log": A_log, "dt_bias": dt_bias, "cu_seqlens": cu_seqlens}
    bounds = {"cu_seqlens": _offsets(_tokens(q, 4), cu_seqlens, max_seqlen)} if cu_seqlens is not None else None
    try:
        shapes = _shapes(v.shape, initial_state, state_indices)
    except AttributeError:
        return again(kda, locals())
    return call("kda", settings, {**tensors, **inputs}, {"o": out, **outputs}, bounds, want, shapes)


def gated_delta(
    q,
    k,
    v,
    g,
    beta,
    *,
    A_log=None,
    dt_bias=None,
    scale=None,
    l2norm=False,
    allow_neg_eigval=None,
    cu_seqlens=None,
    max_seqlen=None,
    state=None,
    initial_state=None,
    state_indices=None,
    return_state=False,
    out=None,
):
    """The gated delta rule with one decay per head (Gated DeltaNet, Qwen3-Next): like ``kda``, with q, k, v and beta of the same shapes, g
    ``[B, T, HV]`` and ``dt_bias`` ``[HV]``.

    Types: those of ``kda``. Gradients: those of ``kda``. Source: Gated Delta Networks (arXiv:2412.06464).
    """
    settings = (
        ("scale", None if scale is None else float(scale)),
        ("l2norm", bool(l2norm)),
        ("allow_neg_eigval", allow_neg_eigval),
    )
    inputs, outputs, want = _states(state, initial_state, state_indices, return_state)
    tensors = {"q": q, "k": k, "v": v, "g": g, "beta": beta, "A_log": A_log, "dt_bias": dt_bias, "cu_seqlens": cu_seqlens}
    bounds = {"cu_seqlens": _offsets(_tokens(q, 4), cu_seqlens, max_seqlen)} if cu_seqlens is not None else None
    try:
        shapes = _shapes(v.shape, initial_state, state_indices)
    except AttributeError:
        return again(gated_delta, locals())
    return call("gated_delta", settings, {**tensors, **inputs}, {"o": out, **outputs}, bounds, want, shapes)


def ssd(
    x,
    dt,
    A,
    B,
    C,
    *,
    D=None,
    z=None,
    dt_bias=None,
    dt_softplus=True,
    dt_limit=(0.0, float("inf")),
    chunk_size=None,
    cu_seqlens=None,
    max_seqlen=None,
    state=None,
    initial_state=None,
    state_indices=None,
    return_state=False,
    out=None,
):
    """Mamba-2's state-space duality: ``h_t = exp(dt_t A) h_(t-1) + dt_t B_t x_t``, ``y_t = C_t h_t + D x_t``, times silu(z).

    x ``[B, T, H, P]`` or packed ``[total, H, P]``; dt ``[B, T, H]``, after ``dt_bias`` and softplus clamped to ``dt_limit``; A ``[H]``, not
    positive; B and C ``[B, T, G, N]``; D ``[H]`` or ``[H, P]``; z like x. States ``[N, H, P, N]`` are as for ``kda`` in float32, or in bfloat16
    if ``state`` or ``initial_state`` is. Bfloat16 states require 16-bit x, and are rounded once per call.

    Returns y like x, and with ``return_state`` the final state.

    Types: x, B, C and z in one of float32, bfloat16, float16; dt, A, D and dt_bias in it or in float32. Gradients: eager, with
    ``initial_state`` but without ``state`` and ``state_indices``. Source: Mamba-2 (arXiv:2405.21060).
    """
    low, high = float(dt_limit[0]), float(dt_limit[1])
    settings = (
        ("dt_softplus", bool(dt_softplus)),
        ("dt_min", low if low > 0 else None),
        ("dt_max", high if high != float("inf") else None),
        ("chunk_size", chunk_size),
    )
    inputs, outputs, want = _states(state, initial_state, state_indices, return_state)
    tensors = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias, "cu_seqlens": cu_seqlens}
    bounds = {"cu_seqlens": _offsets(_tokens(x, 4), cu_seqlens, max_seqlen)} if cu_seqlens is not None else None
    try:
        shapes = _shapes(None, initial_state, state_indices)
    except AttributeError:
        return again(ssd, locals())
    if initial_state is not None and "bfloat16" in str(initial_state.dtype):
        shapes.pop("final_state", None)
    return call("ssd", settings, {**tensors, **inputs}, {"o": out, **outputs}, bounds, want, shapes)


def selective_scan(
    u,
    delta,
    A,
    B,
    C,
    *,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus=True,
    cu_seqlens=None,
    max_seqlen=None,
    state=None,
    initial_state=None,
    state_indices=None,
    return_state=False,
    out=None,
):
    """Mamba's selective scan: ``h_t = exp(dt_t A) h_(t-1) + dt_t u_t B_t``, ``y_t = C_t h_t + D u_t`` for each
    channel, times silu(z).

    u and z ``[B, T, E]`` or packed ``[total, E]``; delta like u, dt after ``delta_bias`` ``[E]`` and softplus; A ``[E, N]``; B and C
    ``[B, T, G, N]``; D ``[E]``. States ``[B, E, N]`` are float32, as for ``kda``.

    Returns y like u, and with ``return_state`` the final state.

    Types: u, B, C and z in one of float32, bfloat16, float16; delta, A, D and delta_bias in it or in float32. Gradients: none. Source:
    Mamba (arXiv:2312.00752).
    """
    settings = (("delta_softplus", bool(delta_softplus)),)
    inputs, outputs, want = _states(state, initial_state, state_indices, return_state)
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias, "cu_seqlens": cu_seqlens}
    bounds = {"cu_seqlens": _offsets(_tokens(u, 3), cu_seqlens, max_seqlen)} if cu_seqlens is not None else None
    try:
        shapes = _shapes(None, initial_state, state_indices)
    except AttributeError:
        return again(selective_scan, locals())
    return call("selective_scan", settings, {**tensors, **inputs}, {"o": out, **outputs}, bounds, want, shapes)


def conv1d(
    x,
    weight,
    bias=None,
    *,
    activation=None,
    layout="channel_last",
    cu_seqlens=None,
    max_seqlen=None,
    state=None,
    initial_state=None,
    state_indices=None,
    state_positions=None,
    return_state=False,
    out=None,
):
    """Causal depthwise convolution: ``y_t = act(bias + sum_w weight_w x_(t - W + 1 + w))``.

    x ``[B, T, C]``, packed ``[total, C]``, or with ``layout="channel_first"`` ``[B, C, T]``; weight ``[C, W]``, W from 2 to 4, the newest
    token last; ``activation`` is None or ``"silu"``. States ``[N, C, S]`` in float32, S >= W - 1, are the previous tokens, the newest last.
    With ``state_positions`` ``[N]`` (tokens seen so far) a state is a ring buffer.

    Returns y like x, and with ``return_state`` the final state.

    Types: x in one of float32, bfloat16, float16; weight and bias in it or in float32. Gradients: of x, weight, bias and initial_state;
    none with ``state`` or through the final state. Source: the package causal-conv1d (``causal_conv1d_ref``).
    """
    settings = (("activation", activation), ("layout", layout))
    inputs, outputs, want = _states(state, initial_state, state_indices, return_state)
    tensors = {"x": x, "weight": weight, "bias": bias, "cu_seqlens": cu_seqlens, "state_positions": state_positions}
    bounds = {"cu_seqlens": _offsets(_tokens(x, 3), cu_seqlens, max_seqlen)} if cu_seqlens is not None else None
    return call("conv1d", settings, {**tensors, **inputs}, {"o": out, **outputs}, bounds, want, _LIKE_FIRST)


def nsa(
    q,
    k,
    v,
    *,
    g_cmp=None,
    g_slc=None,
    g_swa=None,
    scale=None,
    compress_block=None,
    compress_stride=None,
    select_block=None,
    select_count=None,
    initial_blocks=None,
    local_blocks=None,
    window=None,
    pooling=None,
    gate=None,
    overlap=None,
    block_indices=None,
    k_cmp=None,
    v_cmp=None,
    cmp_k_weight=None,
    cmp_v_weight=None,
    cmp_k_pos=None,
    cmp_v_pos=None,
    cu_seqlens=None,
    max_seqlen=None,
    cu_seqlens_k=None,
    max_seqlen_k=None,
    return_indices=False,
    out=None,
):
    """Native sparse attention: compressed, selected and window branches, each enabled by its gate ``[B, Tq, HQ]``.

    q ``[B, Tq, HQ, D]``; k ``[B, Tk, Hkv, D]``; v ``[B, Tk, Hkv, Dv]``. Settings that are None have the defaults of
    ``firstlight.tables()["nsa"]``. Returns o ``[B, Tq, HQ, Dv]``, and with ``return_indices`` the selected blocks ``[B, Tq, Hkv, n]``.

    Types: q, k and v in one of float32, bfloat16, float16; indices in int32. Gradients: none. Source: Native Sparse Attention
    (arXiv:2502.11089).
    """
    names = "compress_block compress_stride select_block select_count initial_blocks local_blocks window pooling gate overlap"
    values = (compress_block, compress_stride, select_block, select_count, initial_blocks, local_blocks, window, pooling, gate, overlap)
    settings = (("scale", None if scale is None else float(scale)), *zip(names.split(), values))
    gates = {"g_cmp": g_cmp, "g_slc": g_slc, "g_swa": g_swa}
    lengths = {"cu_seqlens": cu_seqlens, "cu_seqlens_k": cu_seqlens_k}
    compressed = {"k_cmp": k_cmp, "v_cmp": v_cmp, "cmp_k_weight": cmp_k_weight, "cmp_v_weight": cmp_v_weight, "cmp_k_pos": cmp_k_pos, "cmp_v_pos": cmp_v_pos}
    inputs = {"q": q, "k": k, "v": v, **gates, **lengths, "block_indices": block_indices, **compressed}
    try:
        bounds = {
            "cu_seqlens": _offsets(_tokens(q, 4), cu_seqlens, max_seqlen),
            "cu_seqlens_k": _offsets(_tokens(k, 4), cu_seqlens_k, max_seqlen_k),
        }
    except AttributeError:
        return again(nsa, locals())
    return call("nsa", settings, inputs, {"o": out}, bounds, ("o", "indices") if return_indices else ("o",))


def rms_norm(x, weight=None, *, gate=None, eps=1e-5, activation="silu", norm_before_gate=False, out=None):
    """``x / sqrt(mean(x^2) + eps) * weight``; a ``gate`` like x multiplies x (with
    ``norm_before_gate`` the result) by ``activation(gate)``, silu or sigmoid.

    x ``[..., D]`` is normalised over its last dimension; weight ``[D]``, or ``[G, D]`` for the groups of x ``[B, T, G, D]``. Returns y like x.

    Types: x and gate in one of float32, bfloat16, float16; weight in it or in float32. Gradients: of x, gate and weight. Sources: RMSNorm
    (arXiv:1910.07467), gated as in Mamba-2's ``layernorm_gated``.
    """
    settings = (("eps", float(eps)), ("activation", activation), ("norm_before_gate", bool(norm_before_gate)))
    try:
        rank = len(x.shape)
    except AttributeError:
        return again(rms_norm, locals())
    if rank > 4:
        shape = x.shape
        flat = [None if one is None else one.reshape(-1, shape[-1]) for one in (x, gate, out)]
        x, gate, out = flat
        rank = 2
    else:
        shape = None
    # Without groups, each vector of the last dimension is a token with one group.
    insert = () if rank == 4 else ("x", "gate", "o")
    inputs = {"x": x, "gate": gate, "weight": weight}
    o = call("rmsnorm", settings, inputs, None if out is None else {"o": out}, shapes=_LIKE_FIRST, insert=insert)
    return o if shape is None else o.reshape(shape)
