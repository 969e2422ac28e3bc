"""Writes integer checkpoints with the libraries of their formats, and the values that these libraries dequantize."""

import importlib
import json
import logging
import sys
import types

import torch
from written import package, write

logging.disable(logging.WARNING)
torch.manual_seed(5)


def compressed_tensors():
    from compressed_tensors.compressors.quantized_compressors import pack_quantized
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams

    compressor = pack_quantized.PackedQuantizationCompressor.__new__(
        pack_quantized.PackedQuantizationCompressor
    )
    groups, tensors, want = {}, {}, {}
    cases = [
        (bits, group, symmetric, order, dtype)
        for bits, dtype in [(4, torch.bfloat16), (8, torch.float16), (4, torch.float32)]
        for group in [None, 32, 64]
        for symmetric in [True, False]
        for order in ([False, True] if group else [False])
    ]
    for at, (bits, group, symmetric, order, dtype) in enumerate(cases):
        # An odd number of rows; with one scale per row, columns that end within a word.
        rows, columns = 37, 192 if group else 131
        args = QuantizationArgs(
            num_bits=bits,
            type="int",
            symmetric=symmetric,
            strategy="group" if group else "channel",
            group_size=group,
            actorder="group" if order else None,
        )
        weight = (torch.randn(rows, columns) / 5 + torch.randn(rows, 1) / 9).to(dtype)
        g_idx = torch.arange(columns) // (group or columns)
        if order:
            g_idx = g_idx[torch.randperm(columns)]
        count = columns // group if group else 1
        low = torch.stack([weight[:, g_idx == of].amin(1) for of in range(count)], 1)
        high = torch.stack([weight[:, g_idx == of].amax(1) for of in range(count)], 1)
        scale, zero = calculate_qparams(low, high, args)
        scale, zero = scale.to(dtype), zero.to(torch.int8)
        made = compressor.compress_weight(
            weight, scale, args, zero_point=zero, g_idx=g_idx.int() if order else None
        )
        module = f"model.layers.{at}.mlp.up_proj"
        for key, value in made.items():
            tensors[f"{module}.{key}"] = value
        tensors[f"{module}.weight_scale"] = scale
        if order:
            tensors[f"{module}.weight_g_idx"] = g_idx.int()
        numbers = pack_quantized.unpack_from_int32(made["weight_packed"], bits, weight.shape)
        if not symmetric:
            zero = pack_quantized.unpack_from_int32(
                made["weight_zero_point"], bits, zero.shape, packed_dim=0
            )
        want[module] = dequantize(
            x_q=numbers, scale=scale, zero_point=zero, args=args, g_idx=g_idx.int() if order else None
        )
        weights = json.loads(args.model_dump_json())
        groups[f"group_{at}"] = {"targets": [f"re:.*layers[.]{at}[.].*"], "weights": weights}
    ignored = torch.randn(5, 7)
    tensors["lm_head.weight"] = want["lm_head"] = ignored
    config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": groups,
        "ignore": ["lm_head", "re:.*router"],
    }
    write("compressed-tensors", config, tensors, want)


def gptq():
    for name in ["auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"]:
        package(name)
    qlinear = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda")
    for bits, group, order, symmetric, second in [
        (4, 64, False, False, False),
        (4, 32, True, False, False),
        (8, 32, True, True, False),
        (8, 64, False, False, True),
        (4, -1, False, True, True),
    ]:
        # With groups of 64, the last one has half the columns.
        columns, rows = 224, 96
        size = columns if group == -1 else group
        linear = torch.nn.Linear(columns, rows, bias=False, dtype=torch.float16)
        linear.weight.data = (torch.randn(rows, columns) / 6).half()
        g_idx = torch.arange(columns) // size
        if order:
            g_idx = g_idx[torch.randperm(columns)]
        weight, count, most = linear.weight.data.float(), int(g_idx.max()) + 1, 2**bits - 1
        low = torch.stack([weight[:, g_idx == of].amin(1) for of in range(count)], 1)
        high = torch.stack([weight[:, g_idx == of].amax(1) for of in range(count)], 1)
        if symmetric:
            high = torch.maximum(high, -low)
            low = -high
        scale = ((high - low) / most).half().float()
        zero = torch.full_like(scale, 2 ** (bits - 1)) if symmetric else (-low / scale).round().clamp(1, most)
        if symmetric:
            # Otherwise the largest weight of a group would exceed the range by one step.
            scale = (scale * 1.02).half().float()
        # Keeps integers in range, which the packer does not check.
        of_column = [scale[:, g_idx], zero[:, g_idx]]
        numbers = (weight / of_column[0] + of_column[1]).round().clamp(0, most)
        linear.weight.data = ((numbers - of_column[1]) * of_column[0]).half()
        layer = qlinear.QuantLinear(bits, group, columns, rows, bias=False)
        layer.pack(linear, scale, zero, g_idx=g_idx.int())
        # The weights that its forward pass uses, exactly: applied to the identity matrix in float32.
        layer.scales = layer.scales.float()
        want = layer(torch.eye(columns)).t().half()
        layer.scales = layer.scales.half()
        tensors = {key: getattr(layer, key) for key in ["qweight", "qzeros", "scales", "g_idx"]}
        if second:
            # The second version stores zero points unchanged.
            each = sum(1 << shift for shift in range(0, 32, bits))
            wide = tensors["qzeros"].to(torch.int64) % 2**32 + each
            tensors["qzeros"] = wide.to(torch.int32)
        config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": order, "sym": symmetric}
        if second:
            config["checkpoint_format"] = "gptq_v2"
        module = "model.layers.0.self_attn.q_proj"
        named = {f"{module}.{key}": value for key, value in tensors.items()}
        write(f"gptq-{bits}-{group}-{order}-{second}", config, named, {module: want})


def awq():
    for name in ["awq", "awq.modules", "awq.modules.linear", "awq.utils"]:
        package(name)
    # It would select the device.
    sys.modules["awq.utils.utils"] = types.ModuleType("awq.utils.utils")
    sys.modules["awq.utils.utils"].get_best_device = lambda: "cpu"
    gemm = importlib.import_module("awq.modules.linear.gemm")
    packing = importlib.import_module("awq.utils.packing_utils")
    for group in [32, 64, -1]:
        columns, rows = 192, 96
        size = columns if group == -1 else group
        linear = torch.nn.Linear(columns, rows, bias=False, dtype=torch.float16)
        weight = (torch.randn(rows, columns) / 6).half()
        parts = weight.float().reshape(rows, -1, size)
        low, high = parts.amin(2), parts.amax(2)
        scale = ((high - low) / 15).clamp(min=1e-5).half()
        zero = (-low / scale.float()).round().clamp(0, 15)
        of = [value.float().repeat_interleave(size, 1) for value in (scale, zero)]
        numbers = (weight.float() / of[0] + of[1]).round().clamp(0, 15)
        linear.weight.data = (numbers - of[1]) * of[0]
        layer = gemm.WQLinear_GEMM.from_linear(
            linear, 4, size, scales=scale.t().contiguous(), zeros=zero.t().contiguous()
        )
        want = packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales, 4, size).t()
        config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
        module = "model.layers.0.mlp.down_proj"
        named = {f"{module}.{key}": getattr(layer, key) for key in ["qweight", "qzeros", "scales"]}
        write(f"awq-{group}", config, named, {module: want})


compressed_tensors()
gptq()
awq()
