"""Verified attention and state-space kernels for every torch, with no compiler and no ABI.

``import firstlight`` loads neither torch nor numpy. ``firstlight.ops`` has the ops, ``firstlight.compat`` other packages' functions with
their signatures, and ``firstlight.status()`` tells which kernels really ran. Nothing here replaces another package unless you ask.
"""

from ._library import Refused, launches, library, tables

__all__ = ["Refused", "compat", "launches", "library", "ops", "patch", "status", "tables", "why"]


def __getattr__(name):
    if name in ("ops", "compat", "transformers"):
        import importlib

        return importlib.import_module("." + name, __name__)
    if name in ("status", "why"):
        from . import _calls

        return getattr(_calls, name)
    if name == "patch":
        from ._patch import patch

        return patch
    if name == "__version__":
        from importlib.metadata import version

        return version("firstlight")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
