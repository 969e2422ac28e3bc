"""A hybrid model in transformers, as it is and with firstlight's kernels: tokens per second of a prompt and of decoding.

``python transformers_speed.py CONFIG.json [--rows plain,firstlight,recorded,compiled] [--ids FILE]``, on one GPU with torch and transformers.
Weights are drawn from a seed: every run has the same, and the same prompt. A row is

- ``plain``: transformers with what it finds. Where mamba_ssm or fla are on the path, that is theirs, and the kernels' names show it;
- ``firstlight``: after ``firstlight.transformers.enable(model)``;
- ``recorded``: the same, a step of decoding recorded as a CUDA graph over a static cache;
- ``compiled``: the same, by ``generate(cache_implementation="static")``, whose steps transformers compiles (reduce-overhead).

With ``--truth FILE`` each row says how far its logits of a short prompt are from those of the same weights in float32, which a first run
writes and no more, in a process without packages; ids of random weights differ where two logits are nearly the same. The ids of greedy
decoding are compared with those in ``--ids``, which the first run writes. firstlight's counts say whether a call ran as before. Times are
medians of the wall clock around work that was waited for; ``--warm`` only makes what is compiled at the first call.

``python transformers_speed.py CONFIG.json --old FOLDER --new FOLDER`` compares two builds of firstlight, interleaved, so that a host that
slows down cannot decide. Each folder has a package ``firstlight`` with its library. Both models live at once, each in its own process, on
the same cores; a turn is ``--runs`` prompts and one generation by one of them while the other waits, and the side that goes first changes
with each round. Times are wall clock and processor time of the thread; a loop of plain Python in each turn says how fast the host was.
The raw figures go to ``--out``, as JSON lines.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

SHORT = 128
GREEDY = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
SIDES = ("old", "new")


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def waited(work):
    """Seconds of the wall clock, seconds of this thread's processor time, and the result."""
    wait()
    start, used = time.perf_counter(), time.thread_time()
    found = work()
    wait()
    return time.perf_counter() - start, time.thread_time() - used, found


def seconds(work, runs):
    work()
    return statistics.median(waited(work)[0] for _ in range(runs))


def drawn(given):
    """The model with weights from a seed, and a prompt."""
    torch.manual_seed(3)
    with open(given.config) as file:
        settings = json.load(file)
    kind = settings.pop("model_type")
    with torch.device(given.device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings), dtype=torch.bfloat16).eval()
        ids = torch.randint(3, model.config.vocab_size - 300, (1, given.prompt))
    return model, ids


def read_prompt(model, ids):
    return model(ids, logits_to_keep=1, use_cache=True)


def generate(model, ids, tokens, **settings):
    """The greedy continuation."""
    return model.generate(ids, max_new_tokens=tokens, **GREEDY, **settings)[0, ids.shape[1] :]


def generated(model, ids, tokens, runs, **settings):
    """Tokens per second of decoding after a short prompt, and the ids."""
    first = seconds(lambda: generate(model, ids, 1, **settings), runs)
    whole = seconds(lambda: generate(model, ids, 1 + tokens, **settings), runs)
    return tokens / (whole - first), generate(model, ids, tokens, **settings)


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
        time_, _, text = waited(decode)
        took.append(time_)
    return tokens / statistics.median(took), text


def kernels(work):
    """Each kernel that the GPU ran: launches and microseconds. Every later launch of the process takes longer: nothing is timed after it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        wait()
    return {event.key: (event.count, event.self_device_time_total) for event in seen.key_averages() if event.self_device_time_total}


def mixers(names):
    """Names of convolutions, scans and attention."""
    names = {re.sub(r"^void |[(<].*", "", name) for name in names}
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


def rows(given):
    model, ids = drawn(given)
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
    wished = given.rows.split(",")
    for row in wished:
        turn(model, row)
        prompt = decode = None
        try:
            if row in ("plain", "firstlight"):
                prompt = given.prompt / seconds(lambda: read_prompt(model, ids), runs)
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
    for row in [] if given.warm or given.device == "cpu" else sorted({"plain", "firstlight"} & set(wished), reverse=True):
        turn(model, row)
        print(f"kernels of {given.label if row == 'plain' else row}:", ", ".join(mixers(kernels(lambda: generate(model, short, 3)))))


def worker(given):
    """Answers requests on standard input: a model with firstlight enabled."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer

    def answer(**values):
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    def host():
        total = 0
        for at in range(300_000):
            total += at & 7

    model, ids = drawn(given)
    short = ids[:, :SHORT]
    turn(model, "firstlight")
    firstlight = sys.modules["firstlight"]
    read_prompt(model, ids)
    text = generate(model, short, given.tokens).tolist()
    firstlight.transformers.forget()
    device = torch.cuda.get_device_name(0) if given.device == "cuda" else "cpu"
    answer(torch=torch.__version__, transformers=transformers.__version__, text=text, package=firstlight.__file__, device=device)
    for line in sys.stdin:
        if line.strip() == "turn":
            speed = waited(host)[0]
            prompts = [waited(lambda: read_prompt(model, ids))[:2] for _ in range(given.runs)]
            first, whole = (waited(lambda: generate(model, short, tokens)) for tokens in (1, 1 + given.tokens))
            step, step_cpu = ((whole[at] - first[at]) / given.tokens for at in (0, 1))
            wall, used = (statistics.median(one[at] for one in prompts) for at in (0, 1))
            answer(host=speed, prompt=wall, prompt_cpu=used, step=step, step_cpu=step_cpu)
            continue
        found = {"report": firstlight.transformers.report(), "copies": dict(firstlight.status()["copies"])}
        if given.device == "cuda":
            one, nine = (kernels(lambda: generate(model, short, tokens)) for tokens in (1, 9))
            found["kernels"] = {name: [(value - less) / 8 for value, less in zip(nine[name], one.get(name, (0, 0)))] for name in nine}
        answer(**found)


class Side:
    """The process of one build."""

    def __init__(self, name, given):
        folder = getattr(given, name)
        environment = {**os.environ, "PYTHONPATH": folder, "FIRSTLIGHT_CACHE": os.path.join(folder, "cache")}
        environment.pop("FIRSTLIGHT_LIBRARY", None)
        words = [sys.executable, "-s", os.path.abspath(__file__), given.config, "--worker"]
        words += [f"--{key}={getattr(given, key)}" for key in ("prompt", "tokens", "runs", "device")]
        if given.cpus:
            words = ["taskset", "-c", given.cpus, *words]
        self.name = name
        self.process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of {self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.read()


def compared(turns, name, key):
    """Median of each side in milliseconds, and the median, least and greatest of the ratios of new to old within a round."""
    found = {side: [turn[side][key] * 1e3 for turn in turns] for side in SIDES}
    ratios = sorted(new / old for old, new in zip(found["old"], found["new"]))
    old, new = (statistics.median(found[side]) for side in SIDES)
    more = sum(ratio > 1 for ratio in ratios)
    print(f"| {name} | {old:.3f} | {new:.3f} | {statistics.median(ratios):.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} | {more} of {len(ratios)} |")


def builds(given):
    out = open(given.out, "a") if given.out else None

    def keep(**values):
        if out:
            out.write(json.dumps(values) + "\n")
            out.flush()

    start = time.perf_counter()
    sides = [Side(name, given) for name in SIDES]
    ready = [side.read() for side in sides]
    for side, found in zip(sides, ready):
        print(side.name, found["device"], "torch", found["torch"], "transformers", found["transformers"], found["package"])
    same = sum(one == other for one, other in zip(ready[0]["text"], ready[1]["text"]))
    print(f"{same} of {given.tokens} greedy ids the same; ready after {time.perf_counter() - start:.0f} s", flush=True)
    found, began = [], time.perf_counter()
    for at in range(given.rounds):
        order = sides if at % 2 == 0 else sides[::-1]
        found.append({side.name: side.ask("turn") for side in order})
        keep(round=at, first=order[0].name, **found[-1])
        if time.perf_counter() - began > given.seconds:
            break
    reports = {side.name: side.ask("report") for side in sides}
    keep(**reports)
    for name, report in reports.items():
        counts = report["report"]
        print(name, "on firstlight:", counts["firstlight"], "as before:", counts["as_before"], "copies:", report["copies"])
        if "kernels" in report:
            launches, took = (sum(value[at] for value in report["kernels"].values()) for at in (0, 1))
            print(f"{name}: {launches:.1f} launches a step, {took:.1f} us on the GPU")
    print(f"{len(found)} rounds, each side first in turn; times in ms")
    print("| | old | new | new / old, median of rounds | range | rounds in which new is more |\n|---|---|---|---|---|---|")
    for key, name in {"step": "decoding, a token", "prompt": f"prompt of {given.prompt}"}.items():
        compared(found, name, key)
        compared(found, f"{name}, processor time", f"{key}_cpu")
    compared(found, "loop of plain Python", "host")
    for side in sides:
        step, prompt = (statistics.median(turn[side.name][key] for turn in found) for key in ("step", "prompt"))
        print(f"{side.name}: decoding {1 / step:.1f} tokens/s, prompt {given.prompt / prompt:.0f} tokens/s")
        side.process.stdin.close()
        side.process.wait()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=os.path.abspath)
    parser.add_argument("--rows", default="plain,firstlight")
    parser.add_argument("--label", default="plain", help="what the plain row is called, where packages are on the path")
    parser.add_argument("--prompt", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--runs", type=int, default=3, help="runs whose median is printed; prompts of each turn")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ids")
    parser.add_argument("--truth")
    parser.add_argument("--warm", action="store_true")
    builds_of = parser.add_argument_group("two builds")
    for name in SIDES:
        builds_of.add_argument(f"--{name}", type=os.path.abspath)
    builds_of.add_argument("--rounds", type=int, default=40)
    builds_of.add_argument("--seconds", type=float, default=110, help="no round begins after as many")
    builds_of.add_argument("--cpus", help="cores of both processes, as taskset takes them")
    builds_of.add_argument("--out", type=os.path.abspath)
    builds_of.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if bool(given.old) != bool(given.new):
        parser.error("two builds need both --old and --new")
    (worker if given.worker else builds if given.old else rows)(given)


if __name__ == "__main__":
    main()
