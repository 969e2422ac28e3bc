"""Types of arguments, for type checkers; nothing at run time depends on them."""

from __future__ import annotations

from typing import Any, Protocol, Sequence, TypeVar


class Array(Protocol):
    """An array of torch, numpy, CuPy or JAX, or of another library with ``__dlpack__`` or ``__array_interface__``."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes of the dimensions."""

    @property
    def dtype(self) -> Any:
        """Type of the elements."""


A = TypeVar("A", bound=Array)
