"""Modules and metadata under other packages' names, for ``firstlight.patch()`` and ``python -m firstlight shim``.

Both use the same module sources, which contain only imports from ``firstlight.compat``.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Iterator, Optional, Sequence

_FLASH = """from firstlight.compat.flash_attn import flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func
from firstlight.compat.flash_attn import flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func
from firstlight.compat.flash_attn import flash_attn_with_kvcache
"""
_CONV = "from firstlight.compat.causal_conv1d import causal_conv1d_fn, causal_conv1d_update\n"
_STATES = "from firstlight.compat.causal_conv1d import causal_conv1d_varlen_states\n"
_SCAN = "from firstlight.compat.mamba_ssm import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined\n"
_FIRST = "from firstlight.compat.mamba_ssm import selective_scan_fn\n"
_UPDATE = "from firstlight.compat.mamba_ssm import selective_state_update\n"
_NORM = "from firstlight.compat.mamba_ssm import layernorm_fn, rmsnorm_fn\n"
_DELTA = "from firstlight.compat.fla import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule\n"
_KDA = "from firstlight.compat.fla import chunk_kda, fused_recurrent_kda\n"
_NSA = "from firstlight.compat.fla import parallel_nsa\n"


class Package:
    """A shim package: its import name, distribution name, the version whose signatures it has, and its modules' sources by name."""

    def __init__(self, name: str, distribution: str, version: str, modules: dict[str, str]) -> None:
        self.name, self.distribution, self.version = name, distribution, version + "+firstlight"
        about = f'"""{distribution}\'s functions on firstlight\'s kernels (firstlight.compat)."""\n'
        self.modules = {module: about + text for module, text in modules.items()}
        self.modules[name] += f'\n__version__ = "{self.version}"\n'

    def is_package(self, module: str) -> bool:
        return any(other.startswith(module + ".") for other in self.modules) or module == self.name

    def metadata(self) -> dict[str, str]:
        """The files of its dist-info by name."""
        about = f"Metadata-Version: 2.1\nName: {self.distribution}\nVersion: {self.version}\nSummary: a stand-in by firstlight\n"
        return {"METADATA": about, "top_level.txt": self.name + "\n", "INSTALLER": "firstlight\n"}

    def dist_info(self) -> str:
        return f"{self.distribution.replace('-', '_')}-{self.version}.dist-info"


PACKAGES = {
    package.name: package
    for package in (
        Package(
            "flash_attn",
            "flash-attn",
            "2.8.3",
            {
                "flash_attn": _FLASH,
                "flash_attn.flash_attn_interface": _FLASH,
                "flash_attn.bert_padding": "from firstlight.compat.bert_padding import index_first_axis, pad_input, unpad_input\n",
            },
        ),
        Package(
            "causal_conv1d",
            "causal-conv1d",
            "1.5.2",
            {"causal_conv1d": _CONV, "causal_conv1d.causal_conv1d_interface": _CONV, "causal_conv1d.causal_conv1d_varlen": _STATES},
        ),
        Package(
            "mamba_ssm",
            "mamba-ssm",
            "2.2.6",
            {
                "mamba_ssm": "",
                "mamba_ssm.ops": "",
                "mamba_ssm.ops.selective_scan_interface": _FIRST,
                "mamba_ssm.ops.triton": "",
                "mamba_ssm.ops.triton.layernorm_gated": _NORM,
                "mamba_ssm.ops.triton.selective_state_update": _UPDATE,
                "mamba_ssm.ops.triton.ssd_combined": _SCAN,
            },
        ),
        # With version 0.2.2 or later transformers would also use fla's norms and convolutions, which are not provided.
        Package(
            "fla",
            "flash-linear-attention",
            "0.2.1",
            {
                "fla": "",
                "fla.ops": "",
                "fla.ops.gated_delta_rule": _DELTA,
                "fla.ops.kda": _KDA,
                "fla.ops.nsa": _NSA,
                "fla.ops.nsa.parallel": _NSA,
            },
        ),
    )
}


def chosen(names: Sequence[str]) -> list[Package]:
    """The packages of these names, or all of them; ValueError for an unknown name."""
    for name in names:
        if name not in PACKAGES:
            raise ValueError(f"firstlight has shims for {', '.join(PACKAGES)}, not for `{name}`")
    return [PACKAGES[name] for name in names or PACKAGES]


def there(name: str) -> Optional[str]:
    """The location of an installed package, or None."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    return spec.origin or str(list(spec.submodule_search_locations or ["?"])[0])


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, package: Package) -> None:
        self.package = package

    def get_source(self, name: str) -> str:
        return self.package.modules[name]

    def is_package(self, name: str) -> bool:
        return self.package.is_package(name)


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, package: Package) -> None:
        self.package = package

    def read_text(self, filename: str) -> Optional[str]:
        return self.package.metadata().get(filename)

    def locate_file(self, path: Any) -> Any:
        return path


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules and the metadata of the packages, except while it is ``hidden``."""

    def __init__(self, packages: Sequence[Package]) -> None:
        self.packages = {package.name: package for package in packages}
        self._hidden = 0

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        package = None if self._hidden else self.packages.get(name.partition(".")[0])
        if package is None or name not in package.modules:
            return None
        origin = f"firstlight.patch({package.name!r})"
        return importlib.machinery.ModuleSpec(name, _Loader(package), origin=origin, is_package=package.is_package(name))

    def find_distributions(self, context: Any = importlib.metadata.DistributionFinder.Context()) -> Iterator[_Distribution]:
        wanted = None if context.name is None else re.sub(r"[-_.]+", "-", context.name).lower()
        for package in [] if self._hidden else self.packages.values():
            if wanted in (None, package.distribution, package.name.replace("_", "-")):
                yield _Distribution(package)

    def loaded(self) -> dict[str, ModuleType]:
        """The imported modules of these packages, by name."""
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in self.packages and _ours(module)}

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hides the packages and their imported modules."""
        modules = self.loaded()
        for name in modules:
            del sys.modules[name]
        self._hidden += 1
        try:
            yield
        finally:
            self._hidden -= 1
            sys.modules.update(modules)


def _ours(module: ModuleType) -> bool:
    return isinstance(getattr(getattr(module, "__spec__", None), "loader", None), _Loader)


def write(folder: str, packages: Sequence[Package]) -> list[str]:
    """Writes packages with their metadata into a folder for the path. Returns the files."""
    from pathlib import Path

    files = {}
    for package in packages:
        for module, text in package.modules.items():
            parts = module.split(".")
            files["/".join(parts) + ("/__init__.py" if package.is_package(module) else ".py")] = text
        names = [f"{package.dist_info()}/{name}" for name in package.metadata()]
        files.update(zip(names, package.metadata().values()))
        record = [name for name in files if name.split("/")[0] in (package.name, package.dist_info())]
        files[f"{package.dist_info()}/RECORD"] = "".join(f"{name},,\n" for name in (*record, f"{package.dist_info()}/RECORD"))
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return sorted(files)
