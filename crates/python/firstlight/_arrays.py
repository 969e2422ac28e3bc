"""Arrays of torch, numpy and CuPy as records of the library, where they lie.

Each library of arrays has one class here. None of them is imported: an array of it proves that it is there.
"""

import sys

from . import _library
from ._foreign import Foreign
from ._library import BFLOAT16, FLOAT8, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, UINT8

# Bytes of scratch memory that are kept for the next call, at most and at least.
KEPT, LEAST = 32 << 20, 1 << 20


class Numpy:
    """Arrays of numpy, in host memory."""

    def __init__(self, module):
        self.module = module
        self.codes = {"float64": FLOAT64, "float32": FLOAT32, "float16": FLOAT16, "int32": INT32, "int8": INT8, "uint8": UINT8}
        # Types of ml_dtypes, which numpy knows by their names once that is imported.
        self.codes.update(bfloat16=BFLOAT16, float8_e4m3fn=FLOAT8)
        self.names = {code: name for name, code in self.codes.items()}

    def describe(self, array):
        """Address, type, sizes and strides in elements."""
        code = self.codes.get(array.dtype.name)
        if code is None:
            taken = "float32, float16, int32, ml_dtypes' bfloat16 or, as weights, int8, uint8 and ml_dtypes' float8_e4m3fn are"
            raise TypeError(f"arrays of {array.dtype} are not taken: {taken}")
        if not array.dtype.isnative:
            raise TypeError(f"arrays of {array.dtype} are not taken: their byte order is not this machine's")
        size = array.dtype.itemsize
        return self.address(array), code, array.shape, tuple(stride // size for stride in array.strides)

    def address(self, array):
        return array.__array_interface__["data"][0]

    def extent(self, array):
        """The addresses of an array's elements: the first byte and the one after the last."""
        steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides)]
        start = self.address(array)
        low, high = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
        return (start + low, start + high + array.dtype.itemsize) if array.size else (start, start)

    def plain(self, array):
        """The array with its values in memory as they are."""
        return array

    def check_written(self, name, array):
        """Refuses an output that must not be written."""
        if not array.flags.writeable:
            raise ValueError(f"`{name}` is read-only")

    def written(self, arrays):
        """Notes that arrays were written."""

    def check_transforms(self, name, arrays):
        """Refuses arrays under a transform that the ops have no rule for."""

    def device(self, array):
        """A GPU's number, or -1 for host memory."""
        return -1

    number = device

    def side_by_side(self, array):
        return array.flags.c_contiguous

    def contiguous(self, array):
        return self.module.ascontiguousarray(array)

    def copied(self, array):
        """A copy whose elements lie side by side, at the address of memory of its own."""
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
        """Bytes for a call, and whether later calls on this stream may have them too."""
        raise NotImplementedError

    def gradients(self):
        """Whether gradients are recorded."""
        return False

    # `_fast.launch`, which calls the library over a GPU's arrays by the exchange interface at this address.
    launch, exchange = None, 0


class Cupy(Numpy):
    """Arrays of CuPy, on a GPU."""

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
    """Tensors of torch, on the processor or a GPU."""

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
        # As `device`, for tensors that lie where another one does or are refused.
        self.number = module.Tensor.get_device
        self.gradients = module.is_grad_enabled
        self.raise_versions = _raise_versions(module)
        self.launch, self.exchange = None, 0
        capsule, fast = getattr(module.Tensor, "__dlpack_c_exchange_api__", None), _library.fast()
        if capsule is not None and fast is not None:
            # Subclasses are for torch's dispatcher, wherever they stand among the arguments.
            self.exchange = fast.api(capsule, module.Tensor, module.nn.Parameter, module.Tensor.is_neg)
            if self.exchange:
                self.launch = fast.launch

    def describe(self, tensor):
        code = self.codes.get(tensor.dtype)
        if code is None:
            raise TypeError(f"tensors of {tensor.dtype} are not taken: float32, bfloat16, float16, int32 or, as weights, float8_e4m3fn, int8 and uint8 are")
        return tensor.data_ptr(), code, tensor.shape, tensor.stride()

    def address(self, tensor):
        return tensor.data_ptr()

    def extent(self, tensor):
        """The addresses of a tensor's elements: the first byte and the one after the last."""
        start = tensor.data_ptr()
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
        return (start, start + (last + 1) * tensor.itemsize) if tensor.numel() else (start, start)

    def plain(self, tensor):
        """The tensor without torch's lazy negation or conjugation."""
        return tensor.resolve_neg() if tensor.is_neg() else tensor

    def check_written(self, name, tensor):
        """Refuses an output that must not be written by address."""
        if tensor.is_neg() or tensor.is_conj():
            raise NotImplementedError(f"`{name}` is a negated view")
        if tensor.requires_grad and self.module.is_grad_enabled():
            raise NotImplementedError(f"`{name}` requires a gradient")

    def written(self, tensors):
        """Raises the versions of tensors that were written, by which autograd finds saved tensors that changed."""
        self.raise_versions(tensors)

    def check_transforms(self, name, tensors):
        """Refuses tensors that a transform of torch.func wraps."""
        check_transforms(self.module, name, tensors)

    def device(self, tensor):
        if tensor.is_cuda or tensor.is_cpu:
            return tensor.get_device()
        if tensor.is_meta:
            raise NotImplementedError("a meta tensor has no memory: `_route` takes it to torch's dispatcher")
        raise TypeError(f"tensors on {tensor.device} are not taken: those on cpu and cuda are")

    def side_by_side(self, tensor):
        return tensor.is_contiguous()

    def contiguous(self, tensor):
        return tensor.contiguous()

    def copied(self, tensor):
        """A copy whose elements lie side by side, at the address of memory of its own."""
        return tensor.clone(memory_format=self.contiguous_format)

    def empty(self, shape, code, like):
        if shape is None or (code is None and shape == like.shape):
            # Half the time of `new_empty`, which takes half that of `torch.empty` with a type and a device.
            return self.make_like(like, memory_format=self.contiguous_format)
        return like.new_empty(shape) if code is None else like.new_empty(shape, dtype=self.types[code])

    def empty_as(self, shape, dtype, like):
        """Memory of a type of torch, or of one by its name."""
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
        """Memory of torch's own allocator. Zeros stay zeros, and what is small is not asked for again, so that one region serves each
        stream; a graph that is captured has its own, which each replay clears."""
        torch = self.module
        kept = (zeros or count <= KEPT) and not torch.cuda.is_current_stream_capturing()
        make = torch.zeros if zeros else torch.empty
        if not kept:
            return make(count, dtype=torch.uint8, device=like.device), False
        with torch.inference_mode(False):
            return make(max(count, LEAST), dtype=torch.uint8, device=like.device), True


def check_transforms(torch, name, arrays):
    """Refuses tensors that a transform of torch.func wraps."""
    functorch = torch._C._functorch
    # torch 2.1 has no such function.
    level = getattr(functorch, "maybe_current_level", None)
    if level is not None and level() is None:
        return
    if any(isinstance(array, torch.Tensor) and functorch.is_functorch_wrapped_tensor(array) for array in arrays.values()):
        raise NotImplementedError(f"firstlight's {name} has no rule for torch.func's transforms (vmap, grad, jvp, ...)")


def _raise_versions(torch):
    """A function that raises the versions of tensors. The one of ``torch.autograd.graph`` takes twice as long."""
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
    """The class above that knows an array."""
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
