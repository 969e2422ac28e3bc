"""Verified attention and state-space kernels for every version of torch, without a compiler and without torch's C++ ABI.

``import firstlight`` loads neither torch nor numpy. ``firstlight.ops`` has the ops, ``firstlight.compat`` has
functions with the signatures of other packages, and ``firstlight.status()`` reports which kernels ran. Importing it replaces no other
package.
"""

from __future__ import annotations

from ._library import Refused, launches, library, tables

# Type checkers treat it as true. Importing `typing` would take longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import compat as compat
    from . import kernels as kernels
    from . import ops as ops
    from . import transformers as transformers
    from ._patch import patch as patch
    from ._status import status as status
    from ._status import why as why

    __version__: str

__all__ = ["Refused", "compat", "kernels", "launches", "library", "ops", "patch", "status", "tables", "transformers", "why"]


if not TYPE_CHECKING:

    def __getattr__(name):
        """Imports a public name on first use."""
        if name in ("ops", "compat", "kernels", "transformers"):
            import importlib

            return importlib.import_module("." + name, __name__)
        if name in ("status", "why"):
            from . import _status

            return getattr(_status, name)
        if name == "patch":
            from ._patch import patch

            return patch
        if name == "__version__":
            from importlib.metadata import version

            return version("firstlight")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
