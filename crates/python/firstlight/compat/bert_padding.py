"""``unpad_input``, ``pad_input`` and ``index_first_axis`` of flash_attn.bert_padding, on torch alone, with gradients."""

from __future__ import annotations

from typing import Any, Optional

from .._types import Array

__all__ = ["index_first_axis", "pad_input", "unpad_input"]


def index_first_axis(x: Array, indices: Array) -> Any:
    """Rows of x ``[rows, ...]`` by their numbers."""
    return x[indices]


def unpad_input(hidden_states: Array, attention_mask: Array, unused_mask: Optional[Array] = None) -> Any:
    """Tokens of hidden_states ``[B, T, ...]`` where attention_mask ``[B, T]`` (or unused_mask, room that is kept) is not 0: the tokens,
    their numbers among ``B T``, offsets of the sequences (int32), the longest, and how many of each the attention_mask has (int32)."""
    import torch

    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(-1, dtype=torch.int32)
    return hidden_states.flatten(0, 1)[indices], indices, ends, int(lengths.max()), used


def pad_input(hidden_states: Array, indices: Array, batch: int, seqlen: int) -> Any:
    """The reverse: ``[B, T, ...]``, of which all else is 0."""
    rows = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    return rows.index_copy(0, indices, hidden_states).unflatten(0, (batch, seqlen))
