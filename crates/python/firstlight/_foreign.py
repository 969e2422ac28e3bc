"""Arrays of other libraries, through ``__dlpack__``, ``__array_interface__`` and ``__cuda_array_interface__``.

They are converted to numpy, torch or CuPy arrays of the same memory. Results are arrays of the caller's library if it follows the array
API standard (JAX does), otherwise numpy, torch or CuPy arrays. An array passed as ``out`` or ``state`` is written in place.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable

_PROTOCOLS = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
# DLPack device types in host memory: CPU, and pinned memory of CUDA and ROCm.
_HOST = (1, 3, 11)


class Foreign(TypeError):
    """The array's library has no class in ``_arrays``."""


def is_foreign(array: Any) -> bool:
    """Whether an argument is an array of a library without a class in ``_arrays``."""
    known = [getattr(sys.modules.get(name), cls, None) for name, cls in (("torch", "Tensor"), ("numpy", "ndarray"), ("cupy", "ndarray"))]
    if isinstance(array, tuple(cls for cls in known if cls is not None)):
        return False
    return any(hasattr(type(array), name) or hasattr(array, name) for name in _PROTOCOLS)


def _on_host(array: Any) -> bool:
    if hasattr(array, "__dlpack_device__"):
        return int(array.__dlpack_device__()[0]) in _HOST
    return not hasattr(array, "__cuda_array_interface__")


def _as_torch(array: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.from_dlpack(array) if hasattr(array, "__dlpack__") else torch.as_tensor(array)


def _as_numpy(array: Any) -> Any:
    import numpy

    if hasattr(array, "__array_interface__"):
        return numpy.asarray(array)
    try:
        return numpy.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):
        # numpy's DLPack has no bfloat16. `__array__` converts by ml_dtypes.
        if not hasattr(array, "__array__"):
            raise
        return numpy.asarray(array)


def _native(array: Any, with_torch: bool) -> Any:
    """A numpy, torch or CuPy array of the same memory."""
    try:
        if with_torch:
            return _as_torch(array)
        if _on_host(array):
            return _as_numpy(array)
        if "torch" in sys.modules:
            return _as_torch(array)
        if "cupy" in sys.modules:
            cupy = sys.modules["cupy"]
            return cupy.from_dlpack(array) if hasattr(array, "__dlpack__") else cupy.asarray(array)
    except ImportError as error:
        raise TypeError(f"an array of {type(array).__module__} in host memory needs numpy") from error
    except (BufferError, RuntimeError, ValueError) as error:
        raise TypeError(f"an array of {type(array).__module__} cannot be read: {error}") from error
    raise TypeError(f"an array of {type(array).__module__} on a GPU needs torch or CuPy, imported before")


def _given_back(found: Any, like: Any) -> Any:
    """Converts a result to the library of ``like``."""
    space = getattr(like, "__array_namespace__", None)
    if space is None:
        return found
    module = space()
    return module.asarray(found) if type(found).__module__.partition(".")[0] == "numpy" else module.from_dlpack(found)


def call(run: Callable[..., Any], error: TypeError, inputs: dict[str, Any], out: Any, want: tuple[str, ...], *rest: Any) -> Any:
    """Runs an op, ``run(inputs, out, *rest)``, on arrays of other libraries. Raises ``error`` if there are none."""
    foreign = [array for array in inputs.values() if is_foreign(array)]
    if not foreign:
        raise error
    given = {**inputs, **{f"out {name}": array for name, array in (out or {}).items()}}
    torch = sys.modules.get("torch")
    with_torch = torch is not None and any(isinstance(array, torch.Tensor) for array in given.values())
    native = {name: _native(array, with_torch) if is_foreign(array) else array for name, array in given.items()}
    targets = None if out is None else {name: native[f"out {name}"] for name in out}
    found = run({name: native[name] for name in inputs}, targets, *rest)
    several = found if isinstance(found, tuple) else (found,)
    results = []
    for name, one in zip(want, several):
        target = None if out is None else out.get(name)
        results.append(_given_back(one, foreign[0]) if target is None else target)
    return tuple(results) if isinstance(found, tuple) else results[0]


def again(function: Callable[..., Any], variables: dict[str, Any]) -> Any:
    """Repeats a call whose arguments have no ``shape``, with numpy, torch or CuPy arrays."""
    names = inspect.signature(function).parameters
    given = {name: variables[name] for name in names}
    foreign = [array for array in given.values() if is_foreign(array)]
    if not foreign:
        wrong = next((array for array in given.values() if array is not None and not hasattr(array, "shape")), None)
        raise TypeError(f"{type(wrong).__name__} is no array of torch, numpy or CuPy, and has neither __dlpack__ nor __array_interface__")
    torch = sys.modules.get("torch")
    with_torch = torch is not None and any(isinstance(array, torch.Tensor) for array in given.values())
    native = {name: _native(array, with_torch) if is_foreign(array) else array for name, array in given.items()}
    positional = [native.pop(name) for name, parameter in names.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    found = function(*positional, **native)
    out = given.get("out")
    several = list(found) if isinstance(found, tuple) else [found]
    results = [_given_back(one, foreign[0]) for one in several]
    if out is not None:
        results[0] = out
    return tuple(results) if isinstance(found, tuple) else results[0]
