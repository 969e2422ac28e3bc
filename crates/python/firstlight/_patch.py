"""``firstlight.patch()``: temporarily provides firstlight under other packages' names."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from typing import Any, Optional

from . import _shims


class patch:
    """Replaces ``flash_attn``, ``causal_conv1d``, ``mamba_ssm`` and ``fla``, or only the named ones, in this process.

    ::

        with firstlight.patch("causal_conv1d", "mamba_ssm"):
            ...

    or ``patched = firstlight.patch()`` and later ``patched.undo()``.

    Imports of these packages return the functions of ``firstlight.compat``, and ``importlib.metadata`` returns their versions. Modeling
    files of transformers, whether imported before or later, call the functions too, and fall back to their own code if firstlight
    refuses; ``firstlight.transformers.report()`` counts both. Installed packages are not replaced without ``force``. ``names`` has the
    replaced packages, ``kept`` the installed ones with their locations.

    ``undo`` restores ``sys.modules``, ``sys.meta_path``, modeling files and the availability caches of transformers. Names that other
    code has imported from these packages stay bound.
    """

    def __init__(self, *packages: str, force: bool = False) -> None:
        wanted = _shims.chosen(packages)
        found: dict[str, Optional[str]] = {} if force else {package.name: _shims.there(package.name) for package in wanted}
        self.kept: dict[str, str] = {name: where for name, where in found.items() if where is not None}
        taken = [package for package in wanted if package.name not in self.kept]
        self.names: list[str] = [package.name for package in taken]
        self._finder: Optional[_shims.Finder] = _shims.Finder(taken)
        self._stashed = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self.names}
        self._memory = _Memory()
        for name in self._stashed:
            del sys.modules[name]
        # Last, so that installed packages are found first, or first with `force`.
        sys.meta_path.insert(0 if force else len(sys.meta_path), self._finder)
        self._memory.taken(taken)
        from .transformers import rebind

        self._changes = rebind(self.names, self._finder.hidden)

    def __enter__(self) -> patch:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()

    def undo(self) -> None:
        """Undoes the replacement. Further calls do nothing."""
        if self._finder is None:
            return
        self._changes.undo()
        for name in self._finder.loaded():
            del sys.modules[name]
        sys.modules.update(self._stashed)
        sys.meta_path.remove(self._finder)
        self._finder = None
        self._memory.restore()


class _Memory:
    """Caches of transformers about available packages: results of functions, a table of distributions, functions of flash attention."""

    def __init__(self) -> None:
        self.table: Any = None
        self.before: Any = None
        importlib.invalidate_caches()
        self.flash = self._flash()

    def _module(self, name: str) -> Any:
        return sys.modules.get("transformers." + name)

    def _flash(self) -> dict[str, Any]:
        module = self._module("modeling_flash_attention_utils")
        return {name: value for name, value in vars(module).items() if name.startswith("_") and not name.startswith("__")} if module else {}

    def _forget(self) -> None:
        importlib.invalidate_caches()
        module = self._module("utils.import_utils")
        for name, function in list(vars(module).items()) if module else ():
            if name.startswith("is_") and hasattr(function, "cache_clear"):
                function.cache_clear()

    def taken(self, packages: list[_shims.Package]) -> None:
        self._forget()
        self.table = getattr(self._module("utils.import_utils"), "PACKAGE_DISTRIBUTION_MAPPING", None)
        if self.table is not None:
            self.before = {package.name: self.table.get(package.name) for package in packages}
            self.table.update({package.name: [package.distribution] for package in packages})

    def restore(self) -> None:
        for name, value in (self.before or {}).items():
            if value is None:
                self.table.pop(name, None)
            else:
                self.table[name] = value
        self._restore_table_of_later_import()
        self._forget()
        module, before = self._module("modeling_flash_attention_utils"), self.flash
        for name, value in self._flash().items():
            if name in before and value is not before[name]:
                setattr(module, name, before[name])
            elif not before and name.endswith(("_fn", "_implementation")):
                setattr(module, name, None)

    def _restore_table_of_later_import(self) -> None:
        """Rebuilds the table of a transformers that was imported during the patch and has read firstlight's metadata."""
        table = getattr(self._module("utils.import_utils"), "PACKAGE_DISTRIBUTION_MAPPING", None)
        if self.table is None and table is not None:
            fresh = importlib.metadata.packages_distributions()
            table.clear()
            table.update(fresh)
