"""Functions of other packages, with their names and signatures, on firstlight's kernels.

Each module is one package: ``from firstlight.compat.mamba_ssm import mamba_chunk_scan_combined``. What a function of theirs takes and
firstlight does not raises NotImplementedError, which names it; nothing is computed another way behind your back.
"""

from __future__ import annotations


def unsupported(function: str, **given: object) -> None:
    """Raises for the first argument that is there."""
    for name, present in given.items():
        if present:
            raise NotImplementedError(f"firstlight's {function} does not take `{name}`")
