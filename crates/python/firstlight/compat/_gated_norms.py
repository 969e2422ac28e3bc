"""``rmsnorm_fn`` and ``layernorm_fn`` of mamba-ssm's ops/triton/layernorm_gated."""

from __future__ import annotations

from typing import Any, Optional

from .. import ops
from .._types import Array
from . import unsupported


def layernorm_fn(
    x: Array,
    weight: Array,
    bias: Optional[Array],
    z: Optional[Array] = None,
    eps: float = 1e-6,
    group_size: Optional[int] = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
) -> Any:
    """``rmsnorm_fn``, if ``is_rms_norm`` is set; firstlight has no norm that subtracts the mean."""
    unsupported("layernorm_fn", layer_norm_with_a_mean=not is_rms_norm)
    return rmsnorm_fn(x, weight, bias, z, eps, group_size, norm_before_gate)


def rmsnorm_fn(
    x: Array,
    weight: Array,
    bias: Optional[Array],
    z: Optional[Array] = None,
    eps: float = 1e-6,
    group_size: Optional[int] = None,
    norm_before_gate: bool = True,
) -> Any:
    """x and z ``[..., D]``, weight ``[D]``. Normalises each group of ``group_size`` channels (default: all channels) and multiplies by the
    weight; silu(z) multiplies the result with ``norm_before_gate``, otherwise x."""
    unsupported("rmsnorm_fn", bias=bias is not None)
    if group_size is None or group_size == x.shape[-1]:
        return ops.rms_norm(x, weight, gate=z, eps=eps, norm_before_gate=norm_before_gate)
    shape = x.shape
    if shape[-1] % group_size:
        raise ValueError(f"{shape[-1]} channels are no multiple of `group_size` {group_size}")
    groups = (shape[-1] // group_size, group_size)
    x, z = (None if one is None else one.reshape(1, -1, *groups) for one in (x, z))
    return ops.rms_norm(x, weight.reshape(groups), gate=z, eps=eps, norm_before_gate=norm_before_gate).reshape(shape)
