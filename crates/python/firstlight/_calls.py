"""Calls the library with Python arrays, and counts calls, refusals and copies."""

import ctypes
import threading
from collections import Counter

from . import _library, _shapes
from ._arrays import _KINDS, library_of
from ._library import ABSENT, MEMORY, RECORD_BYTES, RECORDS, Place, refused

_LOCAL = threading.local()
_COPIES = Counter()
NO_BOUND = (0, 0)
NOTHING = (None, (0, 0))
PACKERS = [record.pack_into for record in RECORDS]


class _RecordBuffer:
    """The buffer for the tensor records of one op's calls on one thread."""

    def __init__(self, op):
        self.buffer = bytearray(op.count * RECORD_BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))


class _Thread:
    """Thread-local state: record buffers by op, scratch memory by stream, and temporary memory of the running call."""

    def __init__(self):
        self.buffers = {}
        self.place = Place()
        self.address = ctypes.addressof(self.place)
        # The constant argument of `_fast.launch`, by op.
        self.fast = {}
        self.temporary = []
        self.scratch = {}
        self.device = self.stream = self.kind = self.like = self.failed = None
        # ctypes frees a callback that is not referenced.
        self.place.memory = self.function = MEMORY(self.memory)

    def memory(self, count, zeros):
        try:
            found, kept = self.kind.memory(count, zeros, self.like)
            address = self.kind.address(found)
            if kept:
                self.scratch[self.place.device, self.place.stream, zeros] = found, (address, found.nbytes)
                self.place.kept[zeros] = address, found.nbytes
            else:
                self.temporary.append(found)
            return address
        except BaseException as error:  # ctypes would only print it
            self.failed = error
            return 0

    def switch_stream(self, device, stream):
        """Switches to another stream and its scratch memory."""
        place = self.place
        place.device, place.stream = self.device, self.stream = device, stream
        for zeros in (0, 1):
            _, place.kept[zeros] = self.scratch.get((device, stream, zeros), NOTHING)

    def forget(self):
        """Drops the scratch memory, because a failed call may leave other values in the zeroed buffers."""
        self.scratch.clear()
        self.place.kept[0] = self.place.kept[1] = NOTHING[1]

    def new_buffer(self, op):
        self.buffers[op.name] = found = _RecordBuffer(op)
        return found

    def fast_arguments(self, op, kind):
        records = self.buffers.get(op.name) or self.new_buffer(op)
        found = kind.exchange, records.address, op.inputs, op.outputs, len(op.inputs), op.count, self.address
        self.fast[op.name] = found
        return found


def _thread():
    try:
        return _LOCAL.thread
    except AttributeError:
        _LOCAL.thread = _Thread()
        return _LOCAL.thread


def call(name, settings, inputs, out=None, bounds=None, want=("o",), shapes=None, insert=()):
    """Runs an op.

    - ``settings``: a tuple of pairs of name and value.
    - ``inputs``: arrays by name; ``None`` is absent.
    - ``out``: arrays by name into which outputs are written. Other outputs in ``want`` are allocated, with the shapes and types in
      ``shapes`` (``None``: those of the first input) or else those that the library computes. Outputs in neither are not written.
    - ``bounds``: by name, for int32 arrays on a GPU, a pair: the largest value and 0, or for offsets the longest sequence and the last
      offset.
    - ``insert``: names of arrays that get a dimension of size 1 before their last.

    Returns the outputs in ``want``, in order.
    """
    op = _library.op(name)
    handle = op.handles.get(settings) or op.handle(settings)
    for first in inputs.values():
        break
    kind = _KINDS.get(type(first)) or library_of(first)
    if kind.launch is not None and not kind.gradients():
        device = kind.number(first)
        if device >= 0:
            outputs = _launch(op, handle, kind, first, device, settings, inputs, out, bounds, want, shapes, insert)
            if outputs is not None:
                op.calls += 1
                return outputs[want[0]] if len(want) == 1 else tuple([outputs[tensor] for tensor in want])
    return _checked_call(op, handle, kind, first, inputs, out, bounds, want, shapes, insert)


def _launch(op, handle, kind, first, device, settings, inputs, out, bounds, want, shapes, insert):
    """The fast path: runs an op on plain tensors on a GPU with one C call. Returns the outputs, or ``None`` without running the op if a
    tensor is not plain or an output overlaps an input partially."""
    thread = getattr(_LOCAL, "thread", None) or _thread()
    arguments = thread.fast.get(op.name) or thread.fast_arguments(op, kind)
    written = targets = None
    if out is not None:
        for tensor, array in out.items():
            if array is not None:
                if targets is None:
                    targets = {tensor: array}
                else:
                    targets[tensor] = array
    outputs, rules = {}, None
    for tensor in want:
        if targets is not None and tensor in targets:
            outputs[tensor] = targets[tensor]
        elif shapes is not None and tensor in shapes:
            shape, code = shapes[tensor]
            outputs[tensor] = kind.empty(shape, code, first)
        else:
            if rules is None:
                rules = _by_rule(op.name, inputs, settings)
                if rules is None:
                    return None
            outputs[tensor] = kind.empty_as(*rules[tensor], first)
    written = outputs if targets is None else {**outputs, **targets}
    stream = kind.stream(device)
    if thread.stream != stream or thread.device != device:
        thread.switch_stream(device, stream)
    thread.kind, thread.like = kind, first
    try:
        code = kind.launch(arguments, handle, inputs, written, insert or None, bounds, device)
        copied = ()
        while code > 1:
            # One input needs a contiguous copy. Copies are counted, because they take time.
            tensor = op.names[code - 2]
            if tensor in copied:
                raise refused()
            copied = (*copied, tensor)
            inputs = {**inputs, tensor: kind.copied(inputs[tensor])}
            _COPIES[f"{op.name}.{tensor}"] += 1
            code = kind.launch(arguments, handle, inputs, written, insert or None, bounds, device)
        if code == 1:
            failed, thread.failed = thread.failed, None
            thread.forget()
            op.refused += 1
            raise failed or refused()
    finally:
        if thread.temporary:
            thread.temporary.clear()
        thread.kind = thread.like = None
    if code:
        return None
    if targets is not None:
        kind.written(targets.values())
    return outputs


def _by_rule(name, inputs, settings):
    """The shapes and types of the outputs by the rules of ``_shapes``; ``None`` if the inputs do not match, which the library then reports."""
    try:
        return _shapes.shapes(name, inputs, {name: value for name, value in settings if value is not None})
    except (AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError):
        return None


def _checked_call(op, handle, kind, first, inputs, out, bounds, want, shapes, insert):
    """The slow path: runs an op on any arrays, after checking each."""
    kind.check_transforms(op.name, inputs)
    device = kind.device(first)
    thread = getattr(_LOCAL, "thread", None) or _thread()
    records = thread.buffers.get(op.name) or thread.new_buffer(op)
    targets = None
    if out is not None:
        targets = {tensor: array for tensor, array in out.items() if array is not None}
        for tensor, array in targets.items():
            library_of(array).check_written(tensor, array)
    given = _write_inputs(op, records, kind, device, inputs, bounds, insert)
    outputs = {}
    for tensor in want:
        array = out.get(tensor) if out is not None else None
        if array is None:
            shape = shapes.get(tensor) if shapes is not None else None
            if shape is None:
                shape = _shape(op, handle, records, tensor, device)
            array = kind.empty(shape[0], shape[1], first)
        outputs[tensor] = array
    written = outputs
    if targets:
        written = {**outputs, **targets}
    asked = written
    if device < 0:
        written = _separate_outputs(kind, given, asked, device)
    _write_outputs(op, records, kind, written, insert)
    try:
        _run(op, handle, thread, records, kind, first, device, given, insert)
    except _PartialOverlap:
        written = _separate_outputs(kind, given, asked, device)
        _write_outputs(op, records, kind, written, insert)
        _run(op, handle, thread, records, kind, first, device, given, insert)
    if written is not asked:
        for tensor, array in written.items():
            if array is not asked[tensor]:
                kind.copy(asked[tensor], array)
    if targets:
        kind.written(targets.values())
    op.calls += 1
    if len(want) == 1:
        return outputs[want[0]]
    return tuple([outputs[tensor] for tensor in want])


def _write_outputs(op, records, kind, written, insert):
    """Writes the records of the outputs."""
    buffer = records.buffer
    for tensor, place in op.outputs.items():
        array = written.get(tensor)
        if array is not None:
            address, code, shape, strides = kind.describe(array)
            if not address and 0 not in shape:
                raise ValueError(f"{op.name}: `{tensor}` has no memory (a meta tensor?)")
            if tensor in insert:
                shape, strides = _inserted(shape, strides)
            rank = len(shape)
            PACKERS[rank](buffer, place * RECORD_BYTES, address, code, rank, *shape, *strides, 0, 0, 0)
        else:
            _clear(records, place)


def _inserted(shape, strides):
    """Inserts a dimension of size 1 before the last, and pads to at least two dimensions before it."""
    last = shape[-1]
    lead, steps = tuple(shape[:-1]), tuple(strides[:-1])
    if len(lead) < 2:
        lead, steps = (1,) * (2 - len(lead)) + lead, (0,) * (2 - len(steps)) + steps
    return (*lead, 1, last), (*steps, last, strides[-1])


def _clear(records, place):
    offset = place * RECORD_BYTES
    records.buffer[offset : offset + RECORD_BYTES] = ABSENT


def _write_inputs(op, records, kind, device, inputs, bounds, insert=()):
    """Writes the records of the inputs, and returns the inputs that are present."""
    given, buffer, places, describe = {}, records.buffer, op.inputs, kind.describe
    known, number = _KINDS.get, kind.number
    grad = kind.gradients()
    for tensor, array in inputs.items():
        place = places[tensor]
        if array is None:
            _clear(records, place)
            continue
        if (known(type(array)) is not kind and library_of(array) is not kind) or number(array) != device:
            raise ValueError(f"{op.name}: `{tensor}` is on another device than the first array, or of another library")
        array = kind.plain(array)
        if grad and array.requires_grad:
            raise NotImplementedError(
                f"firstlight's {op.name} has no backward yet: call it under torch.no_grad(), or use the package's own kernel for training"
            )
        if device < 0 and not kind.is_contiguous(array):
            # CPU kernels require contiguous inputs.
            array = kind.contiguous(array)
        given[tensor] = array
        address, code, shape, strides = describe(array)
        if not address and 0 not in shape:
            raise ValueError(f"{op.name}: `{tensor}` has no memory (a meta tensor?)")
        if tensor in insert:
            shape, strides = _inserted(shape, strides)
        rank = len(shape)
        if rank >= len(PACKERS):
            raise ValueError(f"an array of {rank} dimensions")
        bound = bounds.get(tensor, NO_BOUND) if bounds is not None else NO_BOUND
        PACKERS[rank](buffer, place * RECORD_BYTES, address, code, rank, *shape, *strides, bound[0], bound[1], 0)
    return given


def _shape(op, handle, records, tensor, device):
    """The shape and type of an output, computed by the library."""
    if _library.library().fl_outputs(handle, records.address, op.count, device):
        op.refused += 1
        raise refused()
    offset = op.outputs[tensor] * RECORD_BYTES
    _, code, rank = RECORDS[0].unpack_from(records.buffer, offset)[:3]
    return RECORDS[rank].unpack_from(records.buffer, offset)[3 : 3 + rank], code


class _PartialOverlap(Exception):
    """An output on a GPU overlaps an input only partially. Nothing has run."""


def _run(op, handle, thread, records, kind, like, device, given, insert=()):
    run = _library.library().fl_call
    stream = kind.stream(device) if device >= 0 else 0
    if thread.device != device or thread.stream != stream:
        thread.switch_stream(device, stream)
    thread.kind, thread.like, copied = kind, like, set()
    try:
        code = run(handle, records.address, op.count, thread.address)
        while code:
            if code == -1:
                raise _PartialOverlap
            if code == 1:
                failed, thread.failed = thread.failed, None
                thread.forget()
                op.refused += 1
                raise failed or refused()
            # One input needs a contiguous copy. Copies are counted, because they take time.
            tensor = op.names[code - 2]
            if tensor in copied:
                raise refused()
            copied.add(tensor)
            given[tensor] = array = kind.copied(given[tensor])
            _COPIES[f"{op.name}.{tensor}"] += 1
            address, number, shape, strides = kind.describe(array)
            if tensor in insert:
                shape, strides = _inserted(shape, strides)
            offset = (code - 2) * RECORD_BYTES
            bounds = RECORDS[0].unpack_from(records.buffer, offset)[3:]
            PACKERS[len(shape)](records.buffer, offset, address, number, len(shape), *shape, *strides, *bounds)
            code = run(handle, records.address, op.count, thread.address)
    finally:
        if thread.temporary:
            thread.temporary.clear()
        thread.kind = thread.like = None


def _separate_outputs(kind, inputs, outputs, device):
    """Replaces outputs that the library cannot write with temporary arrays, which the caller copies afterwards: on the CPU, strided outputs
    and outputs that start at an input's address; on any device, outputs that overlap an input partially."""
    extents = {kind.extent(array) for array in inputs.values() if array is not None}
    starts = {start for start, _ in extents}
    written = {}
    for tensor, array in outputs.items():
        start, end = kind.extent(array)
        fits = device >= 0 or kind.is_contiguous(array) and start not in starts
        fits = fits and not any(low < end and start < high and (low, high) != (start, end) for low, high in extents)
        written[tensor] = array if fits else kind.empty(tuple(array.shape), kind.describe(array)[1], array)
    return written
