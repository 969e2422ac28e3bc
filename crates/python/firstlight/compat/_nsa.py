"""``parallel_nsa`` of the package flash-linear-attention (fla/ops/nsa), forward."""

from __future__ import annotations

import warnings
from typing import Any, Optional, Union

from .. import ops
from .._types import Array
from ._sequences import flat

# The first block and the last two. If the count is lower, fla does not define which of them it selects.
_FORCED = 3


def parallel_nsa(
    q: Array,
    k: Array,
    v: Array,
    g_cmp: Optional[Array] = None,
    g_slc: Optional[Array] = None,
    g_swa: Optional[Array] = None,
    block_indices: Optional[Array] = None,
    block_counts: Union[int, Array] = 16,
    block_size: int = 64,
    window_size: int = 0,
    scale: Optional[float] = None,
    cu_seqlens: Any = None,
) -> Any:
    """Native sparse attention of q ``[B, Tq, HQ, K]``, k ``[B, T, H, K]`` and v ``[B, T, H, V]`` with gates ``[B, Tq, HQ]``. Returns o
    ``[B, Tq, HQ, V]``.

    ``block_indices`` ``[B, Tq, H, S]`` are the selected blocks of ``block_size`` tokens, -1 for none; duplicates count once. Without them
    the compressed branch, which requires ``g_cmp``, selects the ``block_counts`` most important blocks. The default of ``g_slc`` is 1. A
    ``window_size`` above 0 requires ``g_swa``. ``cu_seqlens`` ``[N + 1]``, or a pair for q and k, are the offsets of packed sequences in
    one row."""
    if block_indices is None and g_cmp is None:
        raise ValueError("parallel_nsa needs `block_indices`, or `g_cmp` to select blocks by")
    if window_size > 0 and g_swa is None:
        raise ValueError("parallel_nsa needs `g_swa` with a `window_size`")
    if block_indices is not None and g_cmp is not None:
        warnings.warn("`block_indices` are given: they replace the selection by the compressed branch", stacklevel=2)
    if g_slc is None:
        g_slc = q.new_ones(q.shape[:-1])  # type: ignore[attr-defined]
    offsets, offsets_k = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, None)
    tensors = [None if one is None else flat(offsets, one)[0] for one in (q, k, v, g_cmp, g_slc, g_swa if window_size > 0 else None)]
    blocks = _chosen(block_indices, block_counts, offsets)
    found = ops.nsa(
        *tensors[:3],
        g_cmp=tensors[3],
        g_slc=tensors[4],
        g_swa=tensors[5],
        scale=scale,
        compress_block=block_size,
        compress_stride=block_size,
        select_block=block_size,
        select_count=block_counts if block_indices is None else None,
        window=window_size or None,
        overlap=False,
        block_indices=blocks,
        cu_seqlens=None if offsets is None else offsets.int(),
        cu_seqlens_k=None if offsets_k is None else offsets_k.int(),
    )
    return found.view(*q.shape[:-1], v.shape[-1])


def _chosen(block_indices: Any, block_counts: Any, offsets: Any) -> Any:
    """The selected blocks in int32, limited to ``block_counts`` per query."""
    if block_indices is None:
        if not isinstance(block_counts, int):
            raise NotImplementedError("firstlight's parallel_nsa does not take `block_counts` of each query without `block_indices`")
        if block_counts < _FORCED:
            raise NotImplementedError(f"firstlight's parallel_nsa does not take `block_counts` below {_FORCED} without `block_indices`")
        return None
    blocks = block_indices.int()
    if not isinstance(block_counts, int):
        import torch

        place = torch.arange(blocks.shape[-1], device=blocks.device)
        blocks = blocks.masked_fill(place >= block_counts[..., None], -1)
    return flat(offsets, blocks)[0].contiguous()
