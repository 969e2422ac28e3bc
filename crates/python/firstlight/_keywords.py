"""Keywords of a call that a function of ours takes in place of another one."""

from __future__ import annotations

import inspect
from typing import Any, Callable


def parameters(function: Callable[..., Any]) -> set[str]:
    """Names of a function's parameters. With the package ``kernels``, functions of transformers are modules: those of ``forward``."""
    return set(inspect.signature(inspect.unwrap(getattr(function, "forward", function))).parameters)


def known(kwargs: dict[str, Any], taken: set[str], only_theirs: set[str]) -> dict[str, Any]:
    """The keywords in ``taken``. A keyword that only the other function takes is no reason to drop it: NotImplementedError names it."""
    if kwargs.keys() <= taken:
        return kwargs
    for key, value in kwargs.items():
        if key in only_theirs and value is not None and value is not False:
            raise NotImplementedError(f"keyword {key}")
    return {key: value for key, value in kwargs.items() if key in taken}
