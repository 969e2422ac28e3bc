"""Quantizes, packs and unpacks int8 and int4 weights for ``ops.linear`` and ``ops.moe``.

Functions take torch or numpy arrays ``[..., N, K]`` and return arrays of the same library. Scales and zero points are ``[..., G, N]``, the
layout of the ops: G groups of columns per row, 1 for one scale per row.
"""

from __future__ import annotations

from typing import Any, Optional

from ._arrays import library_of
from ._projections import columns_of_group
from ._types import A, Array

__all__ = ["dequantize", "pack_int4", "quantize_int4", "quantize_int8", "unpack_int4"]


def pack_int4(values: A) -> A:
    """Packs values from 0 to 15, ``[..., K]`` with an even K, as uint8 ``[..., K / 2]``: two adjacent values per byte, the first in the low half."""
    if values.shape[-1] % 2:
        raise ValueError(f"{values.shape[-1]} columns: the number must be even, because two int4 values share a byte")
    values = _cast(values, "uint8")
    return values[..., 0::2] | (values[..., 1::2] << 4)


def unpack_int4(packed: A) -> A:
    """Reverses ``pack_int4``: values from 0 to 15 as uint8 ``[..., K]``."""
    module = library_of(packed).module
    return module.stack((packed & 15, packed >> 4), -1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def quantize_int8(w: A, group: Optional[int] = None) -> tuple[A, A]:
    """Quantizes weights to int8. Returns q and the scales (float32): ``w`` is about ``q * scale``, and the largest absolute value of each
    group is 127. ``group`` is the group size in columns; without it each row has one scale."""
    grouped, columns = _grouped(w, group)
    largest = abs(grouped).max(-1)
    scale = _nonzero(_values(largest) / 127)
    q = _cast((grouped / scale[..., None]).round(), "int8")
    return _ungrouped(q, columns), _transposed(scale)


def quantize_int4(w: A, group: int = 128, zero_points: bool = False) -> tuple[A, A, Optional[A]]:
    """Quantizes weights to packed int4. Returns q, the scales (float32) and the zero points: ``w`` is about ``scale * (q - zero)``.

    Without ``zero_points`` they are None, for which the ops use 8, and the largest absolute value of each group is 7 scales. With them
    (uint8) the 15 steps of a group span its values and 0. The offset for ``ops.moe`` is ``scale * zero``."""
    grouped, columns = _grouped(w, group)
    if zero_points:
        low, high = _values(grouped.min(-1)), _values(grouped.max(-1))
        low, high = (low - abs(low)) / 2, (high + abs(high)) / 2
        scale = _nonzero((high - low) / 15)
        zero = (-low / scale).round()
        q = (grouped / scale[..., None]).round() + zero[..., None]
    else:
        scale = _nonzero(_values(abs(grouped).max(-1)) / 7)
        zero = None
        q = (grouped / scale[..., None]).round() + 8
    packed = pack_int4(_ungrouped(q.clip(0, 15), columns))
    return packed, _transposed(scale), None if zero is None else _transposed(_cast(zero, "uint8"))


def dequantize(w: A, scale: Array, zero: Optional[Array] = None, offset: Optional[Array] = None, group: Optional[int] = None) -> A:
    """The weights ``[..., N, K]`` in float32 that the ops use, before rounding to bfloat16. ``group`` is the group size in columns, by default
    as for ``ops.linear``."""
    is_int4 = str(w.dtype).endswith("uint8")
    values = _cast(unpack_int4(w) if is_int4 else w, "float32")
    columns, groups = values.shape[-1], scale.shape[-2]
    group = group or (columns if groups == 1 else columns_of_group("scale", columns, groups))
    each = library_of(w).int32([at // group for at in range(columns)], w)

    def spread(one):
        return _transposed(_cast(one, "float32")[..., each, :])

    if offset is not None:
        return values * spread(scale) - spread(offset)
    if not is_int4:
        return values * spread(scale)
    return (values - (8 if zero is None else spread(zero))) * spread(scale)


def _cast(array, name):
    module = library_of(array).module
    return array.astype(name) if module.__name__ == "numpy" else array.to(getattr(module, name))


def _values(found):
    """The values of a minimum or maximum, for which torch returns indices too."""
    return getattr(found, "values", found)


def _nonzero(scale):
    return scale + (scale == 0)


def _transposed(array):
    module = library_of(array).module
    array = module.swapaxes(array, -1, -2)
    return module.ascontiguousarray(array) if module.__name__ == "numpy" else array.contiguous()


def _grouped(w, group):
    """Weights in float32 as ``[..., N, G, group]``, the last group padded with zeros, and the number of columns."""
    w = _cast(w, "float32")
    columns = w.shape[-1]
    group = group or columns
    missing = -columns % group
    if missing:
        module = library_of(w).module
        padding = w[..., :1].repeat(missing, -1) * 0 if module.__name__ == "numpy" else w.new_zeros((*w.shape[:-1], missing))
        w = module.concatenate((w, padding), -1)
    return w.reshape(*w.shape[:-1], -1, group), columns


def _ungrouped(grouped, columns):
    flat = grouped.reshape(*grouped.shape[:-2], -1)[..., :columns]
    return flat if library_of(flat).is_contiguous(flat) else library_of(flat).contiguous(flat)
