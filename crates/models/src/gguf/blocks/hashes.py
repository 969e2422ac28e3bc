"""Writes hashes of the values that gguf-py dequantizes from the blocks of `tests.rs`, a line for each type: NAME HASH."""

import numpy as np
from written import OUT, package

package("gguf")
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type  # noqa: E402
from gguf.quants import dequantize  # noqa: E402

COUNT = 10_000
# Byte offsets of float16 scales and offsets in a block.
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [],
}
# Zeros, infinities, NaN, subnormal numbers and the smallest normal one.
SPECIAL = np.array([0, 0x8000, 0x7C00, 0xFC00, 0x7E00, 1, 0x83FF, 0x400], np.uint16)


def mix(x):
    """The output of SplitMix64 for states."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(name):
    size = GGML_QUANT_SIZES[Type[name]][1]
    words = np.arange(-(-COUNT * size // 8), dtype=np.uint64)
    blocks = mix(words).astype("<u8").view(np.uint8)[: COUNT * size].reshape(COUNT, size)
    for nth, at in enumerate(HALVES[name]):
        special = SPECIAL[(np.arange(0, COUNT, 8) // 8 + nth) % 8].astype("<u2")
        blocks[::8, at : at + 2] = special.view(np.uint8).reshape(-1, 2)
    with np.errstate(all="ignore"):
        values = dequantize(blocks, Type[name]).astype(np.float32).reshape(-1)
    bits = np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32)).astype(np.uint64)
    return int(mix(np.arange(len(bits), dtype=np.uint64) << np.uint64(32) | bits).sum(dtype=np.uint64))


lines = [f"{name} {hashed(name):016x}" for name in HALVES]
(OUT / "hashes.txt").write_text("\n".join(lines) + "\n")
