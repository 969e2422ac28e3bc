"""Calls of models' functions that ran on firstlight, that torch.compile traced, and that ran as before."""

from __future__ import annotations

from collections import Counter

RAN: Counter[str] = Counter()
_TRACED: Counter[str] = Counter()
_FELL: Counter[tuple[str, str]] = Counter()


def report() -> dict[str, dict[str, int]]:
    """Calls by function that ran on firstlight, those that ``torch.compile`` traced into graphs, and those that ran as before, each with
    the reason. A compiled graph counts a call once, however often it runs; ``firstlight.status()`` has the launches."""
    before = {f"{name}: {why}": count for (name, why), count in _FELL.items()}
    return {"firstlight": dict(RAN), "compiled": dict(_TRACED), "as_before": before}


def ran(name: str) -> None:
    RAN[name] += 1


def ran_traced(name: str) -> None:
    _TRACED[name] += 1


def fell(name: str, why: str) -> None:
    _FELL[name, why] += 1


# torch.compile would guard on the counts and compile again at each call. It runs these where it traces, and keeps nothing of them.
ran._torchdynamo_inline = ran_traced
ran_traced._dynamo_marked_constant = fell._dynamo_marked_constant = True


def forget() -> None:
    """Counts begin at nothing again."""
    for counts in (RAN, _TRACED, _FELL):
        counts.clear()
