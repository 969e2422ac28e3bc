"""Compares ``ops.linear`` and ``ops.moe`` with quantized weights to float64 with the dequantized weights: ``python quantized.py [cuda]``.

It prints a line for each case and ends with 1 if one fails.
"""

import sys

import cases
import numpy as np
import torch

from firstlight import ops, quantization
from firstlight._library import Refused

DEVICE = "cuda" if "cuda" in sys.argv[1:] else "cpu"
# A bfloat16 GEMM with float32 accumulation and a bfloat16 result; two such GEMMs with a bfloat16 intermediate.
ALLOWED, ALLOWED_MOE = 4e-3, 8e-3
torch.manual_seed(3)


def check(name, found, wanted, allowed=ALLOWED):
    cases.near(name, found, wanted, allowed)


def refused(name, call, words):
    cases.refused(name, call, words, (Refused, ValueError, TypeError))


def draw(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def dequantized(w, scale, zero=None, offset=None, group=None):
    """The weights in float64 by the definition, independent of ``quantization.dequantize``."""
    if w.dtype == torch.uint8:
        values = torch.empty(*w.shape[:-1], 2 * w.shape[-1], dtype=torch.float64, device=w.device)
        values[..., 0::2], values[..., 1::2] = (w % 16).double(), (w // 16).double()
    else:
        values = w.double()
    columns, groups = values.shape[-1], scale.shape[-2]
    each = columns if groups == 1 else group or columns // groups
    for at in range(groups):
        part = values[..., at * each : (at + 1) * each]
        factor = scale[..., at, :, None].double()
        if offset is not None:
            part.copy_(part * factor - offset[..., at, :, None].double())
        elif w.dtype == torch.uint8:
            part.sub_(8 if zero is None else zero[..., at, :, None].double()).mul_(factor)
        else:
            part.mul_(factor)
    return values


def act(name, y, limit=7.0, alpha=1.702):
    if name == "swiglu":
        gate, up = y.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up
    if name == "relu_squared":
        return y.clamp(min=0) ** 2
    if name == "clamped_swiglu":
        gate, up = y.chunk(2, -1)
        gate = gate.clamp(max=limit)
        return gate * torch.sigmoid(alpha * gate) * (up.clamp(-limit, limit) + 1)
    return y


def linear():
    for rows, columns, tokens in ((96, 256, 1), (64, 200, 5), (33, 64, 40), (128, 1024, 3)):
        w, x = draw(rows, columns, dtype=torch.float32), draw(tokens, columns)
        shape = f"{tokens}x{columns}x{rows}"
        for group in (None, 16, 64):
            if group and columns % group:
                continue
            q, scale = quantization.quantize_int8(w, group)
            assert q.dtype == torch.int8 and scale.shape == (1 if group is None else columns // group, rows)
            check(f"linear int8 {shape}, groups of {group}", ops.linear(x, q, w_scale=scale), x.double() @ dequantized(q, scale).T)
        for group, zeros in ((32, False), (64, True), (128, True), (None, True)):
            if group and columns % group and group != 128:
                continue
            q, scale, zero = quantization.quantize_int4(w, group, zeros)
            assert q.dtype == torch.uint8 and q.shape == (rows, columns // 2)
            wanted = x.double() @ dequantized(q, scale, zero, group=group).T
            check(f"linear int4 {shape}, groups of {group}, zeros {zeros}", ops.linear(x, q, w_scale=scale, w_zero=zero, w_group=group), wanted)
            if zero is not None:
                offset = scale * zero
                check("  the same by offsets", ops.linear(x, q, w_scale=scale, w_offset=offset, w_group=group), wanted)
    w, x = draw(96, 256, dtype=torch.float32), draw(2, 3, 256)
    q, scale, zero = quantization.quantize_int4(w, 64, True)
    plain = dequantized(q, scale, zero)
    flat = x.reshape(6, 256).double()
    half = scale.to(torch.bfloat16)
    check("scales in bfloat16", ops.linear(x[0], q, w_scale=half, w_zero=zero), flat[:3] @ dequantized(q, half, zero).T)
    check("x of three dimensions", ops.linear(x, q, w_scale=scale, w_zero=zero), (flat @ plain.T).reshape(2, 3, 96))
    check("x in float32", ops.linear(x[0].float(), q, w_scale=scale, w_zero=zero), flat[:3] @ plain.T)
    residual = draw(2, 3, 48, dtype=torch.float32)
    norm, bias = draw(256).abs() + 1, draw(96)
    normed = flat / (flat.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.double()
    wanted = residual.double() + 0.5 * act("swiglu", normed @ plain.T + bias.double()).reshape(2, 3, 48)
    found = ops.linear(x, q, w_scale=scale, w_zero=zero, norm=norm, bias=bias, residual=residual, activation="swiglu", scale=0.5)
    check("norm, bias, swiglu and residual of three dimensions", found, wanted)
    out = torch.empty(2, 3, 96, device=DEVICE, dtype=torch.bfloat16).transpose(0, 1).contiguous().transpose(0, 1)
    found = ops.linear(x, q, w_scale=scale, w_zero=zero, out=out)
    check("a strided output of three dimensions", out, (flat @ plain.T).reshape(2, 3, 96))
    assert found is out
    found = ops.linear(x, q, w_scale=scale, w_zero=zero, out_dtype=torch.float32)
    check("a result in float32", found, (flat @ plain.T).reshape(2, 3, 96), 1e-3)
    assert found.dtype == torch.float32
    order = torch.randperm(256, device=DEVICE).int()
    check("columns in another order", ops.linear(x, q, w_scale=scale, w_zero=zero, x_order=order), (flat[:, order.long()] @ plain.T).reshape(2, 3, 96))
    a, b = draw(5, 64), draw(7, 64)
    check("plain weights, x of four dimensions", ops.linear(a.reshape(1, 5, 1, 64), b), (a.double() @ b.double().T).reshape(1, 5, 1, 7))
    check("relu_squared", ops.linear(a, b, activation="relu_squared"), act("relu_squared", a.double() @ b.double().T))
    refused("int4 without scales", lambda: ops.linear(x[0], q), "w_scale")
    refused("zero points of int8", lambda: ops.linear(x[0], quantization.quantize_int8(w)[0], w_scale=scale[:1], w_zero=zero[:1]), "u4")
    refused("groups that fit nothing", lambda: ops.linear(x[0], q, w_scale=draw(7, 96, dtype=torch.float32)), "7 groups")
    refused("groups of 48", lambda: ops.linear(x[0], q, w_scale=scale, w_group=48), "multiple of 32")
    refused("another type of result", lambda: ops.linear(x[0], q, w_scale=scale, out_dtype="float16"), "out_dtype")
    eight, factors = quantization.quantize_int8(w)
    refused("int8 as x", lambda: ops.linear(eight, eight, w_scale=factors), "tensor `x`")


def experts(x, logits, top, up, down, activation, biases=(None, None), always=0, first=0, here=None):
    """The op's formula in float64, with weights by softmax over the chosen."""
    x, logits = x.double(), logits.double()
    count = logits.shape[1]
    here = range(count) if here is None else range(first, first + here)
    values, chosen = logits.topk(top, -1)
    weights = values.softmax(-1)
    found = torch.zeros(x.shape[0], down.shape[1], dtype=torch.float64, device=x.device)
    for t in range(x.shape[0]):
        taken = [(int(e), w) for e, w in zip(chosen[t], weights[t]) if int(e) in here]
        taken += [(count + at, 1.0) for at in range(always)]
        for e, weight in taken:
            y = up[e - first] @ x[t] + (0 if biases[0] is None else biases[0][e - first].double())
            z = down[e - first] @ act(activation, y) + (0 if biases[1] is None else biases[1][e - first].double())
            found[t] += weight * z
    return found


def moe():
    count, top, hidden, inner, always = 6, 2, 128, 64, 2
    for activation in ("swiglu", "relu_squared", "clamped_swiglu"):
        rows = inner if activation == "relu_squared" else 2 * inner
        for tokens in (1, 9):
            x, logits = draw(tokens, hidden), draw(tokens, count, dtype=torch.float32)
            up, down = draw(count + always, rows, hidden, dtype=torch.float32) / 8, draw(count + always, hidden, inner, dtype=torch.float32) / 8
            biases = (draw(count + always, rows, dtype=torch.float32), draw(count + always, hidden, dtype=torch.float32))
            given = {"gate_up_bias": biases[0], "down_bias": biases[1]} if activation == "clamped_swiglu" else {}
            biases = biases if given else (None, None)
            for kind in ("bfloat16", "int8", "int8 in groups", "int4", "int4 with offsets"):
                scales = {}
                if kind == "bfloat16":
                    w = [up.bfloat16(), down.bfloat16()]
                    plain = [one.double() for one in w]
                elif kind.startswith("int8"):
                    made = [quantization.quantize_int8(one, 32 if "groups" in kind else None) for one in (up, down)]
                    scales = {"gate_up_scale": made[0][1], "down_scale": made[1][1]}
                    w, plain = [one[0] for one in made], [dequantized(*one) for one in made]
                else:
                    made = [quantization.quantize_int4(one, 32, "offsets" in kind) for one in (up, down)]
                    scales = {"gate_up_scale": made[0][1], "down_scale": made[1][1]}
                    if "offsets" in kind:
                        scales.update(gate_up_offset=made[0][1] * made[0][2], down_offset=made[1][1] * made[1][2])
                    w, plain = [one[0] for one in made], [dequantized(*one) for one in made]
                found = ops.moe(x, logits, *w, top_k=top, activation=activation, always=always, **scales, **given)
                wanted = experts(x, logits, top, *plain, activation, biases, always)
                check(f"moe {activation}, {kind}, {tokens} tokens, shared experts", found, wanted, ALLOWED_MOE)
    x, logits = draw(2, 3, hidden), draw(2, 3, count, dtype=torch.float32)
    (up, up_scale), (down, down_scale) = (quantization.quantize_int8(draw(count, *shape, dtype=torch.float32) / 8) for shape in ((2 * inner, hidden), (hidden, inner)))
    plain = dequantized(up, up_scale), dequantized(down, down_scale)
    residual = draw(2, 3, hidden, dtype=torch.float32)
    scales = {"gate_up_scale": up_scale, "down_scale": down_scale}
    found, chosen, weights = ops.moe(x, logits, up, down, top_k=top, residual=residual, scale=0.5, return_choice=True, **scales)
    wanted = residual.double() + 0.5 * experts(x.reshape(6, hidden), logits.reshape(6, count), top, *plain, "swiglu").reshape(2, 3, hidden)
    check("moe of three dimensions with a residual", found, wanted, ALLOWED_MOE)
    check("  its choice", chosen, logits.topk(top, -1).indices, 0)
    check("  its weights", weights, logits.double().topk(top, -1).values.softmax(-1), 1e-5)
    some = {name: scale[2:5].contiguous() for name, scale in scales.items()}
    part = ops.moe(x, logits, up[2:5].contiguous(), down[2:5].contiguous(), top_k=top, experts_first=2, **some)
    wanted = experts(x.reshape(6, hidden), logits.reshape(6, count), top, *(one[2:5] for one in plain), "swiglu", first=2, here=3)
    check("moe of experts 2 to 4", part, wanted.reshape(2, 3, hidden), ALLOWED_MOE)
    refused("quantized experts without scales", lambda: ops.moe(x, logits, up, down, top_k=top), "gate_up_scale")
    refused("quantized experts with x in float16", lambda: ops.moe(x.half(), logits, up, down, top_k=top, **scales), "bf16")
    refused("biases without clamped_swiglu", lambda: ops.moe(x, logits, up, down, top_k=top, gate_up_bias=residual[0], **scales), "clamped_swiglu")


def helpers():
    values = torch.randint(0, 16, (3, 5, 10), dtype=torch.uint8)
    packed = quantization.pack_int4(values)
    check("unpack_int4 of pack_int4", quantization.unpack_int4(packed), values, 0)
    check("the first of two is in the low half", packed, values[..., 0::2].int() + 16 * values[..., 1::2].int(), 0)
    refused("an odd number of columns", lambda: quantization.pack_int4(values[..., :9]), "9 columns")
    w = torch.randn(2, 24, 200) + 0.3
    w[0, 3] = 0
    for group in (None, 32, 128):
        padded = group or 200
        groups = -(-200 // padded)
        each = torch.nn.functional.pad(w, (0, groups * padded - 200)).reshape(2, 24, groups, padded)
        largest = each.abs().amax(-1, keepdim=True)
        span = each.amax(-1, keepdim=True).clamp(min=0) - each.amin(-1, keepdim=True).clamp(max=0)
        for name, made, steps in (
            ("int8", (*quantization.quantize_int8(w, group), None), largest / 127),
            ("int4", quantization.quantize_int4(w, group), largest / 7),
            ("int4 with zero points", quantization.quantize_int4(w, group, True), span / 15),
        ):
            found = quantization.dequantize(*made, group=group)
            check(f"dequantize {name}, groups of {group}", found, dequantized(*made, group=group), 1e-6)
            error = torch.nn.functional.pad((found - w).abs(), (0, groups * padded - 200)).reshape(each.shape)
            # Half a step, and half a step more of a rounded zero point.
            worst = (error / steps.clamp(min=1e-9))[..., :].amax().item()
            check(f"quantize {name}, groups of {group}: error in steps", torch.tensor(worst <= (1.001 if "zero" in name else 0.501)), torch.tensor(1.0), 0)
            arrays = [None if one is None else one.numpy() for one in made]
            again = quantization.quantize_int8(w.numpy(), group) if name == "int8" else quantization.quantize_int4(w.numpy(), group, "zero" in name)
            same = all(one is None and other is None or np.array_equal(one, other) for one, other in zip(arrays, [*again, None]))
            check("  the same of numpy's arrays", torch.tensor(same), torch.tensor(1.0), 0)
    q, scale, zero = quantization.quantize_int4(w[0].numpy(), 32, True)
    x = np.random.default_rng(0).standard_normal((3, 200)).astype("float32")
    wanted = torch.as_tensor(x).bfloat16().double() @ dequantized(*map(torch.as_tensor, (q, scale, zero)), group=32).T
    check("linear of numpy's arrays", ops.linear(x, q, w_scale=scale, w_zero=zero, w_group=32, out_dtype="float32"), wanted)
    refused("a result that numpy cannot have", lambda: ops.linear(x, q, w_scale=scale, w_zero=zero, w_group=32), "bfloat16")


def traced():
    """Dispatcher operators return the results of eager calls, and their fake kernels the same shapes and types."""
    w, x = draw(96, 256, dtype=torch.float32), draw(2, 3, 256)
    q, scale, zero = quantization.quantize_int4(w, 64, True)

    def work(x):
        y = ops.linear(x, q, w_scale=scale, w_zero=zero, out_dtype="float32")
        return ops.linear(y.to(torch.bfloat16), draw_w, activation="relu_squared")

    draw_w = draw(5, 96)
    compiled = torch.compile(work, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        check("linear int4 in a compiled graph", compiled(x), work(x), 1e-6)
        up, down = (quantization.quantize_int8(draw(4, *shape, dtype=torch.float32)) for shape in ((64, 256), (256, 32)))
        logits = draw(2, 3, 4, dtype=torch.float32)

        def mixture(x, logits):
            return ops.moe(x, logits, up[0], down[0], top_k=2, gate_up_scale=up[1], down_scale=down[1], return_choice=True, always=0)[0]

        check("moe int8 in a compiled graph", torch.compile(mixture, fullgraph=True, backend="aot_eager")(x, logits), mixture(x, logits), 1e-6)


for part in (linear, moe, helpers, traced):
    part()
sys.exit(cases.end())
