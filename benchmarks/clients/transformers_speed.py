"""A hybrid model in transformers, as it is and with firstlight's kernels: tokens per second of a prompt and of decoding.

``python transformers_speed.py CONFIG.json [--rows plain,firstlight,recorded,compiled] [--ids FILE]``, on one GPU with torch and transformers.
Weights are drawn from a seed: every run has the same, and the same prompt. A row is

- ``plain``: transformers with what it finds. Where mamba_ssm or fla are on the path, that is theirs, and the kernels' names show it;
- ``firstlight``: after ``firstlight.transformers.enable(model)``;
- ``recorded``: the same, a step of decoding recorded as a CUDA graph over a static cache;
- ``compiled``: the same, by ``generate(cache_implementation="static")``, whose steps transformers compiles (reduce-overhead).

With ``--truth FILE`` each row says how far its logits of a short prompt are from those of the same weights in float32, which a first run
writes and no more, in a process without packages; ids of random weights differ where two logits are nearly the same.

The ids of greedy decoding are compared with those in ``--ids``, which the first run writes. firstlight's counts say whether a call ran as
before. Times are medians of the wall clock around work that was waited for; ``--warm`` only makes what is compiled at the first call.
"""

import argparse
import json
import os
import re
import statistics
import sys
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

SHORT = 128
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}


def waited(work):
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, found


def seconds(work, runs):
    work()
    return statistics.median(waited(work)[0] for _ in range(runs))


def drawn(config):
    torch.manual_seed(3)
    settings = json.load(open(config))
    kind = settings.pop("model_type")
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=torch.bfloat16)
    return model.eval()


def generated(model, ids, tokens, runs, **settings):
    """Tokens per second of decoding behind a short prompt, and the ids."""
    first = seconds(lambda: model.generate(ids, max_new_tokens=1, **GREEDY, **settings), runs)
    whole = seconds(lambda: model.generate(ids, max_new_tokens=1 + tokens, **GREEDY, **settings), runs)
    return tokens / (whole - first), model.generate(ids, max_new_tokens=tokens, **GREEDY, **settings)[0, ids.shape[1] :]


def recorded(model, ids, tokens, runs):
    """The same by one graph that is launched for each token; the cache's lengths are read on the GPU."""
    cache = transformers.StaticCache(config=model.config, max_cache_len=ids.shape[1] + tokens + 1)

    def step(token):
        return model(token, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)

    def start():
        cache.reset()
        return step(ids)

    token = start().clone()
    # Everything that a first call makes is made before the recording.
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        step(token)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token.copy_(step(token))

    def decode():
        found = []
        for _ in range(tokens):
            found.append(token.clone())
            graph.replay()
        return torch.cat(found, 1)[0]

    took = []
    for _ in range(runs):
        token.copy_(start())
        time_, text = waited(decode)
        took.append(time_)
    return tokens / statistics.median(took), text


def kernels(work):
    """Names of kernels of convolutions, scans and attention that the GPU ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    names = {re.sub(r"^void |[(<].*", "", event.key) for event in seen.key_averages()}
    return sorted(name for name in names if re.search("conv|scan|state|ssd|chunk|kda|delta|attention|flash|fmha|recurrent", name))


def logits(model, ids):
    return model(ids, use_cache=False).logits[0].float()


def turn(model, row):
    """The model as a row wants it; the plain one before firstlight is imported at all."""
    if "firstlight.transformers" in sys.modules:
        sys.modules["firstlight.transformers"].disable()
    if row != "plain":
        import firstlight.transformers

        firstlight.transformers.enable(model)


def from_truth(model, ids, truth):
    """The root of the mean square of what logits are off, by that of the logits."""
    return ((logits(model, ids) - truth).norm() / truth.norm()).item()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--rows", default="plain,firstlight")
    parser.add_argument("--label", default="plain", help="what the plain row is called, where packages are on the path")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ids")
    parser.add_argument("--truth")
    parser.add_argument("--warm", action="store_true")
    given = parser.parse_args()
    model = drawn(given.config)
    ids = torch.randint(3, model.config.vocab_size - 300, (1, given.prompt), device="cuda")
    short, runs = ids[:, :SHORT], given.runs
    if given.warm:
        given.tokens, runs = 3, 1
    truth = None
    if given.truth and not os.path.exists(given.truth):
        torch.save(logits(model.float(), short), given.truth)
        return
    if given.truth:
        truth = torch.load(given.truth)
    wanted = json.load(open(given.ids)) if given.ids and os.path.exists(given.ids) else None
    rows = given.rows.split(",")
    for row in rows:
        turn(model, row)
        prompt = decode = None
        try:
            if row in ("plain", "firstlight"):
                prompt = given.prompt / seconds(lambda: model(ids, logits_to_keep=1, use_cache=True), runs)
                decode, text = generated(model, short, given.tokens, runs)
            elif row == "recorded":
                decode, text = recorded(model, short, given.tokens, runs)
            else:
                decode, text = generated(model, short, given.tokens, runs, cache_implementation="static")
        except Exception as error:
            print(f"{row:12} FAILED: {type(error).__name__}: {str(error)[:600]}", flush=True)
            continue
        text = text.tolist()
        if given.warm:
            continue
        if wanted is None:
            wanted = text
            if given.ids:
                json.dump(text, open(given.ids, "w"))
        same = next((at for at, (one, other) in enumerate(zip(text, wanted)) if one != other), len(wanted))
        read = f"{prompt:9.0f} tokens/s" if prompt else " " * 18
        print(f"{given.label if row == 'plain' else row:12} prompt of {given.prompt}: {read}   decoding: {decode:6.1f} tokens/s   ", end="")
        off = f", logits off by {from_truth(model, short, truth):.2e}" if truth is not None and row in ("plain", "firstlight") else ""
        print(f"{same} of {len(wanted)} ids the same{off}", flush=True)
        if row != "plain":
            firstlight = sys.modules["firstlight"]
            report = firstlight.transformers.report()
            print("  on firstlight:", report["firstlight"], "compiled:", report["compiled"])
            print("  as before:", report["as_before"], "copies:", firstlight.status()["copies"], flush=True)
    # Once a profiler has run in a process every later launch takes longer there: no row is timed behind it.
    for row in [] if given.warm else sorted({"plain", "firstlight"} & set(rows), reverse=True):
        turn(model, row)
        print(f"kernels of {given.label if row == 'plain' else row}:", ", ".join(kernels(lambda: model.generate(short, max_new_tokens=3, **GREEDY))))


if __name__ == "__main__":
    main()
