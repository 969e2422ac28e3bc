"""Writes MXFP4 checkpoints, and the values that transformers and compressed-tensors dequantize.

They contain every byte, and every scale except NaN, including the smallest and the largest.
"""

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors
from written import write

torch.manual_seed(9)


def numbers(*shape):
    """Every byte value in random order, repeated to fill the shape."""
    count = torch.Size(shape).numel()
    every = torch.arange(256, dtype=torch.uint8).repeat(count // 256 + 1)
    return every[:count][torch.randperm(count)].reshape(shape)


def scales(*shape):
    count = torch.Size(shape).numel()
    every = torch.arange(255, dtype=torch.uint8).repeat(count // 255 + 1)
    return every[:count][torch.randperm(count)].reshape(shape)


def transformers():
    tensors, want = {}, {}
    for layer, (experts, rows, groups) in enumerate([(3, 37, 3), (2, 130, 1), (1, 1, 5), (5, 8, 8)]):
        for name in ["gate_up_proj", "down_proj"]:
            blocks, of_blocks = numbers(experts, rows, groups, 16), scales(experts, rows, groups)
            module = f"model.layers.{layer}.mlp.experts.{name}"
            tensors[f"{module}_blocks"], tensors[f"{module}_scales"] = blocks, of_blocks
            dtype = torch.bfloat16 if name == "down_proj" else torch.float32
            want[module] = convert_moe_packed_tensors(blocks, of_blocks, dtype=dtype).transpose(1, 2)
    write("transformers", {"quant_method": "mxfp4"}, tensors, want)


def compressed_tensors():
    try:
        from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    except ImportError:
        print("compressed-tensors is not here, or has no MXFP4 that it reads itself")
        return
    tensors, want = {}, {}
    for layer, (rows, groups) in enumerate([(37, 3), (130, 1), (1, 5)]):
        module = f"model.layers.{layer}.mlp.up_proj"
        state = {"weight_packed": numbers(rows, groups * 16), "weight_scale": scales(rows, groups)}
        tensors |= {f"{module}.{key}": value for key, value in state.items()}
        # Needs only the state.
        want[f"{module}.weight"] = MXFP4PackedCompressor.decompress(state, None)["weight"]
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    config = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    write("compressed-tensors", config, tensors, want)


transformers()
compressed_tensors()
