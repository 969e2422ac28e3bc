"""``chunk_gated_delta_rule`` and ``fused_recurrent_gated_delta_rule`` of the package flash-linear-attention, forward."""

from __future__ import annotations

from typing import Any, Optional

from .. import ops
from .._types import Array
from . import unsupported
from ._sequences import flat


def chunk_gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    scale: Optional[float] = None,
    initial_state: Optional[Array] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Optional[Array] = None,
    cu_seqlens_cpu: Optional[Array] = None,
    chunk_indices: Any = None,
    cp_context: Any = None,
    **kwargs: Any,
) -> Any:
    """q and k ``[B, T, H, K]``, v ``[B, T, HV, V]``, g and beta ``[B, T, HV]``. Returns o and the final state ``[N, HV, K, V]`` (or None).
    With the keyword ``use_gate_in_kernel`` g are logits, and ``A_log`` ``[HV]`` and ``dt_bias`` are required. ``chunk_size`` and
    ``chunk_indices`` do not affect the result."""
    unsupported("chunk_gated_delta_rule", cp_context=cp_context is not None)
    kwargs.pop("chunk_size", None)
    gate = {name: kwargs.pop(name, None) for name in ("use_gate_in_kernel", "A_log", "dt_bias")}
    if "transpose_state_layout" in kwargs:
        state_v_first = kwargs.pop("transpose_state_layout")
    _known("chunk_gated_delta_rule", kwargs)
    longest = None if cu_seqlens_cpu is None else int((cu_seqlens_cpu[1:] - cu_seqlens_cpu[:-1]).max())
    logits = use_beta_sigmoid_in_kernel, allow_neg_eigval
    states = initial_state, output_final_state, state_v_first
    return _rule("chunk_gated_delta_rule", (q, k, v, g, beta), scale, use_qk_l2norm_in_kernel, *gate.values(), *logits, *states, cu_seqlens, longest)


def fused_recurrent_gated_delta_rule(
    q: Array,
    k: Array,
    v: Array,
    g: Optional[Array] = None,
    gk: Any = None,
    gv: Any = None,
    beta: Optional[Array] = None,
    scale: Optional[float] = None,
    initial_state: Optional[Array] = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Optional[Array] = None,
    dt_bias: Optional[Array] = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Optional[Array] = None,
    **kwargs: Any,
) -> Any:
    """Like ``chunk_gated_delta_rule``, for few tokens. Without g there is no decay; without beta it is 1."""
    unsupported("fused_recurrent_gated_delta_rule", gk=gk is not None, gv=gv is not None)
    if "transpose_state_layout" in kwargs:
        state_v_first = kwargs.pop("transpose_state_layout")
    _known("fused_recurrent_gated_delta_rule", kwargs)
    g = v.new_zeros(v.shape[:-1]) if g is None else g
    beta = v.new_ones(v.shape[:-1]) if beta is None else beta
    gate = use_gate_in_kernel, A_log, dt_bias
    logits = use_beta_sigmoid_in_kernel, allow_neg_eigval
    states = initial_state, output_final_state, state_v_first
    name = "fused_recurrent_gated_delta_rule"
    return _rule(name, (q, k, v, g, beta), scale, use_qk_l2norm_in_kernel, *gate, *logits, *states, cu_seqlens, None)


def _known(function, unknown):
    for name in unknown:
        raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")


def _rule(function, tensors, scale, l2norm, gate, A_log, dt_bias, beta_logits, negative, state, final, v_first, cu_seqlens, longest):
    if negative and not beta_logits:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`")
    if bool(gate) != bool(beta_logits):
        raise NotImplementedError(
            f"firstlight's {function} takes logits of both g and beta (use_gate_in_kernel, use_beta_sigmoid_in_kernel), or of neither"
        )
    if gate and A_log is None:
        raise ValueError("`use_gate_in_kernel` needs `A_log`")
    if state is not None:
        state = (state.transpose(-1, -2) if v_first else state).float().contiguous()
    shape = tensors[2].shape
    found = ops.gated_delta(
        *flat(cu_seqlens, *tensors),
        A_log=A_log if gate else None,
        dt_bias=dt_bias if gate else None,
        scale=scale,
        l2norm=l2norm,
        allow_neg_eigval=bool(negative) if gate else None,
        cu_seqlens=None if cu_seqlens is None else cu_seqlens.int(),
        max_seqlen=longest,
        initial_state=state,
        return_state=final,
    )
    o, after = found if final else (found, None)
    o = o.view(shape)
    if not final:
        return o, None
    return o, after.transpose(-1, -2).contiguous() if v_first else after
