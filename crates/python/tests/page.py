"""Runs the programs of the book's page about Python whose comment names this file.

``python page.py PAGE``, with torch and transformers. The published model is replaced by a small one of the same architecture with a byte tokenizer;
without a GPU, the device is replaced by the CPU, and inductor by a backend with the same tracing. It prints a line for each program and ends
with 1 if one fails.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
import traceback

import tokenizers
import torch
import transformers
from models import CONFIGS

PUBLISHED = "ibm-granite/granite-4.0-h-micro"


def drawn(folder):
    """A small Granite model with a byte tokenizer."""
    config = CONFIGS["granitemoehybrid"]()
    config.vocab_size = 300
    torch.manual_seed(5)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bytes_ = tokenizers.Tokenizer(tokenizers.models.BPE({letter: at + 3 for at, letter in enumerate(letters)}, []))
    bytes_.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=bytes_).save_pretrained(folder)


def programs_of(page, test):
    """The programs of a page that are marked as run by this test."""
    with open(page) as file:
        return re.findall(rf"<!-- test elsewhere: crates/python/tests/{re.escape(test)} -->\n```python\n(.*?)```", file.read(), re.S)


def main(page):
    programs, failed = programs_of(page, "page.py"), []
    with tempfile.TemporaryDirectory() as folder:
        drawn(folder)
        for at, program in enumerate(programs):
            name, known = f"program {at + 1}", PUBLISHED in program
            program = program.replace(PUBLISHED, folder)
            if not torch.cuda.is_available():
                program = program.replace('"cuda"', '"cpu"')
                # tracing.py tests inductor, whose C++ compilation takes longer than this whole test.
                program = program.replace("fullgraph=True)", 'fullgraph=True, backend="aot_eager")')
            said = io.StringIO()
            try:
                with contextlib.redirect_stdout(said):
                    exec(compile(program, name, "exec"), {"__name__": "__main__"})
                # The program uses firstlight's kernels in a model, so they must have run without any fallback.
                good = not known or ("'mamba2_chunk_scan'" in said.getvalue() and "'as_before': {}" in said.getvalue())
            except Exception:
                said.write(traceback.format_exc())
                good = False
            print(f"{'ok  ' if good else 'FAIL'} {name}: {program.splitlines()[0]} ..")
            if not good:
                failed.append(name)
                print(said.getvalue())
    with open(page) as file:
        training = file.read().partition("\n## Training\n")[2].partition("\n## ")[0]
    # The page has a row about each wrapper of a training script; training.py and safety.py test these rows.
    for topic in ("DDP", "FSDP2", "autocast", "checkpointing", "`fork`", "threads", "`vmap`", "`torch.export`", "meta and fake tensors"):
        good = re.search(rf"^\|[^\n]*{re.escape(topic)}", training, re.M) is not None
        print(f"{'ok  ' if good else 'FAIL'} the section Training has a row about {topic}")
        failed += [] if good else [topic]
    assert len(programs) >= 4 and any(PUBLISHED in program for program in programs), programs
    print(f"{len(programs) - len(failed)} passed, {len(failed)} failed{': ' + str(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main(sys.argv[1]))
