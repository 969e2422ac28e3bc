"""The ops as operators of torch's dispatcher, ``torch.ops.firstlight``, for ``torch.compile``, fake tensors and autograd.

Every op but the gradients has an operator with its tensors by name and three more arguments: a text that encodes the settings, bounds and inserted
dimensions, and the integers and floats in it, which may be symbolic during tracing. An op has up to three overloads: ``default`` returns
its first output, ``all`` all outputs that it always has, and ``state`` updates ``initial_state`` in place. Importing this module registers
them. ``torch.library.custom_op`` would take twice the time per call.
"""

import inspect
from functools import lru_cache

import torch

from . import _autograd, _calls, _library
from ._arrays import library_of
from ._shapes import shapes

_DEFINED = torch.library.Library("firstlight", "DEF")
OPERATORS = {}


class Overload:
    """An overload of an operator: its outputs, and whether it updates the state in place."""

    def __init__(self, table, kind, wanted):
        self.op, self.kind, self.wanted = table["name"], kind, wanted
        self.names = [tensor["name"] for tensor in table["inputs"]]
        self.name = self.op if kind == "default" else f"{self.op}.{kind}"
        taken = [self._declared(tensor) for tensor in table["inputs"]]
        taken += ["str text", "SymInt[] integers", "float[] numbers"]
        given = "Tensor" if len(wanted) == 1 else "(" + ", ".join("Tensor " + one for one in wanted) + ")"
        self.schema = f"{self.name}({', '.join(taken)}) -> {given}"

    def _declared(self, tensor):
        name, optional = tensor["name"], not tensor["required"]
        if self.kind == "state" and name == "initial_state":
            return f"Tensor(a!) {name}"
        return f"Tensor{'?' if optional else ''} {name}"

    def read(self, args):
        """Tensors, settings and bounds by name, and the names of tensors that get an additional dimension."""
        *tensors, text, integers, numbers = args
        settings, bounds, insert = _read(text, integers, numbers)
        return dict(zip(self.names, tensors)), settings, bounds, insert

    def run(self, *args):
        """Runs the op on tensors with memory."""
        # A subclass that reaches this kernel has no `__torch_dispatch__`, so it can be read as a plain tensor.
        args = [_plain(arg) for arg in args]
        inputs, settings, bounds, insert = self.read(args)
        codes = library_of(inputs[self.names[0]]).codes
        given = shapes(self.op, inputs, settings)
        given = {name: (given[name][0], codes[_dtype(given[name][1])]) for name in self.wanted}
        out = {"final_state": inputs["initial_state"]} if self.kind == "state" else None
        with torch.no_grad():
            return _calls.call(self.op, tuple(settings.items()), inputs, out, bounds, self.wanted, given, insert)

    def fake(self, *args):
        """The outputs as tensors without values, for tracing."""
        inputs, settings, _, _ = self.read(args)
        if len({tensor.is_meta for tensor in inputs.values() if tensor is not None}) > 1:
            raise ValueError(f"{self.op}: some tensors are meta tensors and some are not")
        like, given = inputs[self.names[0]], shapes(self.op, inputs, settings)
        made = [like.new_empty(given[name][0], dtype=_dtype(given[name][1])) for name in self.wanted]
        return made[0] if len(made) == 1 else tuple(made)


def _plain(arg):
    return arg.as_subclass(torch.Tensor) if isinstance(arg, torch.Tensor) and type(arg) is not torch.Tensor else arg


def _dtype(dtype):
    return getattr(torch, dtype) if isinstance(dtype, str) else dtype


# Each part of a call's text is one of these kinds, a name, and a value, which is empty if it is among the integers or floats.
_INTEGER, _NUMBER, _WORD, _BOUND, _INSERT = "integer", "number", "word", "bound", "insert"


@lru_cache(maxsize=None)
def _parsed(text):
    return [tuple(part.split(" ", 2)) for part in text.split(";") if part]


def _read(text, integers, numbers):
    settings, bounds, insert = {}, {}, ()
    integers, numbers = iter(integers), iter(numbers)
    for mark, name, word in _parsed(text):
        if mark == _INTEGER:
            settings[name] = next(integers)
        elif mark == _NUMBER:
            settings[name] = next(numbers)
        elif mark == _WORD:
            settings[name] = {"True": True, "False": False}.get(word, word)
        elif mark == _BOUND:
            bounds[name] = (next(integers), next(integers))
        else:
            insert += (name,)
    return settings, bounds, insert


def _text(lines):
    """The parts in one line, because inductor writes the text into comments of the code that it generates for a GPU."""
    return ";".join(f"{mark} {name} {word}" for mark, name, word in lines)


# torch.compile runs this while tracing and treats the result as a constant, because its arguments are constant.
_text._dynamo_marked_constant = True


def _written(settings, bounds, insert):
    """Encodes the text, integers and floats that ``_read`` decodes."""
    lines, integers, numbers = [], [], []
    for name, value in settings:
        if value is None:
            continue
        if isinstance(value, float):
            lines.append((_NUMBER, name, ""))
            numbers.append(value)
        elif isinstance(value, int) and not isinstance(value, bool):
            lines.append((_INTEGER, name, ""))
            integers.append(value)
        else:
            lines.append((_WORD, name, str(value)))
    for name, (most, total) in bounds.items():
        lines.append((_BOUND, name, ""))
        integers += [most, total]
    lines += [(_INSERT, name, "") for name in insert]
    return _text(tuple(lines)), integers, numbers


def call(name, settings, inputs, out=None, bounds=None, want=("o",), insert=()):
    """Like ``_calls.call``, through the dispatcher. Arrays in ``out`` are written by a copy, except for a state."""
    out = {} if out is None else out
    kind = "default" if len(want) == 1 else "all"
    # Not by `get`, which torch.compile of 2.1 does not support.
    if "final_state" in out and out["final_state"] is not None:
        kind = "state"
    overload = OPERATORS[name, kind]
    tensors = [inputs[tensor] if tensor in inputs else None for tensor in overload.names]
    found = overload.operator(*tensors, *_written(settings, {} if bounds is None else bounds, insert))
    found = dict(zip(overload.wanted, (found,) if len(overload.wanted) == 1 else found))
    for tensor in want:
        if tensor in out and out[tensor] is not None:
            found[tensor] = out[tensor].copy_(found[tensor])
    return found[want[0]] if len(want) == 1 else tuple([found[tensor] for tensor in want])


def _overloads(table):
    names = {tensor["name"] for tensor in table["inputs"]}
    always = [tensor["name"] for tensor in table["outputs"] if tensor["required"]]
    yield Overload(table, "default", always[:1])
    if len(always) > 1:
        yield Overload(table, "all", always)
    if "initial_state" in names and "final_state" in always:
        yield Overload(table, "state", always[:1])


_TAGGED = "tags" in inspect.signature(_DEFINED.define).parameters


def _register(overload):
    tag = torch.Tag
    tags = [getattr(tag, name) for name in ("pt2_compliant_tag", "needs_fixed_stride_order") if hasattr(tag, name)]
    # torch 2.1 does not take tags.
    _DEFINED.define(overload.schema, **({"tags": tuple(tags)} if _TAGGED else {}))
    for device in ("CPU", "CUDA"):
        _DEFINED.impl(overload.name, overload.run, device)
    overload.operator = getattr(getattr(torch.ops.firstlight, overload.op), overload.kind)
    _DEFINED.impl(overload.name, _autograd.recorded(overload), "Autograd")
    # `impl_abstract` is its name before torch 2.4; torch before 2.2 does not have it.
    fake = getattr(torch.library, "register_fake", None) or getattr(torch.library, "impl_abstract", None)
    if fake is None:
        _DEFINED.impl(overload.name, overload.fake, "Meta")
    else:
        fake(f"firstlight::{overload.name}", overload.fake, lib=_DEFINED)
    OPERATORS[overload.op, overload.kind] = overload


for _table in _library.tables().values():
    # Gradients are called by autograd in eager mode; graphs have their formulas.
    if _table["name"].endswith("_backward"):
        continue
    for _one in _overloads(_table):
        _register(_one)
