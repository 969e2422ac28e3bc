"""Records by the fast way and by the long one are the same, over torch's tensors on the processor.

Run it with the package on the path and torch 2.10 or later: ``python fast.py``.
"""

import sys

import torch

from firstlight import _arrays, _calls, _library

fast = _library.fast()
if fast is None:
    sys.exit("SKIP: this Python has no fast way")
assert fast.api(object(), torch.Tensor, torch.nn.Parameter) == 0 and fast.api() == 0, "no capsule"
x = torch.randn(2, 3, 4, 5)
kind = _arrays.library_of(x)
kind.side_by_side = lambda tensor: True  # no copies for the processor's sake
assert kind.lay is not None and kind.exchange, "torch has the exchange interface from 2.10 on"


def both(name, tensors, insert=(), bounds=None):
    """The records of an op's inputs, both ways."""
    op = _library.op(name)
    slow, quick = _calls._Room(op), _calls._Room(op)
    quick.buffer[:] = bytes([7]) * len(quick.buffer)  # what was there before must not be read
    _calls._lay(op, slow, kind, -1, tensors, bounds, insert)
    said = kind.lay(kind.exchange, quick.address, op.inputs, tensors, insert or None, bounds, -1)
    return op, slow, quick, said


def same(name, tensors, insert=(), bounds=None):
    op, slow, quick, said = both(name, tensors, insert, bounds)
    assert said == 0, (name, said)
    for tensor, array in tensors.items():
        at = op.inputs[tensor] * _library.RECORD_BYTES
        if array is None:
            assert int.from_bytes(quick.buffer[at + 8 : at + 12], "little") == 0, tensor
            continue
        rank = len(array.shape) if tensor not in insert else max(3, len(array.shape) + 1)
        read = lambda room: _library.RECORDS[rank].unpack_from(room.buffer, at)
        assert read(slow) == read(quick), (tensor, read(slow), read(quick))


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
# What is not plain is left to the long way, which says what is wrong.
for tensors in (
    {"x": torch.zeros(3, dtype=torch.int64)},
    {"x": torch.randn(1, 1, 1, 1, 1, 1, 1)},
    {"x": torch.empty(0)},
    {"x": [1.0]},
    {"x": torch.empty(3, device="meta")},
    {"nobody": x},
    {"x": x.as_subclass(type("Sub", (torch.Tensor,), {}))},
):
    op = _library.op("rmsnorm")
    room = _calls._Room(op)
    assert kind.lay(kind.exchange, room.address, op.inputs, tensors, None, None, -1) == 1, tensors
assert kind.lay(kind.exchange, room.address, op.inputs, {"x": x}, None, None, 0) == 1, "another device"
assert kind.lay(1, 2) == 1 and kind.run(1) == 1, "a wrong number of arguments"
print("records are the same")
