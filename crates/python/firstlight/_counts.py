"""Counts calls of models' functions that ran on firstlight, that torch.compile traced, and that ran the original code."""

from __future__ import annotations

from collections import Counter

RAN: Counter[str] = Counter()
_TRACED: Counter[str] = Counter()
_FELL: Counter[tuple[str, str]] = Counter()


def report() -> dict[str, dict[str, int]]:
    """Counts by function: calls that ran on firstlight, calls that ``torch.compile`` traced into graphs, and calls that ran the original
    code, by reason. A call in a compiled graph is counted once, when it is traced; ``firstlight.status()`` counts launches."""
    before = {f"{name}: {why}": count for (name, why), count in _FELL.items()}
    return {"firstlight": dict(RAN), "compiled": dict(_TRACED), "as_before": before}


def ran(name: str) -> None:
    RAN[name] += 1


def ran_traced(name: str) -> None:
    _TRACED[name] += 1


def fell(name: str, why: str) -> None:
    _FELL[name, why] += 1


# Without this torch.compile would guard on the counts and recompile at each call. It runs these functions while tracing instead.
ran._torchdynamo_inline = ran_traced
ran_traced._dynamo_marked_constant = fell._dynamo_marked_constant = True


def forget() -> None:
    """Resets all counts to 0."""
    for counts in (RAN, _TRACED, _FELL):
        counts.clear()
