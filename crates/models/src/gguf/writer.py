"""Writes one-layer models with gguf-py, a file for each type, and the values that gguf-py dequantizes: NAME/TENSOR.f32."""

import numpy as np
from written import OUT, package

package("gguf")
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type, RopeScalingType  # noqa: E402
from gguf.gguf_writer import GGUFWriter  # noqa: E402
from gguf.quants import dequantize, quantize  # noqa: E402

rng = np.random.default_rng(3)
# An odd vocabulary, and rows of one or three blocks of the largest type.
VOCABULARY, HIDDEN, INNER = 37, 256, 768
SHAPES = {
    "token_embd": (VOCABULARY, HIDDEN), "output": (VOCABULARY, HIDDEN),
    "blk.0.attn_q": (HIDDEN, HIDDEN), "blk.0.attn_k": (128, HIDDEN), "blk.0.attn_v": (128, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN), "blk.0.ffn_gate": (INNER, HIDDEN), "blk.0.ffn_up": (INNER, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, INNER),
}


# Byte offsets of float16 scales in a block, which are random.
HALVES = {
    Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2], Type.Q6_K: [208], Type.IQ4_NL: [0], Type.IQ4_XS: [0], Type.MXFP4: [], Type.NVFP4: [],
}


def blocks(kind, shape):
    """Random bits, except for scales: float16 values of both signs, some of them 0, subnormal or powers of two."""
    values, size = GGML_QUANT_SIZES[kind]
    rows, columns = shape
    data = rng.integers(0, 256, (rows, columns // values, size), dtype=np.uint8)
    if kind == Type.MXFP4:
        data[..., 0] = rng.choice([0, 1, 2, 100, 127, 200], (rows, columns // values))
    for at in HALVES[kind]:
        scales = rng.choice([0.0, -0.0, 1e-7, 1e-3, -2e-3, 0.7], (rows, columns // values)).astype(np.float16)
        data[..., at : at + 2] = scales.view(np.uint8).reshape(rows, columns // values, 2)
    return data.reshape(rows, -1)


def write(name, kind_of, scale=None):
    folder = OUT / name
    folder.mkdir(parents=True)
    writer = GGUFWriter(folder / "model.gguf", "qwen3")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_scaling_type(RopeScalingType.NONE)
    for norm, width in [("output_norm", HIDDEN), ("blk.0.attn_norm", HIDDEN), ("blk.0.ffn_norm", HIDDEN),
                        ("blk.0.attn_q_norm", 64), ("blk.0.attn_k_norm", 64)]:
        writer.add_tensor(f"{norm}.weight", rng.standard_normal(width).astype(np.float32))
    for at, (tensor, shape) in enumerate(SHAPES.items()):
        kind = kind_of(at)
        values = rng.standard_normal(shape).astype(np.float32)
        values[0] = 0
        data = blocks(kind, shape) if kind in HALVES else quantize(values, kind)
        writer.add_tensor(f"{tensor}.weight", data, raw_dtype=kind)
        wanted = dequantize(data, kind).astype("<f4")
        if scale is not None:
            # As the converter writes the second scale of NVFP4, and that of activations.
            writer.add_tensor(f"{tensor}.scale", np.array([scale], np.float32))
            writer.add_tensor(f"{tensor}.input_scale", np.array([3.0], np.float32))
            wanted *= np.float32(scale)
        wanted.tofile(folder / f"{tensor}.f32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


KINDS = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, *HALVES]
for kind in KINDS:
    write(kind.name, lambda at, kind=kind: kind)
write("scaled", lambda at: Type.NVFP4, 0.3)
write("mixed", lambda at: KINDS[at % len(KINDS)])
