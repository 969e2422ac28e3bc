"""A hybrid model in transformers, as it is and with firstlight's kernels: tokens per second of a prompt and of decoding.

``python transformers_speed.py CONFIG.json [--prompt 4096] [--tokens 64]``, on one GPU with torch and transformers. Weights are drawn from a
seed. Both runs have the same weights and the same prompt; the ids of greedy decoding are compared, and firstlight's counts printed, which
say whether a call ran as before. Times are medians of the wall clock around work that was waited for.
"""

import argparse
import json
import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import firstlight.transformers


def seconds(work, runs):
    work()
    found = []
    for _ in range(runs):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def drawn(config):
    torch.manual_seed(3)
    settings = json.load(open(config))
    kind = settings.pop("model_type")
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=torch.bfloat16)
    return model.eval()


@torch.no_grad()
def measure(model, ids, tokens, runs):
    prompt = seconds(lambda: model(ids, logits_to_keep=1, use_cache=True), runs)
    settings = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    short = ids[:, :128]
    first = seconds(lambda: model.generate(short, max_new_tokens=1, **settings), runs)
    whole = seconds(lambda: model.generate(short, max_new_tokens=1 + tokens, **settings), runs)
    logits = model(short).logits.float()
    text = model.generate(short, max_new_tokens=tokens, **settings)[0, 128:]
    return ids.shape[1] / prompt, tokens / (whole - first), logits, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    model = drawn(given.config)
    ids = torch.randint(3, model.config.vocab_size, (1, given.prompt), device="cuda")
    # The plain prompt of 4096 takes seconds.
    rows = {"plain": measure(model, ids, given.tokens, given.runs)}
    firstlight.transformers.enable(model)
    rows["firstlight"] = measure(model, ids, given.tokens, given.runs)
    report = firstlight.transformers.report()
    for name, (prompt, decode, _, _) in rows.items():
        print(f"{name:12} prompt of {given.prompt}: {prompt:9.0f} tokens/s   decoding: {decode:6.1f} tokens/s")
    (_, _, before, text), (_, _, after, again) = rows["plain"], rows["firstlight"]
    error = ((after - before).norm() / before.norm()).item()
    print(f"logits differ by {error:.1e}; the first {int((text == again).long().cumprod(0).sum())} of {given.tokens} ids are the same")
    print("on firstlight:", report["firstlight"])
    print("as before:", report["as_before"])
    print("copies:", firstlight.status()["copies"])


if __name__ == "__main__":
    main()
