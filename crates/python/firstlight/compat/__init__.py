"""Functions with the names and signatures of other packages, implemented by firstlight's kernels.

Each module is one package: ``from firstlight.compat.mamba_ssm import mamba_chunk_scan_combined``. An argument that firstlight does not
support raises NotImplementedError with its name; there is no silent fallback.
"""

from __future__ import annotations


def unsupported(function: str, **given: object) -> None:
    """Raises NotImplementedError for the first argument that is given."""
    for name, present in given.items():
        if present:
            raise NotImplementedError(f"firstlight's {function} does not take `{name}`")
