"""Shared by the writers of test checkpoints: the target folder and its layout.

Each folder has config.json, model.safetensors, and the expected values in a subfolder, want/want.safetensors.
"""

import json
import sys
import types
from pathlib import Path

OUT = Path(sys.argv[1])


def site(name):
    """The folder of an importable package."""
    found = [Path(path) / name for path in sys.path if (Path(path) / name).is_dir()]
    return found[0]


def package(name):
    """A package of which only single files are loaded, because the others require CUDA or further packages."""
    root, *parts = name.split(".")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(site(root).joinpath(*parts))]


def write(name, config, tensors, want):
    from safetensors.torch import save_file

    folder = OUT / name
    (folder / "want").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    for path, values in [("model.safetensors", tensors), ("want/want.safetensors", want)]:
        save_file({key: value.contiguous() for key, value in values.items()}, folder / path)
