"""How long a prompt that joins keeps the tokens of others waiting.

python3 gaps.py PORT TOKENS STREAMS: so many streams decode, a prompt of so many tokens joins after a second. Prints the time to
its first token, and the longest time between two chunks of a stream while it was read.
"""

import http.client
import json
import random
import sys
import threading
import time


def ask(port, prompt, limit, times):
    """When a completion was asked for; `times` gets when each of its chunks came."""
    body = {"prompt": prompt, "max_tokens": limit, "temperature": 0, "ignore_eos": True, "stream": True}
    client = http.client.HTTPConnection("127.0.0.1", port)
    began = time.perf_counter()
    client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    for line in client.getresponse():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    return began


def main(port, tokens, streams):
    drawn = random.Random(5)
    ids = lambda count: [drawn.randrange(1000, 100_000) for _ in range(count)]
    streamed = [[] for _ in range(streams)]
    threads = [threading.Thread(target=ask, args=(port, ids(512), 2500, times)) for times in streamed]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    joined = []
    began = ask(port, ids(tokens), 1, joined)
    ended = time.perf_counter()
    for thread in threads:
        thread.join()
    beside, otherwise = [], []
    for times in streamed:
        for one, next_one in zip(times, times[1:]):
            during = began <= next_one and one <= ended
            (beside if during else otherwise).append(1e3 * (next_one - one))
    print(
        f"prompt of {tokens} beside {streams}: its first token after {1e3 * (joined[0] - began):.1f} ms; "
        f"longest gap {max(beside):.1f} ms of {len(beside)}, otherwise {max(otherwise):.1f} ms"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
