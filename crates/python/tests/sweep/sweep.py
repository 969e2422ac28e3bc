"""Compares every model class of transformers that has a tiny configuration before ``enable``, after it, and after ``disable``.

``python sweep.py [--sample N] [--only NAME,..] [--cases NAME,..] [--out FILE] [--resume] [--table FILE] [--made]``. ``--out`` writes a line
of JSON per class; ``--resume`` skips classes that are in it. ``--table`` writes the results into a page of the book. ``--made`` creates the
models after ``enable``, with ``attn_implementation="firstlight"``. One process runs the classes, and is restarted after a crash or a hang.
It prints a line for each class and ends with 1 if a class is silently different, raises, or is not restored.
"""

import argparse
import copy
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings

CASES = ("plain", "right", "left", "generate", "generate_left", "backward", "dropout", "checkpoint")
# Allowed relative differences of outputs and of gradients, from float32 rounding.
OUTPUTS, GRADIENTS = 1e-4, 1e-3
# Limits for one class: CPU time, and wall time without progress.
SECONDS, IDLE_SECONDS = 900, 7200


def _first(outputs):
    """The first floating-point output: logits or hidden states."""
    import torch

    for value in outputs.to_tuple():
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() >= 2:
            return value
    raise ValueError("no output of floating-point values")


def _forward(model, padding=None):
    from tiny import inputs
    from transformers import set_seed

    import torch

    given, real = inputs(model, padding)
    # Some models use random numbers: vocoder noise, attention hashes.
    set_seed(3)
    with torch.no_grad():
        found = _first(model(**given, use_cache=False) if _caches(model) else model(**given)).float()
    return found[real] if found.shape[: real.dim()] == real.shape else found


def _caches(model):
    import inspect

    return "use_cache" in inspect.signature(model.forward).parameters


def _generate(model, padding=None):
    from tiny import inputs
    from transformers import set_seed

    import torch

    given, _ = inputs(model, padding)
    given.pop("decoder_input_ids", None)
    set_seed(3)
    with torch.no_grad():
        return model.generate(**given, max_new_tokens=6, min_new_tokens=6, do_sample=False)


def _backward(model):
    from tiny import inputs
    from transformers import set_seed

    import torch

    given, real = inputs(model)
    model.zero_grad()
    set_seed(3)
    found = _first(model(**given, use_cache=False) if _caches(model) else model(**given)).float()
    weights = torch.linspace(-1, 1, found.numel()).sin().reshape(found.shape)
    (found * weights).sum().backward()
    grads = [value.grad.flatten() for _, value in sorted(model.named_parameters()) if value.grad is not None]
    model.zero_grad()
    return torch.cat(grads)


def _training(model, checkpoint=False):
    model.train()
    try:
        if checkpoint:
            model.gradient_checkpointing_enable()
        return _backward(model)
    finally:
        if checkpoint:
            model.gradient_checkpointing_disable()
        model.eval()


def _run(model, case):
    if case == "plain":
        return _forward(model)
    if case in ("right", "left"):
        return _forward(model, case)
    if case == "generate":
        return _generate(model) if model.can_generate() else None
    if case == "generate_left":
        return _generate(model, "left") if model.can_generate() else None
    if case == "backward":
        return _backward(model)
    if case == "dropout":
        return _training(model)
    return _training(model, True) if model.supports_gradient_checkpointing else None


def _all(model, cases):
    found = {}
    for case in cases:
        try:
            found[case] = _run(model, case)
        except Exception as error:  # a class may reject a case, if it does so before `enable` too
            found[case] = f"{type(error).__name__}: {str(error)[:300]}"
    return found


def _difference(found, wanted):
    import torch

    if found.shape != wanted.shape:
        return float("inf")
    if not found.is_floating_point():
        return float((found != wanted).sum())
    found, wanted = torch.nan_to_num(found.double()), torch.nan_to_num(wanted.double())
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-12)).item()


def _compare(before, after, exact=False):
    """``ok`` or the error, by case."""
    result = {}
    for case, wanted in before.items():
        found = after[case]
        if wanted is None or isinstance(wanted, str):
            continue
        if isinstance(found, str):
            result[case] = "raised " + found
            continue
        error = _difference(found, wanted)
        limit = 0 if exact else GRADIENTS if case in ("backward", "dropout", "checkpoint") else OUTPUTS
        result[case] = "ok" if error <= limit else f"differs {error:.1e}"
    return result


def one(model_name, config_name, cases, made=False):
    """The result of one class, as a dictionary."""
    import firstlight.transformers as ours
    from tiny import make, other_inputs

    import transformers

    try:
        main_input = getattr(transformers, model_name).main_input_name
    except (AttributeError, ImportError):
        return {"class": model_name, "other": "it needs a package that is not installed"}
    if main_input != "input_ids":
        return {"class": model_name, "other": main_input}
    try:
        model = make(model_name, config_name).eval()
        before = _all(model, cases)
    except Exception as error:
        if other_inputs(model_name):
            return {"class": model_name, "other": other_inputs(model_name)[0]}
        return {"class": model_name, "skipped": f"{type(error).__name__}: {str(error)[:200]}"}
    if all(value is None or isinstance(value, str) for value in before.values()):
        reasons = [value for value in before.values() if value]
        return {"class": model_name, "skipped": reasons[0] if reasons else "nothing to run"}
    ours.forget()
    state = copy.deepcopy(model.state_dict())
    error = None
    try:
        if made:
            ours.enable()
            model = make(model_name, config_name, "firstlight").eval()
            model.load_state_dict(state)
            replaced = None
        else:
            replaced = ours.enable(model)
        after = _all(model, cases)
        report = ours.report()
    except Exception as failure:
        error = f"raised {type(failure).__name__}: {str(failure)[:300]}"
    finally:
        ours.disable()
    if error is not None:
        return {"class": model_name, "cases": {"enable": error}, "ran": {}, "as_before": {}}
    result = {"class": model_name, "cases": _compare(before, after), "ran": report["firstlight"], "as_before": report["as_before"]}
    if replaced is not None:
        result["left"] = replaced.left if hasattr(replaced, "left") else str(replaced)
    if not made:
        again = _compare(before, _all(model, cases), exact=True)
        result["cases"].update({f"disabled {case}": text for case, text in again.items() if text != "ok"})
    return result


def child(names, cases, made, out):
    """Runs classes in sequence and appends a line for each."""
    warnings.filterwarnings("ignore")
    import torch
    import transformers
    from tiny import classes

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    known = classes()
    with open(out, "a") as file:
        for name in names:
            # A class that exceeds the limit ends the process.
            limit, most = int(time.process_time()) + SECONDS, resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
            print(json.dumps({"begin": name}), file=file, flush=True)
            print(json.dumps(one(name, known[name], cases, made)), file=file, flush=True)


def _lines(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def sweep(names, cases, made, show, results):
    """Adds the results of all classes, from a process that is restarted if it ends early."""
    left = [name for name in names if name not in results]
    while left:
        with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
            command = [sys.executable, __file__, "--child", json.dumps(left), "--cases", ",".join(cases), "--into", file.name]
            errors = tempfile.TemporaryFile("w+")
            process = subprocess.Popen(command + (["--made"] if made else []), stderr=errors, stdout=subprocess.DEVNULL)
            seen, since, running = 0, time.monotonic(), None
            while True:
                ended = process.poll() is not None
                lines = _lines(file.name) if os.path.getsize(file.name) else []
                for line in lines[seen:]:
                    running = line.get("begin")
                    since = time.monotonic()
                    if running is None:
                        results[line["class"]] = line
                        show(line)
                seen = len(lines)
                if ended or time.monotonic() - since > IDLE_SECONDS:
                    process.kill()
                    break
                time.sleep(0.2)
            process.wait()
            errors.seek(0)
            message = errors.read()
            left = [name for name in left if name not in results]
            if left:
                name = running or left[0]
                why = f"raised: the process ended with {process.returncode}: {message[-200:]}"
                results[name] = {"class": name, "cases": {"process": why}, "ran": {}, "as_before": {}}
                show(results[name])
                left.remove(name)


def verdict(line):
    """``other`` (its input is not text), ``skipped``, ``raised``, ``silent``, ``not restored`` or ``equal``."""
    if "other" in line:
        return "other"
    if "skipped" in line:
        return "skipped"
    cases = line["cases"]
    if any(text.startswith("raised") for text in cases.values()):
        return "raised"
    if any(text.startswith("differs") and not case.startswith("disabled") for case, text in cases.items()):
        return "silent"
    return "not restored" if any(case.startswith("disabled") for case in cases) else "equal"


def _show(line):
    found = verdict(line)
    if found == "other":
        return
    wrong = line.get("skipped") or {case: text for case, text in line["cases"].items() if text != "ok"}
    attention = line.get("ran", {}).get("attention", 0)
    print(f"{found:13}{line['class']:48} attention {attention:4} {wrong if found != 'equal' else ''} {line.get('as_before') or ''}"[:900], flush=True)


def write_table(path, results, cases):
    """Writes or replaces this release's section of a page."""
    import torch
    import transformers

    text = {name: line for name, line in sorted(results.items()) if "other" not in line}
    kinds = {kind: [name for name, line in text.items() if verdict(line) == kind] for kind in ("equal", "silent", "raised", "not restored", "skipped")}
    attention = sum(1 for line in text.values() if line.get("ran", {}).get("attention"))
    reasons = {}
    for name, line in text.items():
        for why in line.get("as_before", {}):
            if why.startswith("attention: "):
                reasons.setdefault(why.partition(": ")[2], set()).add(name)
    title = f"## transformers {transformers.__version__}, torch {torch.__version__.partition('+')[0]}"
    rows = [f"| {kind} | {len(names)} |" for kind, names in kinds.items()] + [f"| attention on firstlight | {attention} |"]
    lines = [title, "", f"{len(text)} classes with text inputs. Runs: {', '.join(cases)}.", "", "| result | classes |", "|---|---|", *rows]
    lines += ["", "Calls of attention that ran as before:", "", "| reason | classes |", "|---|---|"]
    lines += [f"| {why} | {len(names)} |" for why, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))]
    for kind in ("silent", "raised", "not restored"):
        lines += [f"\n{kind}: {', '.join(kinds[kind])}."] if kinds[kind] else []
    if kinds["skipped"]:
        lines += ["", "Skipped, because no tiny configuration runs in transformers itself: " + ", ".join(kinds["skipped"]) + "."]
    with open(path) as file:
        before = file.read()
    head, *sections = before.split("\n## ")
    release = title[3:].split(",")[0]
    kept = ["## " + section.strip() for section in sections if not section.startswith(release + ",")]
    with open(path, "w") as file:
        file.write("\n\n".join([head.strip(), *sorted([*kept, "\n".join(lines)])]) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sample", type=int)
    parser.add_argument("--only")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--made", action="store_true")
    parser.add_argument("--out")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--table")
    parser.add_argument("--child")
    parser.add_argument("--into")
    given = parser.parse_args()
    cases = given.cases.split(",")
    if given.child:
        return child(json.loads(given.child), cases, given.made, given.into)
    from tiny import TEXT, classes

    names = sorted(classes())
    if given.only:
        unknown = set(given.only.split(",")) - set(names)
        if unknown:
            parser.error(f"this transformers has no class {', '.join(sorted(unknown))} with text inputs")
        names = given.only.split(",")
    if given.sample:
        names = sorted(random.Random(46).sample(sorted(classes(TEXT[:3])), given.sample))
    results = {}
    if given.resume and given.out and os.path.exists(given.out):
        results = {line["class"]: line for line in _lines(given.out)}
    out = open(given.out, "a" if results else "w") if given.out else None

    def show(line):
        _show(line)
        if out:
            print(json.dumps(line), file=out, flush=True)

    sweep(names, cases, given.made, show, results)
    counts = {}
    for line in results.values():
        counts[verdict(line)] = counts.get(verdict(line), 0) + 1
    attention = sum(1 for line in results.values() if line.get("ran", {}).get("attention"))
    if given.table:
        write_table(given.table, results, cases)
    failed = sum(counts.get(name, 0) for name in ("raised", "silent", "not restored"))
    print(f"{len(results)} classes, {counts}, attention on firstlight in {attention}")
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
