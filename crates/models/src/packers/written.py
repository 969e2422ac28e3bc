"""What the writers of checkpoints for tests share: where they write, and how folders look.

Each has config.json, model.safetensors and, out of the way of whoever reads checkpoints, want/want.safetensors.
"""

import json
import sys
import types
from pathlib import Path

OUT = Path(sys.argv[1])


def site(name):
    """Where a package is that can be imported."""
    found = [Path(path) / name for path in sys.path if (Path(path) / name).is_dir()]
    return found[0]


def package(name):
    """A package of which only single files are loaded: the rest of it wants CUDA, or much else."""
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
