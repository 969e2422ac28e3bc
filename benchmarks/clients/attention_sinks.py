"""Attention with sinks of gpt-oss-20b's shape on one GPU, firstlight and transformers' eager attention interleaved: ``python attention_sinks.py``.

64 query heads of 64 channels over 8 key heads, in bfloat16. It prints medians of six turns and each side's relative error to float32; the
raw times go to ``--out``, as JSON lines.
"""

import argparse
import json
import statistics

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from firstlight import ops


class Module(torch.nn.Module):
    num_key_value_groups = 8


def main(given):
    module = Module().eval()
    module.sinks = torch.nn.Parameter(torch.randn(64, dtype=torch.bfloat16, device="cuda") + 1, requires_grad=False)
    wait = torch.cuda.synchronize
    out = open(given.out, "a") if given.out else None

    def once(work, calls):
        wait()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        wait()
        return start.elapsed_time(end) / calls * 1e3

    print("| queries, keys, window | firstlight, us | eager attention, us | error | error of eager |\n|---|---|---|---|---|")
    for queries, keys, window in ((4096, 4096, None), (4096, 4096, 128), (1, 4096, None), (1, 128, None), (512, 512, None)):
        q = torch.randn(1, 64, queries, 64, dtype=torch.bfloat16, device="cuda")
        k, v = (torch.randn(1, 8, keys, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        row = torch.arange(queries, device="cuda")[:, None] + keys - queries
        column = torch.arange(keys, device="cuda")
        seen = (column <= row) & (row - column < (window or keys))
        mask = torch.zeros((), dtype=q.dtype, device="cuda").masked_fill(~seen, torch.finfo(q.dtype).min)[None, None]

        def eager():
            return eager_attention_forward(module, q, k, v, mask, scaling=0.125)[0]

        tq, tk, tv = (x.transpose(1, 2) for x in (q, k, v))

        def ours():
            return ops.attention(tq, tk, tv, causal=True, scale=0.125, window=(-1 if window is None else window - 1, -1), sinks=module.sinks)

        with torch.no_grad():
            scores = (q.float().reshape(1, 8, 8, queries, 64) @ k.float()[:, :, None].transpose(-1, -2)) * 0.125
            scores = scores.reshape(1, 64, queries, keys).masked_fill_(~seen, float("-inf"))
            joined = torch.cat([scores, module.sinks.float().reshape(1, 64, 1, 1).expand(1, 64, queries, 1)], -1)
            del scores
            share = joined.softmax(-1)[..., :-1]
            del joined
            wanted = (share.reshape(1, 8, 8, queries, keys) @ v.float()[:, :, None]).reshape(1, 64, queries, 64).transpose(1, 2)
            del share
            errors = [((work().float() - wanted).norm() / wanted.norm()).item() for work in (ours, eager)]
            del wanted
            works, calls = {"firstlight": ours, "eager": eager}, 5 if queries > 1000 else 100
            found = {name: [] for name in works}
            for at in range(6):
                for name in list(works) if at % 2 else list(works)[::-1]:
                    found[name].append(once(works[name], calls))
        if out:
            out.write(json.dumps({"sinks": [queries, keys, window], **found, "errors": errors}) + "\n")
            out.flush()
        mine, theirs = (statistics.median(found[name]) for name in works)
        print(f"| {queries}, {keys}, {window} | {mine:.1f} | {theirs:.1f} | {errors[0]:.1e} | {errors[1]:.1e} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out")
    main(parser.parse_args())
