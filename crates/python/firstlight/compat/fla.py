"""Functions of the package flash-linear-attention (fla/ops), forward: Kimi Delta Attention, the gated delta rule and native sparse attention."""

from __future__ import annotations

from typing import Any, Optional

from .. import ops
from .._types import Array
from . import unsupported
from ._gated_delta import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from ._nsa import parallel_nsa
from ._sequences import flat

__all__ = ["chunk_gated_delta_rule", "chunk_kda", "fused_recurrent_gated_delta_rule", "fused_recurrent_kda", "parallel_nsa"]


# Keywords of fla that change the result or the location of states, in addition to the parameters below.
_OF_FLA = {"ssm_state_indices", "num_accepted_tokens", "inplace_final_state", "transpose_state_layout"}


def _check(function: str, unknown: dict[str, Any], allow_neg_eigval: bool, use_beta_sigmoid_in_kernel: bool) -> None:
    """Rejects unknown keywords, and settings that fla rejects."""
    for name, value in unknown.items():
        if name not in _OF_FLA:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        unsupported(function, **{name: value is not None and value is not False})
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError("`allow_neg_eigval` needs `use_beta_sigmoid_in_kernel`: it doubles the sigmoid of beta")


def _kda(
    function: str,
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    A_log: Any,
    dt_bias: Any,
    scale: Optional[float],
    initial_state: Any,
    final: bool,
    l2norm: bool,
    gate: bool,
    beta_logits: bool,
    **options: Any,
) -> Any:
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
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: Optional[float] = None,
    initial_state: Optional[Array] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: Optional[float] = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Optional[Array] = None,
    cu_seqlens_cpu: Optional[Array] = None,
    cp_context: Any = None,
    use_graph: bool = False,
    max_num_seqs: Optional[int] = None,
    **kwargs: Any,
) -> Any:
    """q and k ``[B, T, H, K]``, v ``[B, T, HV, V]``, g ``[B, T, HV, K]``, beta ``[B, T, HV]``. Returns o and the final state (or None). With
    ``use_gate_in_kernel`` the keywords ``A_log`` and ``dt_bias`` are required."""
    unsupported(
        "chunk_kda", return_intermediate_states=return_intermediate_states, cp_context=cp_context is not None
    )
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    _check("chunk_kda", kwargs, allow_neg_eigval, use_beta_sigmoid_in_kernel)
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
        most=most,
    )


def fused_recurrent_kda(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    A_log: Optional[Array] = None,
    dt_bias: Optional[Array] = None,
    scale: Optional[float] = None,
    initial_state: Optional[Array] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: Optional[float] = None,
    state_v_first: bool = False,
    cu_seqlens: Optional[Array] = None,
    **kwargs: Any,
) -> Any:
    """Like ``chunk_kda``, for few tokens."""
    _check("fused_recurrent_kda", kwargs, allow_neg_eigval, use_beta_sigmoid_in_kernel)
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
