"""``mamba_chunk_scan_combined`` and ``selective_state_update`` of the package mamba-ssm (ops/triton), with one decay a head (Mamba-2)."""

from .. import ops
from . import unsupported

__all__ = ["mamba_chunk_scan_combined", "selective_state_update"]


def mamba_chunk_scan_combined(
    x,
    dt,
    A,
    B,
    C,
    chunk_size,
    D=None,
    z=None,
    dt_bias=None,
    initial_states=None,
    seq_idx=None,
    cu_seqlens=None,
    dt_softplus=False,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    return_varlen_states=False,
    state_dtype=None,
):
    """x ``[B, T, H, P]``, dt ``[B, T, H]``, A ``[H]``, B and C ``[B, T, G, N]``: y like x, with ``return_final_states`` and the states
    ``[B, H, P, N]``, float32 unless ``state_dtype`` says otherwise. ``chunk_size`` is how theirs cuts the work: results do not depend on it."""
    unsupported(
        "mamba_chunk_scan_combined",
        seq_idx=seq_idx is not None,
        cu_seqlens=cu_seqlens is not None,
        return_varlen_states=return_varlen_states,
    )
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
        return_state=return_final_states,
    )
    if return_final_states and state_dtype is not None:
        return found[0], found[1].to(state_dtype)
    return found


def _of_heads(name, tensor, dimensions):
    """What a head has of a tensor that was expanded over its last dimensions: theirs takes [.., P] and [.., P, N], of which a tied
    one has stride 0."""
    for at in range(1, dimensions + 1):
        if tensor.shape[-at] > 1 and tensor.stride(-at) != 0:
            raise NotImplementedError(f"firstlight's selective_state_update wants `{name}` tied: one value a head, expanded")
    return tensor[(..., *[0] * dimensions)]


def selective_state_update(
    state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None
):
    """One token of each sequence. state ``[B, H, P, N]``, written over; x ``[B, H, P]``; dt ``[B, H, P]``, A ``[H, P, N]``, D and dt_bias
    ``[H, P]`` expanded from one value a head; B and C ``[B, G, N]``: y ``[B, H, P]``."""
    if x.dim() != 3:
        raise NotImplementedError("firstlight's selective_state_update wants heads: x [B, H, P] (Mamba-2), not Mamba-1's [B, C]")
    in_place = state.is_contiguous() and state.dtype.itemsize == 4
    kept = state if in_place else state.float().contiguous()
    y = ops.ssd(
        x.unsqueeze(1),
        _of_heads("dt", dt, 1).unsqueeze(1),
        _of_heads("A", A, 2).contiguous(),
        B.unsqueeze(1),
        C.unsqueeze(1),
        D=None if D is None else _of_heads("D", D, 1).contiguous(),
        z=None if z is None else z.unsqueeze(1),
        dt_bias=None if dt_bias is None else _of_heads("dt_bias", dt_bias, 1).contiguous(),
        dt_softplus=dt_softplus,
        state=kept,
        state_indices=state_batch_indices,
    )
    if not in_place:
        state.copy_(kept)
    return y.squeeze(1)
