"""Keyword arguments that firstlight's replacement of a function takes."""

from __future__ import annotations

import inspect
from typing import Any, Callable


def parameters(function: Callable[..., Any]) -> set[str]:
    """Names of a function's parameters. The package ``kernels`` makes functions of transformers modules, whose ``forward`` is used."""
    return set(inspect.signature(inspect.unwrap(getattr(function, "forward", function))).parameters)


def known(kwargs: dict[str, Any], taken: set[str], only_theirs: set[str]) -> dict[str, Any]:
    """The keywords in ``taken``. Raises NotImplementedError for a keyword that is set and that only the other function takes."""
    if kwargs.keys() <= taken:
        return kwargs
    for key, value in kwargs.items():
        if key in only_theirs and value is not None and value is not False:
            raise NotImplementedError(f"keyword {key}")
    return {key: value for key, value in kwargs.items() if key in taken}
