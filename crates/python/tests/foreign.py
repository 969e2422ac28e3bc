"""Tests arrays of libraries other than torch and CuPy: ``python foreign.py``, with numpy and ml_dtypes, and with JAX if it is installed.

Objects that have only ``__dlpack__`` or ``__array_interface__``, arrays of ml_dtypes, empty arrays, and arguments that are not arrays.
It prints a line for each case and ends with 1 if one fails.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import cases
import ml_dtypes
import numpy as np
from cases import case

import firstlight
from firstlight import ops

RANDOM = np.random.default_rng(0)


def raises(kind: type, words: str, call: Callable[[], object]) -> bool:
    """Whether a call raises an exception of this type with these words."""
    try:
        call()
    except kind as error:
        if words in str(error):
            return True
        raise AssertionError(f"{error}") from error
    return False


class Dlpack:
    """An array that has only DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **given: Any) -> Any:
        return self._array.__dlpack__(**given)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Interface:
    """An array that has only numpy's protocol."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> Any:
        return self._array.__array_interface__


def floats(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


# Positional and keyword arguments of a call of each op.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "attention": ((floats(1, 5, 2, 16), floats(1, 5, 2, 16), floats(1, 5, 2, 16)), {"causal": True, "return_lse": True}),
    "kda": ((floats(1, 5, 2, 16), floats(1, 5, 2, 16), floats(1, 5, 2, 16), -abs(floats(1, 5, 2, 16)), floats(1, 5, 2)), {"return_state": True}),
    "gated_delta": ((floats(1, 5, 2, 16), floats(1, 5, 2, 16), floats(1, 5, 2, 16), -abs(floats(1, 5, 2)), floats(1, 5, 2)), {"l2norm": True}),
    "ssd": ((floats(1, 5, 2, 16), floats(1, 5, 2), -abs(floats(2)), floats(1, 5, 1, 16), floats(1, 5, 1, 16)), {"D": floats(2)}),
    "selective_scan": ((floats(1, 5, 8), floats(1, 5, 8), -abs(floats(8, 4)), floats(1, 5, 1, 4), floats(1, 5, 1, 4)), {"z": floats(1, 5, 8)}),
    "conv1d": ((floats(1, 5, 8), floats(8, 4)), {"bias": floats(8), "return_state": True}),
    "nsa": ((floats(1, 64, 4, 16), floats(1, 64, 2, 16), floats(1, 64, 2, 16)), {"g_cmp": floats(1, 64, 4), "g_swa": floats(1, 64, 4)}),
    "rms_norm": ((floats(3, 8), floats(8)), {"gate": floats(3, 8)}),
    "linear": ((floats(3, 8), floats(4, 8)), {"bias": floats(4)}),
    "moe": ((floats(3, 8), floats(3, 4), floats(4, 12, 8), floats(4, 8, 6)), {"top_k": 2}),
}


def same_with(wrap: Callable[[Any], Any], back: Callable[[Any], bool] = lambda one: isinstance(one, np.ndarray)) -> object:
    """Whether every op returns the same for wrapped arrays."""
    wrong = {}
    for name, (positional, named) in CALLS.items():
        function = getattr(ops, name)
        wanted = function(*positional, **named)
        wrapped = {key: wrap(value) if isinstance(value, np.ndarray) else value for key, value in named.items()}
        found = function(*(wrap(array) for array in positional), **wrapped)
        pairs = list(zip(found, wanted)) if isinstance(wanted, tuple) else [(found, wanted)]
        if not all(back(one) and np.array_equal(np.asarray(one), other) for one, other in pairs):
            wrong[name] = [type(one) for one, _ in pairs]
    return not wrong, wrong


@case
def objects_with_dlpack_alone() -> object:
    return same_with(Dlpack)


@case
def objects_with_array_interface_alone() -> object:
    return same_with(Interface)


@case
def some_arguments_of_another_library() -> object:
    x, weight = floats(3, 8), floats(8)
    return np.array_equal(ops.rms_norm(x, Dlpack(weight)), ops.rms_norm(x, weight))


@case
def an_output_of_another_library_is_written_in_place() -> object:
    x, out = floats(3, 8), floats(3, 8)
    given = Interface(out)
    return ops.rms_norm(Interface(x), out=given) is given and np.array_equal(out, ops.rms_norm(x))


@case
def a_state_of_another_library_is_written_in_place() -> object:
    (x, weight), state = CALLS["conv1d"][0], floats(1, 8, 3)
    twin = state.copy()
    y = ops.conv1d(Interface(x), Interface(weight), state=Interface(state))
    return np.array_equal(y, ops.conv1d(x, weight, state=twin)) and np.array_equal(state, twin)


@case
def bfloat16_of_ml_dtypes() -> object:
    wrong = {}
    for name, (positional, named) in CALLS.items():
        if name == "moe":  # its logits are float32
            continue
        keep = {"attention": ("cu_seqlens",)}.get(name, ())
        narrow = [array.astype(ml_dtypes.bfloat16) for array in positional]
        options = {key: value.astype(ml_dtypes.bfloat16) if isinstance(value, np.ndarray) and key not in keep else value for key, value in named.items()}
        found, wanted = getattr(ops, name)(*narrow, **options), getattr(ops, name)(*positional, **named)
        found, wanted = (one[0] if isinstance(one, tuple) else one for one in (found, wanted))
        error = np.linalg.norm(found.astype(np.float32) - wanted) / np.linalg.norm(wanted)
        if found.dtype != ml_dtypes.bfloat16 or not error < 3e-2:
            wrong[name] = found.dtype, error
    return not wrong, wrong


@case
def float8_weights_of_ml_dtypes() -> object:
    x, w = floats(3, 128).astype(ml_dtypes.bfloat16), floats(4, 128).astype(ml_dtypes.float8_e4m3fn)
    found = ops.linear(x, w, w_scale=np.full((1, 4), 0.5, dtype=np.float32)).astype(np.float32)
    wanted = x.astype(np.float32) @ w.astype(np.float32).T * 0.5
    return bool(np.linalg.norm(found - wanted) < 1e-2 * np.linalg.norm(wanted))


@case
def bfloat16_sinks() -> object:
    q, k, v = (floats(1, 5, 2, 16).astype(ml_dtypes.bfloat16) for _ in range(3))
    sinks = floats(2)
    found = ops.attention(q, k, v, sinks=sinks.astype(ml_dtypes.bfloat16))
    wanted = ops.attention(*(one.astype(np.float32) for one in (q, k, v)), sinks=sinks)
    return found.dtype == ml_dtypes.bfloat16 and bool(np.linalg.norm(found.astype(np.float32) - wanted) < 1e-2 * np.linalg.norm(wanted))


@case
def arrays_without_elements() -> object:
    wrong = []
    for queries, keys, batch in ((0, 7, 2), (5, 0, 2), (0, 0, 2), (5, 7, 0)):
        q, k, v = floats(batch, queries, 4, 16), floats(batch, keys, 4, 16), floats(batch, keys, 4, 8)
        o, lse = ops.attention(q, k, v, return_lse=True)
        fine = o.shape == (batch, queries, 4, 8) and lse.shape == (batch, 4, queries)
        if not fine or (keys == 0 and not (np.all(o == 0) and np.all(np.isneginf(lse)))):
            wrong.append(("attention", queries, keys, batch))
    for shape in ((0, 8), (2, 0, 8), (0, 3, 2, 8)):
        if ops.rms_norm(floats(*shape), floats(8)).shape != shape:
            wrong.append(("rms_norm", shape))
    if ops.linear(floats(0, 8), floats(4, 8)).shape != (0, 4):
        wrong.append(("linear",))
    if ops.conv1d(floats(0, 5, 8), floats(8, 4)).shape != (0, 5, 8) or ops.conv1d(floats(2, 0, 8), floats(8, 4)).shape != (2, 0, 8):
        wrong.append(("conv1d",))
    if ops.ssd(floats(2, 0, 2, 16), floats(2, 0, 2), -abs(floats(2)), floats(2, 0, 1, 16), floats(2, 0, 1, 16)).shape != (2, 0, 2, 16):
        wrong.append(("ssd",))
    if ops.moe(floats(0, 8), floats(0, 4), floats(4, 12, 8), floats(4, 8, 6), top_k=2).shape != (0, 8):
        wrong.append(("moe",))
    return not wrong, wrong


@case
def no_arrays_are_refused() -> object:
    words = "is no array of torch, numpy or CuPy"
    calls = [lambda: ops.rms_norm([1.0]), lambda: ops.attention("q", "k", "v"), lambda: ops.linear(3, 4), lambda: ops.kda(1, 2, 3, 4, 5)]
    return all(raises(TypeError, words, call) for call in calls)


@case
def a_window_may_be_none() -> object:
    q, k, v = CALLS["attention"][0]
    return np.array_equal(ops.attention(q, k, v, window=None), ops.attention(q, k, v, window=(-1, None)))


@case
def a_wrong_dtype_is_called_a_dtype() -> object:
    x = floats(3, 8)
    return raises(firstlight.Refused, "tensor `o` is f16, wanted f32", lambda: ops.rms_norm(x, out=np.zeros((3, 8), np.float16)))


@case
def a_wrong_shape_is_called_a_shape() -> object:
    x = floats(3, 8)
    return raises(firstlight.Refused, "has shape [1, 3, 1, 9], wanted [1, 3, 1, 8]", lambda: ops.rms_norm(x, out=floats(3, 9)))


@case
def why_takes_every_name_and_alias() -> object:
    from firstlight import _status

    x = floats(3, 8)
    names = ["rms_norm", "rmsnorm", "RMSNorm", "rms-norm", "firstlight.ops.rms_norm"]
    kernels = {firstlight.why(name, x=x)["kernel"] for name in names}
    q, k, v = CALLS["attention"][0]
    kernels.add(firstlight.why("sdpa", q=q, k=k, v=v, causal=True)["kernel"])
    everything = [*firstlight.tables(), *ops.__all__, *_status._ALIASES]
    unknown = [name for name in everything if _status.op_named(name) not in firstlight.tables()]
    return len(kernels) == 2 and not unknown, (kernels, unknown)


@case
def why_says_what_is_wrong_with_its_arguments() -> object:
    x = floats(3, 8)
    return (
        raises(ValueError, "no op is named `soft_max`", lambda: firstlight.why("soft_max", x=x))
        and raises(TypeError, "q, k are missing", lambda: firstlight.why("attention"))
        and raises(TypeError, "no tensor or setting `y`", lambda: firstlight.why("rms_norm", x=x, y=x))
        and raises(firstlight.Refused, "activation", lambda: firstlight.why("rms_norm", x=x, activation="gelu"))
    )


def main() -> int:
    try:
        import jax
    except ImportError:
        jax = None
    if jax is not None:

        @case
        def arrays_of_jax() -> object:
            return same_with(jax.numpy.asarray, lambda one: isinstance(one, jax.Array))

        @case
        def bfloat16_of_jax() -> object:
            x = jax.numpy.asarray(floats(3, 8)).astype(jax.numpy.bfloat16)
            found = ops.rms_norm(x)
            return isinstance(found, jax.Array) and found.dtype == jax.numpy.bfloat16

    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
