"""Compares firstlight's logits with transformers' for every causal language model class, each tiny, with random weights.

``python models.py FIRSTLIGHT [--sample] [--only NAME,..] [--fields] [--table FILE] [--out FILE]``. A class passes when the logits are equal
within rounding in float32, or when firstlight refuses the folder and names a config key or the model's family. ``--fields`` also changes
and removes each key of the config of every accepted class, one at a time: a key that changes transformers' logits must change
firstlight's alike, or be refused. One process runs the classes; it is restarted after a crash. Exit status 1: a class failed.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile
import time

# In the order of interest to readers of the table. All but the first two are failures.
VERDICTS = ("equal", "refused", "wrong", "unexplained", "crashed", "skipped")
MAPPINGS = ("MODEL_FOR_CAUSAL_LM", "MODEL_FOR_MULTIMODAL_LM")
# Classes for each commit: one of each supported family, and some that must be refused.
SAMPLE = (
    "LlamaForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM", "GraniteMoeHybridForCausalLM", "Lfm2MoeForCausalLM",
    "Gemma2ForCausalLM", "DeepseekV3ForCausalLM", "GPT2LMHeadModel", "StableLmForCausalLM",
)


def compare(program, model, folder):
    from logits import ROUNDING, distance, firstlight, logits

    wanted, ids = logits(model)
    found, verdict, words = firstlight(program, folder, ids)
    if verdict:
        return {"verdict": verdict, "words": words}
    off = distance(found, wanted)
    return {"verdict": "equal" if off <= ROUNDING else "wrong", "words": f"{off:.1e}"}


def config_alone(program, name, config_name, why):
    """The verdict of a class without a tiny configuration, or with inputs other than text: its config must be refused."""
    import transformers
    from logits import firstlight

    with tempfile.TemporaryDirectory() as home:
        folder = pathlib.Path(home)
        try:
            config_class = getattr(getattr(transformers, name), "config_class", None) or getattr(transformers, config_name)
            config = config_class()
            config.architectures = [name]
            config.save_pretrained(folder)
        except Exception as error:  # a few have no default config
            return {"verdict": "skipped", "words": f"{why}; {type(error).__name__}: {str(error)[:120]}".replace("\n", " ")}
        _, verdict, words = firstlight(program, folder, [3, 4])
        return {"verdict": verdict, "words": words, "kind": config.model_type, "config_alone": why}


def one(program, name, config_name, fields):
    import tiny
    from logits import logits

    try:
        model = tiny.make(name, config_name)
        wanted, _ = logits(model)
    except Exception as error:  # a class may reject any setting
        return config_alone(program, name, config_name, f"{type(error).__name__}: {str(error)[:120]}".replace("\n", " "))
    with tempfile.TemporaryDirectory() as home:
        folder = pathlib.Path(home)
        try:
            model.save_pretrained(folder)
        except Exception as error:
            return config_alone(program, name, config_name, f"save_pretrained: {str(error)[:120]}".replace("\n", " "))
        config = json.loads((folder / "config.json").read_text())
        result = {"kind": config.get("model_type"), **compare(program, model, folder)}
        if result["verdict"] == "equal":
            # Also with the names and the layout of transformers' classes.
            model.save_pretrained(folder, save_original_format=False)
            own = compare(program, model, folder)
            if own["verdict"] != "equal":
                result |= {**own, "words": "saved without its original format: " + own["words"]}
        if fields and result["verdict"] == "equal":
            from fields import changes

            result["fields"] = list(changes(program, model, config, folder, wanted))
    return result


def child(program, names, fields, into):
    import torch
    import transformers
    from tiny import classes

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    known = classes(MAPPINGS)
    with open(into, "a") as file:
        for name in names:
            file.write(json.dumps({"class": name, "verdict": "crashed", "words": "the process that makes it ended"}) + "\n")
            file.flush()
            line = {"class": name, **one(program, name, known.get(name), fields)}
            file.write(json.dumps(line) + "\n")
            file.flush()


def sweep(program, names, fields, show):
    """Runs the classes in sequence, in a process that is restarted after a class that ends it."""
    results = {}
    with tempfile.TemporaryDirectory() as home:
        into = pathlib.Path(home) / "lines"
        left = list(names)
        while left:
            into.write_text("")
            words = [sys.executable, __file__, program, "--child", json.dumps(left), "--into", str(into)]
            process = subprocess.Popen(words + ["--fields"] * fields)
            seen = 0
            while True:
                ended = process.poll() is not None
                lines = into.read_text().splitlines()
                for line in map(json.loads, (text for text in lines[seen:] if text.endswith("}"))):
                    if line["class"] not in results or line["words"] != "the process that makes it ended":
                        results[line["class"]] = line
                        if line["words"] != "the process that makes it ended":
                            show(line)
                seen = len(lines)
                if ended:
                    break
                time.sleep(0.2)
            before = len(left)
            left = [name for name in left if name not in results]
            if len(left) == before:
                raise SystemExit("the process that makes models does not start")
    return results


def failed(line):
    wrong = [one for one in line.get("fields", []) if one["verdict"] not in ("equal", "refused")]
    return line["verdict"] in ("wrong", "unexplained", "crashed") or bool(wrong)


def show(line):
    print(f"{line['verdict']:12}{line['class']:44} {line['words'][:400]}", flush=True)
    for one in line.get("fields", []):
        if one["verdict"] not in ("equal", "refused"):
            print(f"    {one['verdict']:12}{one['change']}: {one['words'][:300]}", flush=True)


def table(path, results):
    """Writes the page of the book."""
    import transformers

    lines = {kind: sorted((line for line in results.values() if line["verdict"] == kind), key=lambda line: line["class"]) for kind in VERDICTS}
    text = [
        "# Model classes that run",
        "",
        f"`cargo xtask sweep models` made this page with transformers {transformers.__version__}. It makes every class for causal language "
        "modelling tiny, draws random weights, saves it with `save_pretrained` and compares the logits of `firstlight model logits` with "
        "transformers' own in float32.",
        "",
        f"Classes with equal logits: {len(lines['equal'])}. Classes that are refused with a reason: {len(lines['refused'])}, of which "
        f"{sum('config_alone' in line for line in lines['refused'])} were tried with their default config alone, because no tiny model of "
        f"them runs on text in transformers itself. Classes that were not tried: {len(lines['skipped'])}.",
        "",
        "## Classes that run",
        "",
        "| class | `model_type` | relative distance of the logits |",
        "|---|---|---|",
        *(f"| {line['class']} | `{line['kind']}` | {line['words']} |" for line in lines["equal"]),
        "",
        "## Classes that are refused",
        "",
        "| class | reason |",
        "|---|---|",
        *(f"| {line['class']} | {line['words']} |" for line in lines["refused"]),
        "",
        "## Classes that were not tried",
        "",
        "| class | reason |",
        "|---|---|",
        *(f"| {line['class']} | {line['words'].replace('|', '/')} |" for line in lines["skipped"]),
    ]
    pathlib.Path(path).write_text("\n".join(text) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--fields", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--table")
    parser.add_argument("--child")
    parser.add_argument("--into")
    given = parser.parse_args()
    if given.child:
        return child(given.program, json.loads(given.child), given.fields, given.into)
    from tiny import classes

    names = sorted(classes(MAPPINGS))
    if given.sample:
        names = list(SAMPLE)
    if given.only:
        names = given.only.split(",")
    results = sweep(given.program, names, given.fields, show)
    if given.out:
        pathlib.Path(given.out).write_text(json.dumps(results, indent=1))
    wrong = [name for name, line in results.items() if failed(line)]
    if given.table and not wrong:
        table(given.table, results)
    counts = collections.Counter(line["verdict"] for line in results.values())
    print(f"{len(results)} classes: " + ", ".join(f"{counts[kind]} {kind}" for kind in VERDICTS if counts[kind]))
    print(f"{len(results) - len(wrong)} passed, {len(wrong)} failed" + (": " + ", ".join(wrong) if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
