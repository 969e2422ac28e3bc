"""Loads the library of kernels on first use, by ctypes, so that one file works with every Python."""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import threading
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any, Optional

RANK = 6
FLOAT64, FLOAT32, BFLOAT16, FLOAT16, INT32, FLOAT8, INT8, UINT8 = 1, 2, 3, 4, 5, 6, 7, 8
MEMORY = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32)

# The layout of `RawTensor`, by number of dimensions: address, type code, dimensions, sizes, strides, bound, total, host address.
RECORDS = [
    struct.Struct(f"=Qii{rank}q{8 * (RANK - rank)}x{rank}q{8 * (RANK - rank)}xqqQ") for rank in range(RANK + 1)
]
RECORD_BYTES = RECORDS[0].size
ABSENT = bytes(RECORD_BYTES)


class Refused(RuntimeError):
    """No kernel supports the call. The message has the reason, with the names of the op's table."""


class Memory(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64)]


class Place(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int32),
        ("pad", ctypes.c_int32),
        ("stream", ctypes.c_uint64),
        ("memory", MEMORY),
        ("kept", Memory * 2),
    ]


@lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """The loaded library, a ``ctypes.CDLL``."""
    name = "libfirstlight_ops.dylib" if sys.platform == "darwin" else "libfirstlight_ops.so"
    path = os.environ.get("FIRSTLIGHT_LIBRARY") or os.path.join(os.path.dirname(__file__), name)
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"firstlight's library of kernels cannot be loaded: {error}") from error
    text, number = ctypes.c_char_p, ctypes.c_int64
    loaded.fl_open.argtypes, loaded.fl_open.restype = [text, text], number
    loaded.fl_close.argtypes, loaded.fl_close.restype = [number], None
    loaded.fl_call.argtypes = [number, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    loaded.fl_outputs.argtypes = [number, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32]
    loaded.fl_why.argtypes = [number, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32]
    loaded.fl_launches.argtypes = [ctypes.c_int32]
    for function in (loaded.fl_error, loaded.fl_tables, loaded.fl_why, loaded.fl_launches):
        function.restype = text
    return loaded


@lru_cache(maxsize=None)
def fast() -> Optional[ModuleType]:
    """The same library as a CPython extension module, whose calls cost a tenth of those by ctypes; ``None`` on other implementations of
    Python and without a GIL."""
    import importlib.machinery
    import importlib.util
    import sysconfig

    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED") or os.environ.get("FIRSTLIGHT_CTYPES"):
        return None
    path = library()._name
    loader = importlib.machinery.ExtensionFileLoader("firstlight._fast", path)
    try:
        spec = importlib.util.spec_from_file_location("firstlight._fast", path, loader=loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except (ImportError, SystemError):  # SystemError if it does not find CPython's functions
        return None
    return module


def refused() -> Refused:
    """The error of the library's last call."""
    return Refused(library().fl_error().decode())


@lru_cache(maxsize=None)
def tables() -> dict[str, dict[str, Any]]:
    """The tables of all ops by name: their tensors and settings, with shapes, defaults and descriptions."""
    return {op["name"]: op for op in json.loads(library().fl_tables())}


def launches(device: int = -1) -> dict[str, int]:
    """The number of launches of each kernel on a GPU, or on the CPU (-1)."""
    found = library().fl_launches(device)
    if found is None:
        raise refused()
    return json.loads(found)


# Most handles of an op. If it is exceeded, the oldest one is closed, because settings can have any number of values.
MAX_HANDLES = 1024


class Op:
    """An op of the library: the index of each tensor in the records, and a handle for each set of settings."""

    def __init__(self, name: str) -> None:
        table = tables()[name]
        names = [tensor["name"] for tensor in table["inputs"]]
        self.name = name
        self.inputs = {tensor: place for place, tensor in enumerate(names)}
        self.outputs = {tensor["name"]: len(names) + at for at, tensor in enumerate(table["outputs"])}
        self.count = len(self.inputs) + len(self.outputs)
        self.names = list(self.inputs) + list(self.outputs)
        self.calls = self.refused = 0
        self.handles: dict[Any, int] = {}
        self._lock = threading.Lock()

    def handle(self, settings: Any) -> int:
        """The library's handle for this op with these settings, a tuple of pairs of name and value. ``None`` means the default."""
        handle = self.handles.get(settings)
        if handle is None:
            with self._lock:
                lines = "\n".join(f"{name}={_word(value)}" for name, value in settings if value is not None)
                handle = library().fl_open(self.name.encode(), lines.encode())
                if not handle:
                    raise refused()
                self.handles[settings] = handle
                self._forget()
        return handle

    def _forget(self) -> None:
        """Closes the oldest handles beyond the limit."""
        while len(self.handles) > MAX_HANDLES:
            settings = next(iter(self.handles))
            library().fl_close(self.handles.pop(settings))


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return str(value)


@lru_cache(maxsize=None)
def op(name: str) -> Op:
    """The op of this name."""
    return Op(name)
