"""Compares the logits of one model in transformers and firstlight."""

import inspect
import re
import subprocess

import torch
from safetensors.torch import load_file
from tiny import inputs

# Allowed relative distance from rounding: both logits are float32, with sums in different orders.
ROUNDING = 1e-4
SECONDS = 300
# Accepted reasons: a family, or a config key with its value.
EXPLAINED = re.compile(r"is no model family that firstlight (runs|knows)|config\.json: `[\w.]+` (is|has) |config\.json: `[\w.]+` is missing")


def distance(found, wanted):
    if found.shape != wanted.shape:
        return float("inf")
    found, wanted = found.double(), wanted.double()
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-30)).nan_to_num(nan=float("inf")).item()


def without_least_step(model):
    """Removes a clamp: transformers' Nemotron-H clamps step sizes in prefill but not in decoding; NVIDIA's code, vLLM and firstlight do not."""
    for part in model.modules():
        if type(part).__name__.startswith("NemotronH") and hasattr(part, "time_step_limit"):
            part.time_step_limit = (0.0, float("inf"))


def logits(model):
    """transformers' logits of one text sequence, and its ids."""
    without_least_step(model)
    given, _ = inputs(model)
    given = {name: value[:1] for name, value in given.items()}
    if "decoder_input_ids" in given:
        raise ValueError("it has an encoder")
    cached = {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}
    with torch.no_grad():
        return model.eval()(**given, **cached).logits[0].float(), given["input_ids"][0].tolist()


def firstlight(program, folder, ids):
    """The program's logits, or the verdict and its message."""
    out = folder.with_suffix(".safetensors")
    words = ["model", "logits", str(folder), "--ids", ",".join(map(str, ids)), "-o", str(out), "--backend", "cpu"]
    ran = subprocess.run([program, *words], capture_output=True, text=True, timeout=SECONDS)
    said = ran.stderr.strip().replace(str(folder) + "/", "").replace(str(folder), "FOLDER")
    if ran.returncode == 0:
        found = load_file(out)["logits"]
        out.unlink()
        return found, None, None
    if ran.returncode not in (1, 2) or "panicked" in said:
        return None, "crashed", f"exit {ran.returncode}: {said[-300:]}"
    reason = said.splitlines()[0].removeprefix("error: ") if said else ""
    return None, "refused" if EXPLAINED.search(reason) else "unexplained", reason
