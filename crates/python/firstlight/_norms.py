"""Replaces RMS norms of transformers' modeling files by ``ops.rms_norm``, if evaluating them on samples confirms its formula."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
from dataclasses import dataclass
from typing import Any, Callable, Optional

from . import ops
from ._counts import fell, ran
from ._library import Refused

_EPSILONS = ("variance_epsilon", "eps", "epsilon", "norm_eps")
# Settings that a norm may read, with the values for which its formula is tested.
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "with_scale": (True, False),
    "norm_before_gate": (True, False),
    "activation": ("silu", "sigmoid"),
    "group_size": (4, None),
    "n_groups": (2, 1),
}
_WIDTH, _EPSILON = 8, 0.3
_SHAPES = ((2, 3, _WIDTH), (2, 1, _WIDTH), (1, 1, _WIDTH), (3, _WIDTH), (2, 3, 2, _WIDTH))


@dataclass(frozen=True)
class Formula:
    """``x / sqrt(mean(x^2) + eps)``, times weight (``plain``), times 1 + weight (``plus_one``) or without a weight (``none``). A gate
    multiplies x (``before``), the result (``after``), or one of them according to ``norm_before_gate`` (``setting``)."""

    weight: str
    gate: str
    epsilon: str
    names: tuple[str, ...]
    reads: frozenset[str]


def is_norm(name: str) -> bool:
    """Whether a class may be an RMS norm by its name. T5 names its RMS norm ``LayerNorm``."""
    return name.endswith(("Norm", "NormGated"))


class _Stub:
    """A substitute for ``self`` while a norm's forward pass is tested. It records which settings are read."""

    def __init__(self, cls: type, values: dict[str, Any]) -> None:
        self._cls, self._values = cls, values
        self._reads: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self._values:
            self._reads.add(name)
            return self._values[name]
        found = getattr(self._cls, name)
        return types.MethodType(found, self) if isinstance(found, types.FunctionType) else found


def _groups(values: Any, width: int) -> int:
    """The number of channel groups that a norm with these settings normalises separately."""
    size = values.get("group_size")
    return width // size if size else values.get("n_groups") or 1


def _expected(formula: Formula, values: dict[str, Any], x: Any, gate: Any) -> Any:
    """The result of a formula, computed with torch."""
    import torch

    activation = torch.sigmoid if "activation" in formula.reads and values["activation"] == "sigmoid" else torch.nn.functional.silu
    after = values["norm_before_gate"] if formula.gate == "setting" else formula.gate == "after"
    settings = {name: values[name] for name in ("group_size", "n_groups") if name in formula.reads}
    y = x if gate is None or after else x * activation(gate)
    grouped = y.reshape(*y.shape[:-1], _groups(settings, _WIDTH), -1)
    y = (grouped * torch.rsqrt(grouped.square().mean(-1, keepdim=True) + _EPSILON)).reshape(y.shape)
    if formula.weight != "none" and not ("with_scale" in formula.reads and not values["with_scale"]):
        y = y * (values["weight"] + (formula.weight == "plus_one"))
    return y * activation(gate) if gate is not None and after else y


def _examined(cls: type, forward: Callable[..., Any], names: tuple[str, ...], values: dict[str, Any]) -> tuple[list[Any], set[str]]:
    """Inputs and results of a norm's forward pass with these settings, for each supported shape, and the settings that it reads."""
    import torch

    generator = torch.Generator().manual_seed(0)
    found: list[Any] = []
    stub = _Stub(cls, values)
    for shape in _SHAPES:
        for gated in (False, True) if len(names) > 1 else (False,):
            x, gate = (torch.randn(shape, generator=generator) for _ in range(2))
            given = (x, gate) if gated else (x,)
            try:
                found.append((x, gate if gated else None, forward(stub, *(one.clone() for one in given))))
            except Exception:  # the norm requires its gate, or does not support the shape
                if shape == _SHAPES[0] and gated == (len(names) > 1):
                    raise
    return found, stub._reads


def formula_of(cls: type, forward: Callable[..., Any]) -> Optional[Formula]:
    """The formula of a norm, or None if no supported formula matches."""
    import torch

    names = tuple(inspect.signature(forward).parameters)[1:]
    if not names or names[1:] not in ((), ("gate",)):
        return None
    weight = torch.randn(_WIDTH, generator=torch.Generator().manual_seed(1))
    values = {"weight": weight, **{name: _EPSILON for name in _EPSILONS}, **{name: options[0] for name, options in _SETTINGS.items()}}
    try:
        with torch.no_grad(), torch.device("cpu"):
            reads = _examined(cls, forward, names, values)[1]
            settings = sorted(reads & set(_SETTINGS))
            epsilons = reads & set(_EPSILONS)
            if len(epsilons) != 1:
                return None
            cases = []
            for choice in itertools.product(*(_SETTINGS[name] for name in settings)):
                chosen = {**values, **dict(zip(settings, choice))}
                try:
                    cases.append((chosen, _examined(cls, forward, names, chosen)[0]))
                except (TypeError, ValueError):  # an unsupported value of a setting, such as no groups
                    continue
            gates = ("setting",) if "norm_before_gate" in reads else ("before", "after") if len(names) > 1 else ("none",)
            for kind, gate in itertools.product(("plain", "plus_one", "none"), gates):
                found = Formula(kind, gate, next(iter(epsilons)), names, frozenset(reads))
                if all(_agrees(found, chosen, *one) for chosen, inputs in cases for one in inputs):
                    return found
    except Exception:  # the forward pass of another kind of module fails on a stub
        return None
    return None


def _agrees(formula: Formula, values: dict[str, Any], x: Any, gate: Any, found: Any) -> bool:
    import torch

    wanted = _expected(formula, values, x, gate)
    return isinstance(found, torch.Tensor) and found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5)


def _normed(formula: Formula, norm: Any, x: Any, gate: Any) -> Any:
    """The result of a norm, computed by ``ops.rms_norm``."""
    weight = None
    if formula.weight != "none" and ("with_scale" not in formula.reads or norm.with_scale):
        weight = norm.weight
        if weight.dim() == 0:  # a scalar instead of a weight
            weight = weight.to(x.dtype).expand(x.shape[-1]).contiguous()
        elif x.dtype != weight.dtype:
            raise NotImplementedError(f"{x.dtype} with a weight of {weight.dtype}")
        if formula.weight == "plus_one":
            weight = weight.float() + 1.0
    settings: dict[str, Any] = {"eps": getattr(norm, formula.epsilon)}
    if gate is not None:
        settings["norm_before_gate"] = norm.norm_before_gate if formula.gate == "setting" else formula.gate == "after"
        if "activation" in formula.reads:
            settings["activation"] = norm.activation
    shape = x.shape
    sizes = {name: getattr(norm, name) for name in ("group_size", "n_groups") if name in formula.reads}
    groups = _groups(sizes, shape[-1])
    if groups > 1:
        x, gate = (None if one is None else one.reshape(1, -1, groups, shape[-1] // groups) for one in (x, gate))
        weight = None if weight is None else weight.view(groups, -1)
    return ops.rms_norm(x, weight, gate=gate, **settings).reshape(shape)


OTHER_FORMULA = "its formula is not that of firstlight's RMS norm"


def patch(changes: Any, name: str, cls: Any) -> Optional[str]:
    """Replaces a norm's ``forward``. Returns the reason if it does not."""
    forward, theirs = replacement(name, cls), _before(cls)
    if forward is not None:
        changes.set(cls, "forward", forward)
        return None
    if theirs is not cls.forward:
        changes.set(cls, "forward", theirs)
    return OTHER_FORMULA


def _before(cls: Any) -> Any:
    """A norm's original ``forward``. A subclass of a class whose ``forward`` is replaced may have another formula."""
    return getattr(cls.forward, "_firstlight_before", cls.forward)


def replacement(name: str, cls: Any) -> Any:
    """A ``forward`` for a norm on firstlight, which falls back to the original if firstlight refuses; None if the formula is not supported."""
    theirs = _before(cls)
    formula = formula_of(cls, theirs)
    if formula is None:
        return None
    gated = len(formula.names) > 1
    first, epsilon = formula.names[0], formula.epsilon
    plain = formula.weight == "plain" and not gated and formula.reads == {"weight", epsilon}

    @functools.wraps(theirs)
    def forward(self: Any, *given: Any, **named: Any) -> Any:
        x = given[0] if given else named[first]
        gate = (given[1] if len(given) > 1 else named.get("gate")) if gated else None
        try:
            # Read only if needed, because `Module.__getattr__` takes longer than the rest of this function.
            weight = self.weight if plain else None
            if weight is not None and x.dtype == weight.dtype and weight.dim():
                found = ops.rms_norm(x, weight, eps=getattr(self, epsilon))
            else:
                found = _normed(formula, self, x, gate)
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return theirs(self, *given, **named)
        ran(name)
        return found

    forward._firstlight_before = theirs  # type: ignore[attr-defined]
    return forward
