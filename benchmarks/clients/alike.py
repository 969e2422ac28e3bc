"""Whether answers are the same when many are asked for at once and when each is alone.

python3 alike.py PORT [STREAMS] [PROMPT]: so many prompts of 512 tokens at once, and one of PROMPT tokens that joins them; then each alone.
Tells answers that part where the two likeliest tokens were no tie: nothing that is computed in another order explains these.
"""

import http.client
import json
import random
import sys
import threading
import time

# Logarithms of probabilities closer than this are a tie in bfloat16.
TIE = 0.05


def ask(port, prompt, limit, into):
    client = http.client.HTTPConnection("127.0.0.1", port)
    body = {"prompt": prompt, "max_tokens": limit, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    choice = json.loads(client.getresponse().read())["choices"][0]
    into += zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"])


def main(port, streams=32, joining=16384, span=512, limit=24):
    drawn = random.Random(streams + joining)
    ids = lambda count: [drawn.randrange(100, 400) for _ in range(count)]
    prompts = [ids(span) for _ in range(streams)] + [ids(joining)]
    together = [[] for _ in prompts]
    threads = [threading.Thread(target=ask, args=(port, prompt, limit, into)) for prompt, into in zip(prompts, together)]
    for thread in threads[:-1]:
        thread.start()
    time.sleep(0.05)
    threads[-1].start()
    for thread in threads:
        thread.join()
    ties = others = 0
    for at, (prompt, answer) in enumerate(zip(prompts, together)):
        alone = []
        ask(port, prompt, limit, alone)
        step = next((step for step in range(limit) if answer[step][0] != alone[step][0]), None)
        if step is None:
            continue
        best, second = sorted(alone[step][1].values(), reverse=True)[:2]
        if best - second < TIE and abs(max(answer[step][1].values()) - best) < TIE:
            ties += 1
        else:
            others += 1
            print(f"prompt {at}, token {step}: alone {alone[step]}, together {answer[step]}")
    print(f"{len(prompts)} answers: {ties} part at a tie, {others} elsewhere")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
