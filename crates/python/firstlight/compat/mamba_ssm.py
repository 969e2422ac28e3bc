"""Functions of the package mamba-ssm: ``mamba_chunk_scan_combined`` (Mamba-2, one decay per head), ``selective_scan_fn`` (Mamba, one decay
per channel and state), and ``selective_state_update``, which processes one token of either."""

from __future__ import annotations

from typing import Any, Optional

from .. import ops
from .._types import Array
from . import unsupported
from ._gated_norms import layernorm_fn, rmsnorm_fn
from ._sequences import offsets
from .causal_conv1d import causal_conv1d_fn

__all__ = [
    "layernorm_fn",
    "mamba_chunk_scan_combined",
    "mamba_split_conv1d_scan_combined",
    "rmsnorm_fn",
    "selective_scan_fn",
    "selective_state_update",
]


def mamba_chunk_scan_combined(
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    chunk_size: int,
    D: Optional[Array] = None,
    z: Optional[Array] = None,
    dt_bias: Optional[Array] = None,
    initial_states: Optional[Array] = None,
    seq_idx: Optional[Array] = None,
    cu_seqlens: Optional[Array] = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: Any = None,
) -> Any:
    """x ``[B, T, H, P]``, dt ``[B, T, H]``, A ``[H]``, B and C ``[B, T, G, N]``. Returns y like x, and with ``return_final_states`` the states
    ``[B, H, P, N]`` in float32. With ``seq_idx`` ``[B, T]`` a row has several sequences, and its state is that of the last one.
    ``return_varlen_states`` adds the state of each sequence of a single row with offsets ``cu_seqlens``, in ``state_dtype`` or x's type;
    otherwise ``state_dtype`` is ignored. ``chunk_size`` is ignored."""
    unsupported(
        "mamba_chunk_scan_combined",
        initial_states_with_seq_idx=seq_idx is not None and initial_states is not None,
        return_varlen_states_without_seq_idx=return_varlen_states and seq_idx is None,
    )
    if return_varlen_states and (cu_seqlens is None or x.shape[0] != 1):
        raise ValueError("`return_varlen_states` needs `cu_seqlens` and packed sequences in one row, a batch of 1")
    packed, shape = {}, x.shape
    if seq_idx is not None:
        ends, longest, last = offsets(seq_idx)
        x, dt, B, C, z = (None if one is None else one.flatten(0, 1) for one in (x, dt, B, C, z))
        packed = {"cu_seqlens": ends, "max_seqlen": longest}
    wanted = return_final_states or return_varlen_states
    found = ops.ssd(
        x,
        dt,
        A,
        B,
        C,
        D=D,
        z=z,
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        dt_limit=dt_limit,
        initial_state=None if initial_states is None else initial_states.float().contiguous(),
        return_state=wanted,
        **packed,
    )
    y, state = found if wanted else (found, None)
    y = y.view(shape)
    if not wanted:
        return y
    final = state if seq_idx is None else state[last]
    given = ((final,) if return_final_states else ()) + ((state.to(state_dtype or x.dtype),) if return_varlen_states else ())
    return (y, *given)


def mamba_split_conv1d_scan_combined(
    zxbcdt: Any,
    conv1d_weight: Any,
    conv1d_bias: Any,
    dt_bias: Array,
    A: Array,
    D: Array,
    chunk_size: int,
    initial_states: Optional[Array] = None,
    seq_idx: Optional[Array] = None,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    activation: Optional[str] = "silu",
    rmsnorm_weight: Optional[Array] = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Optional[Array] = None,
    outproj_bias: Optional[Array] = None,
    headdim: Optional[int] = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: Any = None,
) -> Any:
    """A Mamba-2 layer after its input projection, zxbcdt ``[B, T, 2 H P + 2 G N + H]``: convolution, scan, gated norm of ``H P`` channels and
    output projection, as separate ops, with gradients in eager calls."""
    heads = A.shape[0]
    width = headdim if D.dim() == 1 else D.shape[1]
    inner = heads * width
    z, xbc, dt = zxbcdt.split([inner, conv1d_weight.shape[0], heads], -1)
    xbc = causal_conv1d_fn(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, seq_idx, activation=activation).transpose(1, 2)
    states = (conv1d_weight.shape[0] - inner) // 2
    x, b, c = xbc.split([inner, states, states], -1)
    normed = rmsnorm_weight is not None
    found = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, width)),
        dt,
        A,
        b.unflatten(-1, (ngroups, -1)),
        c.unflatten(-1, (ngroups, -1)),
        chunk_size,
        D=D,
        z=None if normed else z.unflatten(-1, (heads, width)),
        dt_bias=dt_bias,
        initial_states=initial_states,
        seq_idx=seq_idx,
        dt_softplus=True,
        dt_limit=dt_limit,
        return_final_states=return_final_states,
        state_dtype=state_dtype,
    )
    y, state = found if return_final_states else (found, None)
    y = y.flatten(-2)
    if normed:
        groups = (ngroups, inner // ngroups)
        weight = rmsnorm_weight.view(groups)
        y, z = y.unflatten(-1, groups), z.unflatten(-1, groups)
        y = ops.rms_norm(y, weight, gate=z, eps=rmsnorm_eps, norm_before_gate=norm_before_gate).flatten(-2)
    if outproj_weight is not None:
        y = ops.linear(y.reshape(-1, inner), outproj_weight, bias=outproj_bias).view(*y.shape[:2], -1)
    return (y, state) if return_final_states else y


def selective_scan_fn(
    u: Array,
    delta: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Optional[Array] = None,
    z: Optional[Array] = None,
    delta_bias: Optional[Array] = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """u, delta and z ``[B, E, T]``, A ``[E, N]``, B and C ``[B, N, T]`` or ``[B, G, N, T]``, D and delta_bias ``[E]``. Returns y like u, and
    with ``return_last_state`` the states ``[B, E, N]`` in float32."""
    unsupported(
        "selective_scan_fn",
        complex_A=A.is_complex(),
        constant_B=B.dim() < 3,
        constant_C=C.dim() < 3,
    )
    u, delta, z = (None if one is None else one.transpose(1, 2) for one in (u, delta, z))
    # To [B, T, G, N].
    B, C = ((one.unsqueeze(1) if one.dim() == 3 else one).permute(0, 3, 1, 2).to(u.dtype) for one in (B, C))
    found = ops.selective_scan(
        u,
        delta,
        A,
        B,
        C,
        D=D,
        z=z,
        delta_bias=delta_bias,
        delta_softplus=delta_softplus,
        return_state=return_last_state,
    )
    return (found[0].transpose(1, 2), found[1]) if return_last_state else found.transpose(1, 2)


def _of_heads(name: str, tensor: Any, dimensions: int) -> Any:
    """The values per head of a tensor that was expanded over its last dimensions. mamba-ssm takes ``[.., P]`` and ``[.., P, N]``, with
    stride 0 in these dimensions if the values are tied."""
    shape, stride = tensor.shape, tensor.stride()
    kept = len(shape) - dimensions
    for size, step in zip(shape[kept:], stride[kept:]):
        if size > 1 and step != 0:
            raise NotImplementedError(f"firstlight's selective_state_update needs `{name}` tied: one value per head, expanded")
    # One view takes a third of the time of indexing each dimension.
    return tensor.as_strided(shape[:kept], stride[:kept])


def selective_state_update(
    state: Array,
    x: Array,
    dt: Array,
    A: Array,
    B: Array,
    C: Array,
    D: Optional[Array] = None,
    z: Optional[Array] = None,
    dt_bias: Optional[Array] = None,
    dt_softplus: bool = False,
    state_batch_indices: Optional[Array] = None,
) -> Any:
    """Processes one token of each sequence. For Mamba-2: state ``[B, H, P, N]``, updated in place; x ``[B, H, P]``; dt ``[B, H, P]``, A
    ``[H, P, N]``, D and dt_bias ``[H, P]`` expanded from one value per head; B and C ``[B, G, N]``. Returns y ``[B, H, P]``. For Mamba, without
    heads: state ``[B, E, N]``, x and dt ``[B, E]``, A ``[E, N]``, D and dt_bias ``[E]``, B and C ``[B, N]``. Returns y ``[B, E]``."""
    in_place = state.is_contiguous() and state.dtype.itemsize == 4
    kept = state if in_place else state.float().contiguous()
    over = {"z": None if z is None else z.unsqueeze(1), "state": kept, "state_indices": state_batch_indices}
    x, dt, B, C = x.unsqueeze(1), dt.unsqueeze(1), B.unsqueeze(1), C.unsqueeze(1)
    if x.dim() == 3:
        B, C = B.unsqueeze(2), C.unsqueeze(2)
        y = ops.selective_scan(x, dt, A, B, C, D=D, delta_bias=dt_bias, delta_softplus=dt_softplus, **over)
    else:
        y = ops.ssd(
            x,
            _of_heads("dt", dt, 1),
            _of_heads("A", A, 2).contiguous(),
            B,
            C,
            D=None if D is None else _of_heads("D", D, 1).contiguous(),
            dt_bias=None if dt_bias is None else _of_heads("dt_bias", dt_bias, 1).contiguous(),
            dt_softplus=dt_softplus,
            **over,
        )
    if not in_place:
        state.copy_(kept)
    return y.squeeze(1)
