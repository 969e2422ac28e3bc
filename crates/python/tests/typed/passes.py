"""Type checkers must accept these calls with numpy arrays."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import numpy.typing as npt

import firstlight
import firstlight.compat.causal_conv1d
import firstlight.compat.fla
import firstlight.compat.flash_attn
import firstlight.compat.mamba_ssm
import firstlight.kernels
import firstlight.transformers
from firstlight import ops, quantization

Floats = npt.NDArray[np.float32]


def attention(q: Floats, k: Floats, v: Floats, offsets: npt.NDArray[np.int32]) -> Floats:
    o = ops.attention(q, k, v, causal=True, window=(16, -1), cu_seqlens=offsets, max_seqlen=7)
    p, lse = ops.attention(q, k, v, scale=0.5, window=None, return_lse=True, out=o)
    return o + p + lse


def choice(q: Floats, k: Floats, with_lse: bool) -> Floats:
    found = ops.attention(q, k, value_width=8, return_lse=with_lse)
    return found[0] if isinstance(found, tuple) else found


def states(x: Floats, state: Optional[Floats]) -> Floats:
    y, final = ops.conv1d(x, x[0], activation="silu", layout="channel_first", initial_state=state, return_state=True)
    z = ops.ssd(x, x, x, x, x, D=None, dt_limit=(0.0, 1.0), state=final)
    u, after = ops.selective_scan(x, x, x, x, x, return_state=True)
    o: Floats = ops.gated_delta(x, x, x, x, x, l2norm=True, state=after)
    return y + z + u + o + ops.kda(x, x, x, x, x, gate="safe", lower_bound=-5.0)


def layers(x: Floats) -> Floats:
    o, chosen, weights = ops.moe(x, x, x, x, top_k=2, score="sigmoid", return_choice=True)
    n, indices = ops.nsa(x, x, x, g_cmp=x, pooling="mean", return_indices=True)
    return ops.linear(ops.rms_norm(x, gate=x, eps=1e-6, activation="sigmoid"), x, activation="swiglu") + o + chosen + weights + n + indices


def quantized(x: Floats, w: Floats) -> Floats:
    packed, scale, zero = quantization.quantize_int4(w, group=32, zero_points=True)
    y: Floats = ops.linear(x, packed, w_scale=scale, w_zero=zero, w_group=32, out_dtype="float32")
    return y + ops.moe(x, x, w, w, top_k=2, activation="clamped_swiglu", limit=7.0, always=1)


def evidence(x: Floats) -> list[str]:
    kernel: str = firstlight.why("rms_norm", x=x)["kernel"]
    counts: dict[str, int] = firstlight.status()["launches"]
    settings: list[dict[str, Any]] = firstlight.tables()["ssd"]["settings"]
    return [kernel, *counts, *(setting["name"] for setting in settings), *firstlight.launches(-1), firstlight.__version__]


def other_packages(x: Floats) -> None:
    with firstlight.patch("mamba_ssm", force=True) as patched:
        names: list[str] = patched.names
        print(names, patched.kept)
    firstlight.patch().undo()
    firstlight.compat.flash_attn.flash_attn_func(x, x, x, causal=True)
    firstlight.compat.mamba_ssm.mamba_chunk_scan_combined(x, x, x, x, x, 64)
    firstlight.compat.causal_conv1d.causal_conv1d_fn(x, x, activation="silu")
    firstlight.compat.fla.chunk_kda(x, x, x, x, x)
    firstlight.compat.fla.parallel_nsa(x, x, x, g_cmp=x, window_size=64, g_swa=x, cu_seqlens=(x, x))
    layers: tuple[str, ...] = firstlight.kernels.layers.NAMES
    print(layers, firstlight.kernels.PATH.name, sorted(firstlight.kernels.mapping()), firstlight.kernels.config())


def models(model: object) -> dict[str, int]:
    enabled = firstlight.transformers.enable(model)
    replaced: dict[str, list[str]] = enabled.replaced
    left: dict[str, str] = enabled.left
    changed: dict[str, str] = enabled.changed
    print(enabled, replaced, left, changed)
    firstlight.transformers.disable()
    firstlight.transformers.forget()
    try:
        return firstlight.transformers.report()["firstlight"]
    except firstlight.Refused:
        return {}
