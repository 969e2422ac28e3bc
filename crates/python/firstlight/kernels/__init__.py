"""firstlight's layers for Hugging Face's ``kernels`` package, including ``use_kernels`` in transformers. Nothing is downloaded.

Use ``kernels.use_kernel_mapping(firstlight.kernels.mapping())`` around ``kernels.kernelize(model, mode=Mode.INFERENCE)``, or
``model.set_use_kernels(True, firstlight.kernels.config())`` with a model of transformers. This folder also works as a local kernel:
``LocalLayerRepository(firstlight.kernels.PATH, layer_name="RMSNorm")``.

A call that firstlight does not support runs the layer's original code, and ``firstlight.transformers.report()`` counts it with the reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

# `kernels` imports this folder under another name, in which relative imports would create a second package.
from firstlight.kernels import layers as layers

__all__ = ["PATH", "config", "layers", "mapping", "register"]

PATH = Path(__file__).parent

# Compute capabilities. An entry with a range has priority over the entries of transformers, which have none.
_OLDEST, _NEWEST = 80, 129


class _Repository:
    """A layer for a mapping of ``kernels``."""

    def __init__(self, layer_name: str) -> None:
        self.layer_name = layer_name

    def load(self) -> Any:
        """The class, a ``torch.nn.Module``."""
        return getattr(layers, self.layer_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Repository) and self.layer_name == other.layer_name

    def __hash__(self) -> int:
        return hash((_Repository, self.layer_name))

    def __str__(self) -> str:
        return f"firstlight.kernels.layers.{self.layer_name}"


def mapping() -> dict[str, dict[Any, Any]]:
    """A kernel mapping of all layers, for GPUs of compute capability 8.0 and later and for the CPU. Layers without gradients are mapped for
    inference only: in training ``kernelize`` does not replace the model's code."""
    from kernels import CUDAProperties, Device, Mode

    devices = [Device("cuda", CUDAProperties(_OLDEST, _NEWEST)), "cpu"]
    modes = {True: (Mode.INFERENCE, Mode.TRAINING), False: (Mode.INFERENCE,)}
    return {name: {device: {mode: _Repository(name) for mode in modes[layers.has_backward(name)]} for device in devices} for name in layers.NAMES}


def register() -> None:
    """Adds ``mapping()`` to the process's kernel mapping, as ``kernels.register_kernel_mapping`` does."""
    from kernels import register_kernel_mapping

    register_kernel_mapping(mapping())


def config() -> Any:
    """A ``KernelConfig`` of transformers with ``mapping()`` and without kernels of a hub, for ``model.set_use_kernels(True, config)`` and
    ``from_pretrained(..., use_kernels=True, kernel_config=config)``."""
    from transformers import KernelConfig

    class Config(KernelConfig):  # type: ignore[misc, unused-ignore]
        """It is empty while a model is created, because transformers then accepts only names of kernels on a hub."""

        def sanitize_kernel_mapping(self, model: Any) -> None:
            self.store_registered_layer_names(model)

        def create_compatible_mapping(self, model: Any, compile: bool = False) -> None:
            self.kernel_mapping = mapping()

    return Config(use_local_kernel=True)
