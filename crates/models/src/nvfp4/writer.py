"""Writes NVFP4 checkpoints in the layouts of compressed-tensors and modelopt, and the values that compressed-tensors dequantizes.

They contain every byte, and every scale except NaN and negative ones.
"""

import torch
from compressed_tensors.compressors.quantized_compressors.nvfp4_quantized import unpack_fp4_from_uint8
from compressed_tensors.quantization.lifecycle.forward import dequantize
from written import write

torch.manual_seed(9)


def drawn(kinds, *shape):
    """Every byte below ``kinds`` in random order, repeated to fill the shape."""
    count = torch.Size(shape).numel()
    every = torch.arange(kinds, dtype=torch.uint8).repeat(count // kinds + 1)
    return every[:count][torch.randperm(count)].reshape(shape)


def weights(divisor):
    for layer, (rows, groups) in enumerate([(37, 3), (130, 1), (1, 5), (64, 8)]):
        packed, scales = drawn(256, rows, groups * 8), drawn(127, rows, groups).view(torch.float8_e4m3fn)
        values = unpack_fp4_from_uint8(packed, rows, groups * 16, dtype=torch.float32)
        of_tensor = torch.tensor(divisor)
        divisor *= 2.0
        want = dequantize(x_q=values, scale=scales.float(), global_scale=of_tensor, dtype=torch.float32)
        yield f"model.layers.{layer}.mlp.up_proj", packed, scales, of_tensor, want


weight = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
groups = {"group_0": {"targets": ["Linear"], "weights": weight}}
tensors, wants = {}, {}
for module, packed, scales, of_tensor, want in weights(1843.7):
    tensors |= {f"{module}.weight_packed": packed, f"{module}.weight_scale": scales, f"{module}.weight_global_scale": of_tensor}
    wants[f"{module}.weight"] = want
config = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": groups, "ignore": ["lm_head"]}
write("compressed-tensors", config, tensors, wants)

tensors, wants = {}, {}
# The inverse of a power of two is exact.
for module, packed, scales, of_tensor, want in weights(1024.0):
    tensors |= {f"{module}.weight": packed, f"{module}.weight_scale": scales, f"{module}.weight_scale_2": 1 / of_tensor}
    tensors[f"{module}.input_scale"] = torch.tensor(0.5)
    wants[f"{module}.weight"] = want
config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}
write("modelopt", config, tensors, wants)
