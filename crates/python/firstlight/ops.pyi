"""Types of ``firstlight.ops``. The documentation is that of the functions in ``ops.py``; a test compares the two files' parameters."""

from typing import Literal, Optional, Union, overload

from ._types import A, Array

__all__ = [
    "attention",
    "conv1d",
    "gated_delta",
    "kda",
    "linear",
    "moe",
    "nsa",
    "rms_norm",
    "selective_scan",
    "ssd",
]

@overload
def attention(
    q: A, k: A, v: Optional[A] = None, *, causal: bool = False, scale: Optional[float] = None, softcap: Optional[float] = None,
    window: Optional[tuple[Optional[int], Optional[int]]] = None, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    cu_seqlens_k: Optional[Array] = None, max_seqlen_k: Optional[int] = None, cache_seqlens: Optional[Array] = None,
    block_table: Optional[Array] = None, value_width: Optional[int] = None, sinks: Optional[Array] = None,
    return_lse: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def attention(
    q: A, k: A, v: Optional[A] = None, *, causal: bool = False, scale: Optional[float] = None, softcap: Optional[float] = None,
    window: Optional[tuple[Optional[int], Optional[int]]] = None, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    cu_seqlens_k: Optional[Array] = None, max_seqlen_k: Optional[int] = None, cache_seqlens: Optional[Array] = None,
    block_table: Optional[Array] = None, value_width: Optional[int] = None, sinks: Optional[Array] = None, return_lse: Literal[True],
    out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def attention(
    q: A, k: A, v: Optional[A] = None, *, causal: bool = False, scale: Optional[float] = None, softcap: Optional[float] = None,
    window: Optional[tuple[Optional[int], Optional[int]]] = None, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    cu_seqlens_k: Optional[Array] = None, max_seqlen_k: Optional[int] = None, cache_seqlens: Optional[Array] = None,
    block_table: Optional[Array] = None, value_width: Optional[int] = None, sinks: Optional[Array] = None, return_lse: bool,
    out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

@overload
def kda(
    q: A, k: A, v: A, g: Array, beta: Array, *, A_log: Optional[Array] = None, dt_bias: Optional[Array] = None,
    scale: Optional[float] = None, gate: Optional[Literal["plain", "safe"]] = None, lower_bound: Optional[float] = None,
    l2norm: bool = False, allow_neg_eigval: Optional[bool] = None, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    return_state: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def kda(
    q: A, k: A, v: A, g: Array, beta: Array, *, A_log: Optional[Array] = None, dt_bias: Optional[Array] = None,
    scale: Optional[float] = None, gate: Optional[Literal["plain", "safe"]] = None, lower_bound: Optional[float] = None,
    l2norm: bool = False, allow_neg_eigval: Optional[bool] = None, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    return_state: Literal[True], out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def kda(
    q: A, k: A, v: A, g: Array, beta: Array, *, A_log: Optional[Array] = None, dt_bias: Optional[Array] = None,
    scale: Optional[float] = None, gate: Optional[Literal["plain", "safe"]] = None, lower_bound: Optional[float] = None,
    l2norm: bool = False, allow_neg_eigval: Optional[bool] = None, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None, return_state: bool,
    out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

@overload
def gated_delta(
    q: A, k: A, v: A, g: Array, beta: Array, *, A_log: Optional[Array] = None, dt_bias: Optional[Array] = None,
    scale: Optional[float] = None, l2norm: bool = False, allow_neg_eigval: Optional[bool] = None, cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None, state: Optional[Array] = None, initial_state: Optional[Array] = None,
    state_indices: Optional[Array] = None, return_state: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def gated_delta(
    q: A, k: A, v: A, g: Array, beta: Array, *, A_log: Optional[Array] = None, dt_bias: Optional[Array] = None,
    scale: Optional[float] = None, l2norm: bool = False, allow_neg_eigval: Optional[bool] = None, cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None, state: Optional[Array] = None, initial_state: Optional[Array] = None,
    state_indices: Optional[Array] = None, return_state: Literal[True], out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def gated_delta(
    q: A, k: A, v: A, g: Array, beta: Array, *, A_log: Optional[Array] = None, dt_bias: Optional[Array] = None,
    scale: Optional[float] = None, l2norm: bool = False, allow_neg_eigval: Optional[bool] = None, cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None, state: Optional[Array] = None, initial_state: Optional[Array] = None,
    state_indices: Optional[Array] = None, return_state: bool, out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

@overload
def ssd(
    x: A, dt: Array, A: Array, B: Array, C: Array, *, D: Optional[Array] = None, z: Optional[Array] = None, dt_bias: Optional[Array] = None,
    dt_softplus: bool = True, dt_limit: tuple[float, float] = ..., chunk_size: Optional[int] = None, cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None, state: Optional[Array] = None, initial_state: Optional[Array] = None,
    state_indices: Optional[Array] = None, return_state: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def ssd(
    x: A, dt: Array, A: Array, B: Array, C: Array, *, D: Optional[Array] = None, z: Optional[Array] = None, dt_bias: Optional[Array] = None,
    dt_softplus: bool = True, dt_limit: tuple[float, float] = ..., chunk_size: Optional[int] = None, cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None, state: Optional[Array] = None, initial_state: Optional[Array] = None,
    state_indices: Optional[Array] = None, return_state: Literal[True], out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def ssd(
    x: A, dt: Array, A: Array, B: Array, C: Array, *, D: Optional[Array] = None, z: Optional[Array] = None, dt_bias: Optional[Array] = None,
    dt_softplus: bool = True, dt_limit: tuple[float, float] = ..., chunk_size: Optional[int] = None, cu_seqlens: Optional[Array] = None,
    max_seqlen: Optional[int] = None, state: Optional[Array] = None, initial_state: Optional[Array] = None,
    state_indices: Optional[Array] = None, return_state: bool, out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

@overload
def selective_scan(
    u: A, delta: Array, A: Array, B: Array, C: Array, *, D: Optional[Array] = None, z: Optional[Array] = None,
    delta_bias: Optional[Array] = None, delta_softplus: bool = True, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    return_state: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def selective_scan(
    u: A, delta: Array, A: Array, B: Array, C: Array, *, D: Optional[Array] = None, z: Optional[Array] = None,
    delta_bias: Optional[Array] = None, delta_softplus: bool = True, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    return_state: Literal[True], out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def selective_scan(
    u: A, delta: Array, A: Array, B: Array, C: Array, *, D: Optional[Array] = None, z: Optional[Array] = None,
    delta_bias: Optional[Array] = None, delta_softplus: bool = True, cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None, return_state: bool,
    out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

@overload
def conv1d(
    x: A, weight: Array, bias: Optional[Array] = None, *, activation: Optional[Literal["silu"]] = None,
    layout: Literal["channel_last", "channel_first"] = "channel_last", cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    state_positions: Optional[Array] = None, return_state: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def conv1d(
    x: A, weight: Array, bias: Optional[Array] = None, *, activation: Optional[Literal["silu"]] = None,
    layout: Literal["channel_last", "channel_first"] = "channel_last", cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    state_positions: Optional[Array] = None, return_state: Literal[True], out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def conv1d(
    x: A, weight: Array, bias: Optional[Array] = None, *, activation: Optional[Literal["silu"]] = None,
    layout: Literal["channel_last", "channel_first"] = "channel_last", cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None,
    state: Optional[Array] = None, initial_state: Optional[Array] = None, state_indices: Optional[Array] = None,
    state_positions: Optional[Array] = None, return_state: bool, out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

@overload
def nsa(
    q: A, k: A, v: A, *, g_cmp: Optional[Array] = None, g_slc: Optional[Array] = None, g_swa: Optional[Array] = None,
    scale: Optional[float] = None, compress_block: Optional[int] = None, compress_stride: Optional[int] = None,
    select_block: Optional[int] = None, select_count: Optional[int] = None, initial_blocks: Optional[int] = None,
    local_blocks: Optional[int] = None, window: Optional[int] = None, pooling: Optional[Literal["mean", "learned"]] = None,
    gate: Optional[Literal["given", "sigmoid", "softmax"]] = None, overlap: Optional[bool] = None, block_indices: Optional[Array] = None,
    k_cmp: Optional[Array] = None, v_cmp: Optional[Array] = None, cmp_k_weight: Optional[Array] = None,
    cmp_v_weight: Optional[Array] = None, cmp_k_pos: Optional[Array] = None, cmp_v_pos: Optional[Array] = None,
    cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None, cu_seqlens_k: Optional[Array] = None,
    max_seqlen_k: Optional[int] = None, return_indices: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def nsa(
    q: A, k: A, v: A, *, g_cmp: Optional[Array] = None, g_slc: Optional[Array] = None, g_swa: Optional[Array] = None,
    scale: Optional[float] = None, compress_block: Optional[int] = None, compress_stride: Optional[int] = None,
    select_block: Optional[int] = None, select_count: Optional[int] = None, initial_blocks: Optional[int] = None,
    local_blocks: Optional[int] = None, window: Optional[int] = None, pooling: Optional[Literal["mean", "learned"]] = None,
    gate: Optional[Literal["given", "sigmoid", "softmax"]] = None, overlap: Optional[bool] = None, block_indices: Optional[Array] = None,
    k_cmp: Optional[Array] = None, v_cmp: Optional[Array] = None, cmp_k_weight: Optional[Array] = None,
    cmp_v_weight: Optional[Array] = None, cmp_k_pos: Optional[Array] = None, cmp_v_pos: Optional[Array] = None,
    cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None, cu_seqlens_k: Optional[Array] = None,
    max_seqlen_k: Optional[int] = None, return_indices: Literal[True], out: Optional[A] = None,
) -> tuple[A, A]: ...
@overload
def nsa(
    q: A, k: A, v: A, *, g_cmp: Optional[Array] = None, g_slc: Optional[Array] = None, g_swa: Optional[Array] = None,
    scale: Optional[float] = None, compress_block: Optional[int] = None, compress_stride: Optional[int] = None,
    select_block: Optional[int] = None, select_count: Optional[int] = None, initial_blocks: Optional[int] = None,
    local_blocks: Optional[int] = None, window: Optional[int] = None, pooling: Optional[Literal["mean", "learned"]] = None,
    gate: Optional[Literal["given", "sigmoid", "softmax"]] = None, overlap: Optional[bool] = None, block_indices: Optional[Array] = None,
    k_cmp: Optional[Array] = None, v_cmp: Optional[Array] = None, cmp_k_weight: Optional[Array] = None,
    cmp_v_weight: Optional[Array] = None, cmp_k_pos: Optional[Array] = None, cmp_v_pos: Optional[Array] = None,
    cu_seqlens: Optional[Array] = None, max_seqlen: Optional[int] = None, cu_seqlens_k: Optional[Array] = None,
    max_seqlen_k: Optional[int] = None, return_indices: bool, out: Optional[A] = None,
) -> Union[A, tuple[A, A]]: ...

def rms_norm(
    x: A, weight: Optional[Array] = None, *, gate: Optional[Array] = None, eps: float = 1e-5,
    activation: Literal["silu", "sigmoid"] = "silu", norm_before_gate: bool = False, out: Optional[A] = None,
) -> A: ...

def linear(
    x: A, w: Array, *, w_scale: Optional[Array] = None, w_zero: Optional[Array] = None, w_offset: Optional[Array] = None,
    w_group: Optional[int] = None, x_order: Optional[Array] = None, norm: Optional[Array] = None, bias: Optional[Array] = None,
    residual: Optional[Array] = None, activation: Optional[Literal["none", "swiglu", "relu_squared"]] = None, scale: Optional[float] = None,
    eps: Optional[float] = None, out_dtype: object = None, out: Optional[A] = None,
) -> A: ...

@overload
def moe(
    x: A, logits: Array, w_gate_up: Array, w_down: Array, *, top_k: int,
    activation: Optional[Literal["swiglu", "relu_squared", "clamped_swiglu"]] = None, limit: Optional[float] = None,
    alpha: Optional[float] = None, score: Optional[Literal["softmax_of_chosen", "softmax_of_all", "sigmoid"]] = None,
    renormalise: Optional[bool] = None, sum_eps: Optional[float] = None, weight_scale: Optional[float] = None,
    scale: Optional[float] = None, always: Optional[int] = None, experts_first: Optional[int] = None, correction: Optional[Array] = None,
    gate_up_scale: Optional[Array] = None, down_scale: Optional[Array] = None, gate_up_offset: Optional[Array] = None,
    down_offset: Optional[Array] = None, w_group: Optional[int] = None, gate_up_bias: Optional[Array] = None,
    down_bias: Optional[Array] = None, residual: Optional[Array] = None, return_choice: Literal[False] = False, out: Optional[A] = None,
) -> A: ...
@overload
def moe(
    x: A, logits: Array, w_gate_up: Array, w_down: Array, *, top_k: int,
    activation: Optional[Literal["swiglu", "relu_squared", "clamped_swiglu"]] = None, limit: Optional[float] = None,
    alpha: Optional[float] = None, score: Optional[Literal["softmax_of_chosen", "softmax_of_all", "sigmoid"]] = None,
    renormalise: Optional[bool] = None, sum_eps: Optional[float] = None, weight_scale: Optional[float] = None,
    scale: Optional[float] = None, always: Optional[int] = None, experts_first: Optional[int] = None, correction: Optional[Array] = None,
    gate_up_scale: Optional[Array] = None, down_scale: Optional[Array] = None, gate_up_offset: Optional[Array] = None,
    down_offset: Optional[Array] = None, w_group: Optional[int] = None, gate_up_bias: Optional[Array] = None,
    down_bias: Optional[Array] = None, residual: Optional[Array] = None, return_choice: Literal[True], out: Optional[A] = None,
) -> tuple[A, A, A]: ...
@overload
def moe(
    x: A, logits: Array, w_gate_up: Array, w_down: Array, *, top_k: int,
    activation: Optional[Literal["swiglu", "relu_squared", "clamped_swiglu"]] = None, limit: Optional[float] = None,
    alpha: Optional[float] = None, score: Optional[Literal["softmax_of_chosen", "softmax_of_all", "sigmoid"]] = None,
    renormalise: Optional[bool] = None, sum_eps: Optional[float] = None, weight_scale: Optional[float] = None,
    scale: Optional[float] = None, always: Optional[int] = None, experts_first: Optional[int] = None, correction: Optional[Array] = None,
    gate_up_scale: Optional[Array] = None, down_scale: Optional[Array] = None, gate_up_offset: Optional[Array] = None,
    down_offset: Optional[Array] = None, w_group: Optional[int] = None, gate_up_bias: Optional[Array] = None,
    down_bias: Optional[Array] = None, residual: Optional[Array] = None, return_choice: bool, out: Optional[A] = None,
) -> Union[A, tuple[A, A, A]]: ...
