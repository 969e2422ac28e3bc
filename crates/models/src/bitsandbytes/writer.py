"""Writes bitsandbytes checkpoints, and the values that bitsandbytes dequantizes."""

import logging

logging.disable(logging.WARNING)
import torch  # noqa: E402
from bitsandbytes import functional  # noqa: E402
from written import write  # noqa: E402

torch.manual_seed(7)
CONFIG = {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": False}
tensors, want = {}, {}
cases = [(kind, nested, block, dtype)
         for kind in ["nf4", "fp4"] for nested in [False, True] for block, dtype in [(64, torch.bfloat16), (128, torch.float32)]]
for at, (kind, nested, block, dtype) in enumerate(cases):
    # Odd sides, so that blocks begin within rows and the last byte has one value; more blocks than a nested block has.
    weight = torch.randn(181, 131, dtype=torch.float32).to(dtype)
    packed, state = functional.quantize_4bit(weight, blocksize=block, compress_statistics=nested, quant_type=kind)
    name = f"m{at}.weight"
    tensors[name] = packed
    for key, value in state.as_dict(packed=True).items():
        tensors[f"{name}.{key}"] = value
    want[f"m{at}"] = functional.dequantize_4bit(packed, state)
write("four", {**CONFIG, "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, tensors, want)
weight = torch.randn(37, 131, dtype=torch.float16)
numbers, scales, _ = functional.int8_vectorwise_quant(weight)
tensors = {"m.weight": numbers, "m.SCB": scales, "m.weight_format": torch.tensor(0, dtype=torch.uint8)}
write("eight", {**CONFIG, "load_in_8bit": True}, tensors, {"m": functional.int8_vectorwise_dequant(numbers, scales)})
