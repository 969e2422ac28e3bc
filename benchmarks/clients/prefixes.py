"""What a prefix cache saves.

python3 prefixes.py PORT: the time to the first token of 64 new tokens behind 16,384 that were read before, and the workload of
vllm-project/vllm#45238: 64 prompts one after the other, 8 groups with 1500 tokens in common and 700 of each prompt's own.
"""

import http.client
import json
import random
import statistics
import sys
import time


class Client:
    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask(self, prompt):
        """Milliseconds to the first token, and tokens that were not read again."""
        body = {
            "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        began = time.perf_counter()
        headers = {"content-type": "application/json"}
        self.connection.request("POST", "/v1/completions", json.dumps(body), headers)
        first, cached = None, 0
        for line in self.connection.getresponse():
            if line.startswith(b"data: {"):
                first = first or 1e3 * (time.perf_counter() - began)
                usage = json.loads(line[6:]).get("usage") or {}
                cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", cached)
        return first, cached


def main(port):
    client, drawn = Client(port), random.Random(7)
    ids = lambda count: [drawn.randrange(1000, 100_000) for _ in range(count)]
    beginning = ids(16384)
    for which in ("first", "again"):
        first, cached = client.ask(beginning + ids(64))
        print(f"16384 and 64 new, {which}: {first:.1f} ms, {cached} tokens not read again")
    times = [client.ask(beginning + ids(64))[0] for _ in range(20)]
    print(f"16384 and 64 new: median {statistics.median(times):.2f} ms, longest {max(times):.2f} of 20")
    for order in ("group by group", "in turns"):
        groups = [ids(1500) for _ in range(8)]
        asked = [(group, groups[group] + ids(700)) for group in range(8) for _ in range(8)]
        if order == "in turns":
            asked = [asked[at % 8 * 8 + at // 8] for at in range(64)]
        seen, times, hits, could, tokens = set(), [], 0, 0, 0
        for group, prompt in asked:
            first, cached = client.ask(prompt)
            times.append(first)
            if group in seen:
                could, hits, tokens = could + 1, hits + (cached > 0), tokens + cached
            seen.add(group)
        share = 100 * tokens / (1500 * could)
        print(f"vllm#45238, {order}: {hits} of {could} hit, {share:.0f} % of what they share; mean {statistics.mean(times):.1f} ms")


if __name__ == "__main__":
    main(int(sys.argv[1]))
