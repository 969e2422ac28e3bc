"""Servers side by side, a GPU each, against one alone.

python3 replicas.py PROGRAM MODEL STREAMS [GPUS]: tokens a second of one server on the first GPU, and of one on each of so many GPUs (2)
at once, each with so many streams of answers; and how many times as much that is. A server has every so many-th core, so that none
takes another's.
"""

import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time

PROMPT, ANSWER = 64, 1024


class Server:
    def __init__(self, program, model, gpu, cores):
        env = dict(os.environ, CUDA_VISIBLE_DEVICES=str(gpu))
        command = ["taskset", "-c", ",".join(map(str, cores)), program, "serve", model, "--port", "0", "--json"]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        first = json.loads(self.process.stdout.readline())
        self.device, self.port = first["device"]["name"], int(first["address"].rsplit(":", 1)[1])
        # The log is not to fill its pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        while self.get("/health") != 200:
            time.sleep(0.05)

    def get(self, path):
        client = http.client.HTTPConnection("127.0.0.1", self.port)
        client.request("GET", path)
        return client.getresponse().status

    def ask(self, ids, limit):
        body = {"prompt": ids, "max_tokens": limit, "temperature": 0, "ignore_eos": True}
        client = http.client.HTTPConnection("127.0.0.1", self.port)
        client.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(client.getresponse().read())
        assert answer["usage"]["completion_tokens"] == limit, answer
        return limit

    def end(self):
        self.process.terminate()
        assert self.process.wait() == 0


def rate(servers, streams, limit=ANSWER):
    """Tokens a second of all servers, each with so many streams at once."""
    drawn, added = random.Random(5), []
    asks = [(server, [drawn.randrange(256) for _ in range(PROMPT)]) for server in servers for _ in range(streams)]
    threads = [threading.Thread(target=lambda server=server, ids=ids: added.append(server.ask(ids, limit))) for server, ids in asks]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    assert len(added) == len(asks), "some were not answered"
    return sum(added) / seconds


def main(program, model, streams, gpus=2):
    cores = sorted(os.sched_getaffinity(0))
    servers = [Server(program, model, gpu, cores[gpu::gpus] or cores) for gpu in range(gpus)]
    rate(servers, streams, 64)  # steps are recorded, and memory is there
    # In turns, so that whatever else the machine does meets both.
    rounds = [(rate(servers[:1], streams), rate(servers, streams)) for _ in range(3)]
    for server in servers:
        server.end()
    one, all_of_them = (max(rates) for rates in zip(*rounds))
    print(f"on {', '.join(server.device for server in servers)}, {streams} streams each; rounds {rounds}")
    print(f"one server {one:.0f} tokens/s, {gpus} servers {all_of_them:.0f}: {all_of_them / one:.3f} times")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
