"""``unpad_input``, ``pad_input`` and ``index_first_axis`` of flash_attn.bert_padding, implemented in torch, with gradients."""

from __future__ import annotations

from typing import Any, Optional

from .._types import Array

__all__ = ["index_first_axis", "pad_input", "unpad_input"]


def index_first_axis(x: Array, indices: Array) -> Any:
    """Rows of x ``[rows, ...]`` by index."""
    return x[indices]


def unpad_input(hidden_states: Array, attention_mask: Array, unused_mask: Optional[Array] = None) -> Any:
    """Removes padding: keeps the tokens of hidden_states ``[B, T, ...]`` whose attention_mask or unused_mask (reserved tokens) ``[B, T]`` is
    not 0. Returns the tokens, their indices in ``B T``, the offsets of the sequences (int32), the longest length, and the number of tokens
    of each sequence in attention_mask (int32)."""
    import torch

    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, ends, int(lengths.max()), used


def pad_input(hidden_states: Array, indices: Array, batch: int, seqlen: int) -> Any:
    """Reverses ``unpad_input``: ``[B, T, ...]``, with zeros for padding."""
    rows = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return rows.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
