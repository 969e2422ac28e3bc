"""``causal_conv1d_fn`` and ``causal_conv1d_update`` of the package causal-conv1d (causal_conv1d_interface.py)."""

from __future__ import annotations

from typing import Any, Literal, Optional, Union

from .. import ops
from .._types import Array
from . import unsupported
from ._sequences import offsets

__all__ = ["causal_conv1d_fn", "causal_conv1d_update", "causal_conv1d_varlen_states"]


def _activation(activation: Optional[str]) -> Optional[Literal["silu"]]:
    if activation not in (None, "silu", "swish"):
        raise NotImplementedError(f"activation must be None, silu, or swish, got {activation!r}")
    return None if activation is None else "silu"


def causal_conv1d_fn(
    x: Array,
    weight: Array,
    bias: Optional[Array] = None,
    seq_idx: Optional[Array] = None,
    initial_states: Optional[Array] = None,
    return_final_states: bool = False,
    final_states_out: Optional[Array] = None,
    activation: Optional[str] = None,
) -> Any:
    """x ``[B, C, T]`` with contiguous tokens or channels, weight ``[C, W]``, bias ``[C]``, initial_states ``[B, C, W - 1]``. Returns y like
    x, and with ``return_final_states`` the last W - 1 tokens. With ``seq_idx`` ``[B, T]`` a row has several sequences and no states."""
    activation = _activation(activation)
    if seq_idx is not None:
        states = {"initial_states": initial_states, "return_final_states": return_final_states, "final_states_out": final_states_out}
        unsupported("causal_conv1d_fn with `seq_idx`", **{name: one is not None and one is not False for name, one in states.items()})
        ends, longest, _ = offsets(seq_idx)
        tokens = x.transpose(1, 2)
        y = ops.conv1d(
            tokens.reshape(-1, x.shape[1]), weight, bias, activation=activation, cu_seqlens=ends, max_seqlen=longest
        )
        return y.view(tokens.shape).transpose(1, 2)
    with_states = initial_states is not None or return_final_states or final_states_out is not None
    channels_last = x.stride(1) == 1 and x.shape[2] > 1
    if not channels_last and not with_states:
        return ops.conv1d(x, weight, bias, activation=activation, layout="channel_first")
    before = None if initial_states is None else initial_states.float().contiguous()
    found = ops.conv1d(
        x.transpose(1, 2), weight, bias, activation=activation, initial_state=before, return_state=with_states
    )
    y, final = found if with_states else (found, None)
    y = y.transpose(1, 2)
    if not with_states or not (return_final_states or final_states_out is not None):
        return y
    final = final.to(x.dtype) if final_states_out is None else final_states_out.copy_(final)
    return (y, final) if return_final_states else y


def causal_conv1d_update(
    x: Array,
    conv_state: Array,
    weight: Array,
    bias: Optional[Array] = None,
    activation: Optional[str] = None,
    cache_seqlens: Union[int, Array, None] = None,
    conv_state_indices: Optional[Array] = None,
) -> Any:
    """x ``[B, C]`` or ``[B, C, T]``; conv_state ``[B, C, S]`` (a pool with conv_state_indices) is updated in place. Returns y like x."""
    activation = _activation(activation)
    tokens = x.unsqueeze(1) if x.dim() == 2 else x.transpose(1, 2)
    # For one token on a GPU the op updates states of x's type in place; otherwise it requires float32.
    in_place = conv_state.is_contiguous() and (
        conv_state.dtype.itemsize == 4 or (tokens.shape[1] == 1 and cache_seqlens is None and x.is_cuda)
    )
    state = conv_state if in_place else conv_state.float().contiguous()
    y = ops.conv1d(
        tokens,
        weight,
        bias,
        activation=activation,
        state=state,
        state_indices=conv_state_indices,
        state_positions=cache_seqlens,
    )
    if not in_place:
        conv_state.copy_(state)
    return y.squeeze(1) if x.dim() == 2 else y.transpose(1, 2)


def causal_conv1d_varlen_states(x: Array, cu_seqlens: Array, state_len: Any) -> Any:
    """The last ``state_len`` tokens of each sequence of x ``[total, C]``: ``[N, C, state_len]``, padded with zeros at the start."""
    import torch

    ends = cu_seqlens[1:, None].long()
    at = ends - state_len + torch.arange(state_len, device=x.device)
    real = at >= cu_seqlens[:-1, None]
    return (x[at.clamp(min=0)] * real[..., None]).transpose(1, 2)
