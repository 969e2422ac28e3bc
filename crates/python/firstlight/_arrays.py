"""Describes arrays of torch, numpy and CuPy as records of the library, without copies.

Each array library has one class here. This module imports none of them: the first array of a library shows that it is loaded.
"""

import sys

from . import _library
from ._foreign import Foreign
from ._library import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, UINT8

# Scratch buffers that are not zeroed are reused up to the first size; reused buffers have at least the second. In bytes.
KEPT, LEAST = 32 << 20, 1 << 20


class Numpy:
    """numpy arrays, in host memory."""

    def __init__(self, module):
        self.module = module
        self.codes = {"float64": FLOAT64, "float32": FLOAT32, "float16": FLOAT16, "int32": INT32, "int8": INT8, "uint8": UINT8}
        # Types of ml_dtypes, which numpy finds by name after ml_dtypes is imported.
        self.codes.update(bfloat16=BFLOAT16, float8_e4m3fn=FLOAT8)
        self.names = {code: name for name, code in self.codes.items()}

    def describe(self, array):
        """Address, type, sizes and strides in elements."""
        code = self.codes.get(array.dtype.name)
        if code is None:
            supported = "float32, float16, int32, ml_dtypes' bfloat16 or, as weights, int8, uint8 and ml_dtypes' float8_e4m3fn are"
            raise TypeError(f"arrays of {array.dtype} are not supported: {supported}")
        if not array.dtype.isnative:
            raise TypeError(f"arrays of {array.dtype} are not supported: their byte order is not this machine's")
        size = array.dtype.itemsize
        return self.address(array), code, array.shape, tuple(stride // size for stride in array.strides)

    def address(self, array):
        return array.__array_interface__["data"][0]

    def extent(self, array):
        """The byte range of an array's elements, as start and end address."""
        steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
        start = self.address(array)
        low, high = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
        return (start + low, start + high + array.dtype.itemsize) if array.size else (start, start)

    def plain(self, array):
        """The array without lazy operations, so that its memory has its values."""
        return array

    def check_written(self, name, array):
        """Rejects an output that must not be written."""
        if not array.flags.writeable:
            raise ValueError(f"`{name}` is read-only")

    def written(self, arrays):
        """Records that arrays were written."""

    def check_transforms(self, name, arrays):
        """Rejects arrays under a transform that the ops do not support."""

    def device(self, array):
        """The GPU's ordinal, or -1 for host memory."""
        return -1

    number = device

    def is_contiguous(self, array):
        return array.flags.c_contiguous

    def contiguous(self, array):
        return self.module.ascontiguousarray(array)

    def copied(self, array):
        """A contiguous copy in newly allocated memory, so that its address is aligned."""
        return array.copy(order="C")

    def empty(self, shape, code, like):
        if code is not None and code not in self.names:
            raise TypeError("the result is bfloat16, which numpy has not: ask for float32, or give `out`")
        return self.module.empty(like.shape if shape is None else shape, like.dtype if code is None else self.names[code])

    def copy(self, to, array):
        to[...] = array

    def int32(self, values, like):
        return self.module.ascontiguousarray(values, dtype="int32")

    def cast(self, array, code):
        return array.astype(self.names[code])

    def whole(self, array):
        """The values as a list."""
        return array.tolist()

    def stream(self, device):
        return 0

    def memory(self, count, zeros, like):
        """Scratch memory for a call, and whether later calls on this stream may reuse it."""
        raise NotImplementedError

    def gradients(self):
        """Whether gradients are recorded."""
        return False

    # `_fast.launch`, and the address of the DLPack exchange API by which it reads arrays on a GPU.
    launch, exchange = None, 0


class Cupy(Numpy):
    """CuPy arrays, on a GPU."""

    def check_written(self, name, array):
        pass

    def address(self, array):
        return array.data.ptr

    def device(self, array):
        return array.device.id

    number = device

    def stream(self, device):
        return self.module.cuda.get_current_stream().ptr

    def memory(self, count, zeros, like):
        make = self.module.zeros if zeros else self.module.empty
        return make(count, "uint8"), False

    def int32(self, values, like):
        return self.module.ascontiguousarray(self.module.asarray(values), dtype="int32")


class Torch:
    """torch tensors, on the CPU or a GPU."""

    def __init__(self, module):
        self.module = module
        self.stream = module._C._cuda_getCurrentRawStream if hasattr(module._C, "_cuda_getCurrentRawStream") else None
        self.codes = {
            module.float64: FLOAT64,
            module.float32: FLOAT32,
            module.bfloat16: BFLOAT16,
            module.float16: FLOAT16,
            module.int32: INT32,
            module.float8_e4m3fn: FLOAT8,
            module.int8: INT8,
            module.uint8: UINT8,
        }
        self.types = {code: dtype for dtype, code in self.codes.items()}
        self.make_like, self.contiguous_format = module.empty_like, module.contiguous_format
        # Like `device`, without its checks, for tensors that are already known to be on a supported device or will be rejected.
        self.number = module.Tensor.get_device
        self.gradients = module.is_grad_enabled
        self.raise_versions = _raise_versions(module)
        self.launch, self.exchange = None, 0
        capsule, fast = getattr(module.Tensor, "__dlpack_c_exchange_api__", None), _library.fast()
        if capsule is not None and fast is not None:
            # A subclass in any argument goes through torch's dispatcher.
            self.exchange = fast.api(capsule, module.Tensor, module.nn.Parameter, module.Tensor.is_neg)
            if self.exchange:
                self.launch = fast.launch

    def describe(self, tensor):
        code = self.codes.get(tensor.dtype)
        if code is None:
            raise TypeError(f"tensors of {tensor.dtype} are not supported: float32, bfloat16, float16, int32 or, as weights, float8_e4m3fn, int8 and uint8 are")
        return tensor.data_ptr(), code, tensor.shape, tensor.stride()

    def address(self, tensor):
        return tensor.data_ptr()

    def extent(self, tensor):
        """The byte range of a tensor's elements, as start and end address."""
        start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return (start, start + (last + 1) * tensor.itemsize) if tensor.numel() else (start, start)

    def plain(self, tensor):
        """The tensor without torch's lazy negation or conjugation."""
        return tensor.resolve_neg() if tensor.is_neg() else tensor

    def check_written(self, name, tensor):
        """Rejects an output that must not be written through its address."""
        if tensor.is_neg() or tensor.is_conj():
            raise NotImplementedError(f"`{name}` is a negated view")
        if tensor.requires_grad and self.module.is_grad_enabled():
            raise NotImplementedError(f"`{name}` requires a gradient")

    def written(self, tensors):
        """Increments the versions of written tensors, so that autograd detects saved tensors that changed."""
        self.raise_versions(tensors)

    def check_transforms(self, name, tensors):
        """Rejects tensors that are wrapped by a transform of torch.func."""
        check_transforms(self.module, name, tensors)

    def device(self, tensor):
        if tensor.is_cuda or tensor.is_cpu:
            return tensor.get_device()
        if tensor.is_meta:
            raise NotImplementedError("a meta tensor has no memory: `_route` takes it to torch's dispatcher")
        raise TypeError(f"tensors on {tensor.device} are not supported: those on cpu and cuda are")

    def is_contiguous(self, tensor):
        return tensor.is_contiguous()

    def contiguous(self, tensor):
        return tensor.contiguous()

    def copied(self, tensor):
        """A contiguous copy in newly allocated memory, so that its address is aligned."""
        return tensor.clone(memory_format=self.contiguous_format)

    def empty(self, shape, code, like):
        if shape is None or (code is None and shape == like.shape):
            # It takes half the time of `new_empty`, and a quarter of `torch.empty` with a type and a device.
            return self.make_like(like, memory_format=self.contiguous_format)
        return like.new_empty(shape) if code is None else like.new_empty(shape, dtype=self.types[code])

    def empty_as(self, shape, dtype, like):
        """An uninitialized tensor. ``dtype`` is a torch type or its name."""
        return like.new_empty(shape, dtype=getattr(self.module, dtype) if isinstance(dtype, str) else dtype)

    def copy(self, to, tensor):
        to.copy_(tensor)

    def int32(self, values, like):
        if isinstance(values, self.module.Tensor):
            return values.to(device=like.device, dtype=self.module.int32).contiguous()
        return self.module.tensor(list(values), dtype=self.module.int32, device=like.device)

    def cast(self, tensor, code):
        return tensor.to(self.types[code])

    def whole(self, tensor):
        return tensor.tolist()

    def memory(self, count, zeros, like):
        """Scratch memory from torch's allocator. Small buffers and zeroed ones are reused by later calls on the same stream. A captured
        CUDA graph has its own buffers, and each replay clears the zeroed ones."""
        torch = self.module
        kept = (zeros or count <= KEPT) and not torch.cuda.is_current_stream_capturing()
        make = torch.zeros if zeros else torch.empty
        if not kept:
            return make(count, dtype=torch.uint8, device=like.device), False
        with torch.inference_mode(False):
            return make(max(count, LEAST), dtype=torch.uint8, device=like.device), True


def check_transforms(torch, name, arrays):
    """Rejects tensors that are wrapped by a transform of torch.func."""
    functorch = torch._C._functorch
    # torch 2.1 has no such function.
    level = getattr(functorch, "maybe_current_level", None)
    if level is not None and level() is None:
        return
    if any(isinstance(array, torch.Tensor) and functorch.is_functorch_wrapped_tensor(array) for array in arrays.values()):
        raise NotImplementedError(f"firstlight's {name} has no rule for torch.func's transforms (vmap, grad, jvp, ...)")


def _raise_versions(torch):
    """A function that increments the versions of tensors. The one in ``torch.autograd.graph`` takes twice as long."""
    raise_versions = torch._C._increment_version
    try:
        raise_versions(())
        return raise_versions
    except (RuntimeError, TypeError):  # up to torch 2.4 it takes one tensor

        def of_each(tensors):
            for tensor in tensors:
                raise_versions(tensor)

        return of_each


_KINDS = {}


def library_of(array):
    """The class of an array's library."""
    kind = _KINDS.get(type(array))
    if kind is None:
        kind = _KINDS[type(array)] = _find(array)
    return kind


def _find(array):
    for name, kind, cls in (("torch", Torch, "Tensor"), ("numpy", Numpy, "ndarray"), ("cupy", Cupy, "ndarray")):
        module = sys.modules.get(name)
        if module is not None and isinstance(array, getattr(module, cls)):
            if name == "torch" and type(array) not in (module.Tensor, module.nn.Parameter):
                raise NotImplementedError(f"{type(array).__name__} is no plain tensor: `_route` takes it to torch's dispatcher")
            for known in _KINDS.values():
                if type(known) is kind:
                    return known
            return kind(module)
    raise Foreign(f"{type(array).__name__} is no array of torch, numpy or CuPy")
