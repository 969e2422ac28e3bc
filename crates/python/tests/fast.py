"""Tests that ``firstlight._fast`` writes the same records and results as the slow path, for torch tensors on the CPU.

``python fast.py``, with the package on the path. Torch before 2.10 has no DLPack exchange API, so there is nothing to compare.
"""

import sys

import torch

from firstlight import _arrays, _calls, _library

fast = _library.fast()
x = torch.randn(2, 3, 4, 5)
kind = _arrays.library_of(x)
if fast is None or not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
    print("no exchange interface: 0 passed, 0 failed")
    sys.exit()
assert fast.api(object(), torch.Tensor, torch.nn.Parameter, torch.Tensor.is_neg) == 0 and fast.api() == 0, "no capsule"
kind.is_contiguous = lambda tensor: True  # no copies of strided tensors, although the CPU requires them
assert kind.launch is not None and kind.exchange, "torch has the exchange interface from 2.10 on"
NOT_PLAIN, NO_OP = -2, 0
PASSED = 0


def lay(name, tensors, insert=(), bounds=None, device=-1, outputs=None):
    """The result of a call that writes records but has no valid handle, and its record buffer."""
    op, thread = _library.op(name), _calls._thread()
    records = _calls._RecordBuffer(op)
    records.buffer[:] = bytes([7]) * len(records.buffer)  # earlier values must not be read
    arguments = kind.exchange, records.address, op.inputs, op.outputs, len(op.inputs), op.count, thread.address
    return kind.launch(arguments, NO_OP, tensors, outputs or {}, insert or None, bounds, device), records


def same(name, tensors, insert=(), bounds=None):
    """Compares the records of an op's inputs, written by both paths."""
    global PASSED
    op = _library.op(name)
    slow = _calls._RecordBuffer(op)
    _calls._write_inputs(op, slow, kind, -1, tensors, bounds, insert)
    said, quick = lay(name, tensors, insert, bounds)
    assert said == 1 and "handle 0" in str(_library.refused()), (name, said)
    for tensor, array in tensors.items():
        at = op.inputs[tensor] * _library.RECORD_BYTES
        if array is None:
            assert int.from_bytes(quick.buffer[at + 8 : at + 12], "little") == 0, tensor
            continue
        rank = len(array.shape) if tensor not in insert else max(3, len(array.shape) + 1)
        read = lambda records: _library.RECORDS[rank].unpack_from(records.buffer, at)
        assert read(slow) == read(quick), (tensor, read(slow), read(quick))
    PASSED += 1


w = torch.randn(5)
same("rmsnorm", {"x": x, "gate": None, "weight": w})
for shape in [(5,), (3, 5), (2, 3, 5)]:
    same("rmsnorm", {"x": torch.randn(shape), "gate": torch.randn(shape), "weight": w}, ("x", "gate", "o"))
same("rmsnorm", {"x": torch.randn(7, 11)[2:, 1:6], "gate": None, "weight": w}, ("x", "gate", "o"))
for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
    q = torch.randn(2, 9, 4, 8).to(dtype)
    k = torch.randn(2, 4, 9, 8).to(dtype).transpose(1, 2)
    lengths = torch.tensor([3, 9], dtype=torch.int32)
    same("attention", {"q": q, "k": k, "v": k[:, 1:], "cache_seqlens": lengths, "block_table": None}, (), {"cache_seqlens": (9, 0)})
narrow = torch.randn(3, 128).to(torch.float8_e4m3fn)
same("linear", {"x": torch.randn(2, 128), "w": narrow, "w_scale": torch.ones(1, 3), "bias": None})
# Tensors that are not plain go to the slow path, which reports errors.
for tensors in (
    {"x": torch.zeros(3, dtype=torch.int64)},
    {"x": torch.randn(1, 1, 1, 1, 1, 1, 1)},
    {"x": torch.empty(0)},
    {"x": [1.0]},
    {"x": torch.empty(3, device="meta")},
    {"unknown": x},
    {"x": x.as_subclass(type("Sub", (torch.Tensor,), {}))},
    {"x": torch._neg_view(x)},
):
    assert lay("rmsnorm", tensors)[0] == NOT_PLAIN, tensors
    PASSED += 1
assert lay("rmsnorm", {"x": x}, device=0)[0] == NOT_PLAIN, "another device"
assert lay("rmsnorm", {"x": x}, outputs={"o": torch._neg_view(x)})[0] == NOT_PLAIN, "a negated output"
assert kind.launch(1, 2) == NOT_PLAIN, "a wrong number of arguments"


def run(name, inputs, settings=(), want=("o",), out=None, shapes=None, bounds=None):
    """Compares the outputs of an op by both paths."""
    global PASSED
    op, first = _library.op(name), next(iter(inputs.values()))
    inputs = {tensor: inputs.get(tensor) for tensor in op.inputs}
    found = []
    for way in ("launch", "examined"):
        handle = op.handle(settings)
        given = None if out is None else {tensor: None if array is None else array.clone() for tensor, array in out.items()}
        if way == "launch":
            outputs = _calls._launch(op, handle, kind, first, -1, settings, inputs, given, bounds, want, shapes, ())
            outputs = [outputs[tensor] for tensor in want]
        else:
            outputs = _calls._checked_call(op, handle, kind, first, inputs, given, bounds, want, shapes, ())
            outputs = [outputs] if len(want) == 1 else list(outputs)
        found.append(outputs + [array for array in (given or {}).values() if array is not None])
    assert len(found[0]) == len(found[1]) and all(torch.equal(*pair) for pair in zip(*found)), name
    PASSED += 1


kind.stream = lambda device: 0
torch.manual_seed(0)
q, k, v = torch.randn(2, 5, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
run("attention", {"q": q, "k": k, "v": v}, (("causal", True), ("scale", None)))
run("attention", {"q": q, "k": k, "v": v}, (), ("o", "lse"))
run("attention", {"q": q, "k": k, "v": v}, (), ("o",), {"o": torch.empty_like(q)})
run("linear", {"x": torch.randn(3, 32), "w": torch.randn(8, 32)}, (("activation", "swiglu"),))
states = torch.randn(2, 4, 8, 16)
scan = {"x": torch.randn(2, 5, 4, 8), "dt": torch.randn(2, 5, 4), "A": -torch.rand(4), "B": torch.randn(2, 5, 1, 16), "C": torch.randn(2, 5, 1, 16)}
run("ssd", scan, (("dt_softplus", True),), ("o", "final_state"))
run("ssd", {**scan, "initial_state": states}, (("dt_softplus", True),), ("o",), {"o": None, "final_state": states})
logits, gate_up, down = torch.randn(3, 8), torch.randn(8, 16, 32), torch.randn(8, 32, 8)
run("moe", {"x": torch.randn(3, 32), "logits": logits, "w_gate_up": gate_up, "w_down": down}, (("top_k", 2),), ("o", "chosen", "weights"))
written = torch.empty_like(q)
_calls._launch(_library.op("rmsnorm"), _library.op("rmsnorm").handle(()), kind, q, -1, (), {"x": q}, {"o": written}, None, ("o",), None, ())
assert written._version == 1, "the version of an output"
print(f"{PASSED + 1} passed, 0 failed")
