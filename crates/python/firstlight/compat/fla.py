"""``chunk_kda`` and ``fused_recurrent_kda`` of the package flash-linear-attention (fla/ops/kda), forward."""

from .. import ops
from . import unsupported
from ._gated_delta import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from ._sequences import flat

__all__ = ["chunk_gated_delta_rule", "chunk_kda", "fused_recurrent_gated_delta_rule", "fused_recurrent_kda"]


def _kda(function, q, k, v, g, beta, A_log, dt_bias, scale, initial_state, final, l2norm, gate, beta_logits, **options):
    lower_bound, negative, state_v_first, cu_seqlens, most = (
        options.pop(name) for name in ("lower_bound", "negative", "state_v_first", "cu_seqlens", "most")
    )
    if gate != beta_logits:
        raise NotImplementedError(
            f"firstlight's {function} takes logits of both g and beta (use_gate_in_kernel, use_beta_sigmoid_in_kernel), or of neither"
        )
    state = initial_state
    if state is not None:
        state = (state.transpose(-1, -2) if state_v_first else state).float().contiguous()
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.int()
    shape = v.shape
    found = ops.kda(
        *flat(cu_seqlens, q, k, v, g, beta),
        A_log=A_log if gate else None,
        dt_bias=dt_bias if gate else None,
        scale=scale,
        gate=("safe" if lower_bound is not None else "plain") if gate else None,
        lower_bound=lower_bound if gate else None,
        l2norm=l2norm,
        allow_neg_eigval=bool(negative) if gate else None,
        cu_seqlens=cu_seqlens,
        max_seqlen=most,
        initial_state=state,
        return_state=final,
    )
    o, after = found if final else (found, None)
    o = o.view(shape)
    if not final:
        return o, None
    return o, after.transpose(-1, -2).contiguous() if state_v_first else after


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    safe_gate=False,
    lower_bound=None,
    disable_recompute=False,
    return_intermediate_states=False,
    state_v_first=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    cp_context=None,
    use_graph=False,
    max_num_seqs=None,
    **kwargs,
):
    """q and k ``[B, T, H, K]``, v ``[B, T, HV, V]``, g ``[B, T, HV, K]``, beta ``[B, T, HV]``: o and the final state (or None). With
    ``use_gate_in_kernel`` the keywords ``A_log`` and ``dt_bias`` are wanted too."""
    unsupported(
        "chunk_kda", return_intermediate_states=return_intermediate_states, cp_context=cp_context is not None
    )
    most = None
    if cu_seqlens_cpu is not None:
        most = int((cu_seqlens_cpu[1:] - cu_seqlens_cpu[:-1]).max())
    return _kda(
        "chunk_kda",
        q,
        k,
        v,
        g,
        beta,
        kwargs.get("A_log"),
        kwargs.get("dt_bias"),
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        lower_bound=lower_bound,
        negative=allow_neg_eigval,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        most=most,
    )


def fused_recurrent_kda(
    q,
    k,
    v,
    g,
    beta,
    A_log=None,
    dt_bias=None,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    use_beta_sigmoid_in_kernel=False,
    allow_neg_eigval=False,
    lower_bound=None,
    state_v_first=False,
    cu_seqlens=None,
    **kwargs,
):
    """As ``chunk_kda``, for few tokens."""
    return _kda(
        "fused_recurrent_kda",
        q,
        k,
        v,
        g,
        beta,
        A_log,
        dt_bias,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        use_beta_sigmoid_in_kernel,
        lower_bound=lower_bound,
        negative=allow_neg_eigval,
        state_v_first=state_v_first,
        cu_seqlens=cu_seqlens,
        most=None,
    )
