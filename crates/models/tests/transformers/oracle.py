"""Logits and hidden states of transformers' models: for the ids in each folder's `ids.json`, written to its `logits.f32` and `hidden.f32`.

Modules that can use kernels of other packages use their slow paths, because none of these packages is installed.
"""

import json
import pathlib
import sys
import time

import torch
import transformers

torch.set_num_threads(2)
transformers.logging.set_verbosity_error()
for folder in map(pathlib.Path, sys.argv[1:]):
    began = time.monotonic()
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    # A weight that was not loaded would be random.
    wrong = {kind: sorted(names) for kind, names in report.items() if names and kind != "error_msgs"}
    assert not wrong and not report.get("error_msgs"), f"{folder}: {report}"
    ids = torch.tensor([json.loads((folder / "ids.json").read_text())])
    with torch.no_grad():
        logits = model.eval()(input_ids=ids, use_cache=False).logits[0].float()
        # After the last norm: the input of pooling for embeddings.
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0].float()
    (folder / "logits.f32").write_bytes(logits.contiguous().numpy().tobytes())
    (folder / "hidden.f32").write_bytes(hidden.contiguous().numpy().tobytes())
    print(f"{folder.name} {type(model).__name__} {time.monotonic() - began:.2f} s", flush=True)
