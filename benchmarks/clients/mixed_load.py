"""Long mixed load on a running server: plain answers, JSON schemas, log-probabilities and clients that go away.

python3 mixed_load.py PORT SECONDS [--clients 200] [--pid PID]: prompts begin with one of 12 texts, cut at random. Prints what became of the
requests of each kind, times as a client sees them, the server's memory (with --pid) and the GPU's over time, and whether 12 greedy answers
are the same before and after. It exits with 1 if a request failed, an answer broke its schema, or a greedy answer changed.

python3 mixed_load.py --name-end DIR: gives a model of `firstlight synth` a token that ends answers, without which a server takes no schema.
"""

import argparse
import asyncio
import collections
import json
import math
import os
import random
import subprocess
import sys
import time
import urllib.request

SCHEMAS = [
    {
        "type": "object",
        "properties": {"level": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["x", "y"]}},
        "required": ["level", "kind"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
]  # fmt: skip


def is_valid(value, schema):
    """Whether a value keeps to one of the schemas above."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "array":
        count = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return count and all(is_valid(item, schema["items"]) for item in value)
    properties = schema["properties"]
    return isinstance(value, dict) and value.keys() == properties.keys() and all(
        is_valid(value[key], properties[key]) for key in properties
    )  # fmt: skip


def name_end(folder):
    """The bytes of a synthetic model's tokenizer are tokens 0 to 255; the special tokens follow."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {"256": {"content": "<|end_of_text|>", "special": True}},
        "eos_token": "<|end_of_text|>",
    }
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump(config, file)


class Load:
    def __init__(self, arguments):
        self.port, self.clients, self.pid = arguments.port, arguments.clients, arguments.pid
        self.counts = collections.Counter()
        self.failures, self.first, self.gaps, self.memory = [], [], [], []
        draw = random.Random(5)
        lengths = [draw.choice((300, 1500, 4000)) for _ in range(12)]
        self.texts = [self.tokens(draw, min(length, arguments.longest)) for length in lengths]

    @staticmethod
    def tokens(draw, count):
        return [draw.randrange(0, 256) for _ in range(count)]

    async def post(self, body):
        """Lines of server-sent events of a request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            data = json.dumps(body).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await writer.drain()
            status = int((await reader.readline()).split()[1])
            chunked = False
            while (line := await reader.readline()).strip():
                chunked |= line.lower().startswith(b"transfer-encoding: chunked")
            if status != 200:
                yield status, (await reader.read()).decode(errors="replace")
                return
            rest = b""
            while chunked and (size := int(await reader.readline(), 16)):
                rest += await reader.readexactly(size)
                await reader.readexactly(2)
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if line.startswith(b"data: {"):
                        yield status, json.loads(line[6:])
        finally:
            writer.close()

    async def ask(self, kind, body, leave=None):
        """The text of an answer; none where it failed, or the client left after so many tokens."""
        text, logprobs, events, finish = "", 0, 0, None
        last = time.perf_counter()
        async for status, event in self.post(body):
            if status == 429:
                self.counts["busy"] += 1
                await asyncio.sleep(0.5)
                return None
            if status != 200 or "error" in event:
                self.counts[f"{kind} failed"] += 1
                self.failures.append((kind, status, str(event)[:200]))
                return None
            now = time.perf_counter()
            (self.gaps if events else self.first).append(now - last)
            last, events = now, events + 1
            choice = event["choices"][0]
            text += choice["text"]
            finish = choice["finish_reason"] or finish
            given = (choice["logprobs"] or {}).get("token_logprobs", [])
            logprobs += len(given)
            if any(not (math.isfinite(one) and one <= 1e-4) for one in given):
                self.counts[f"{kind} with wrong log-probabilities"] += 1
            if leave and events >= leave:
                self.counts["left"] += 1
                return None
        self.counts[f"{kind} done"] += 1
        self.counts["events"] += events
        if kind == "schema":
            self.check_schema(text, finish, body["structured_outputs"]["json"])
        if kind == "logprobs":
            self.counts["log-probabilities"] += logprobs
        return text

    def check_schema(self, text, finish, schema):
        if finish == "length":
            self.counts["schema cut off"] += 1
            return
        try:
            valid = is_valid(json.loads(text), schema)
        except ValueError:
            valid = False
        self.counts["schema valid" if valid else "schema broken"] += 1
        if not valid:
            self.failures.append(("schema", 200, text[:200]))

    async def client(self, number, end):
        draw = random.Random(number)
        while time.perf_counter() < end:
            text = draw.choice(self.texts)
            prompt = text[: draw.randrange(50, len(text))] + self.tokens(draw, draw.randrange(1, 200))
            body = {
                "prompt": prompt, "max_tokens": draw.choice((1, 16, 64, 256)), "stream": True,
                "temperature": draw.choice((0, 0.8)), "seed": draw.randrange(1 << 30),
            }  # fmt: skip
            kind = draw.choice(("plain", "plain", "schema", "logprobs"))
            if kind == "schema":
                body |= {"structured_outputs": {"json": draw.choice(SCHEMAS)}, "max_tokens": 200}
            else:
                body["ignore_eos"] = True
            if kind == "logprobs":
                body["logprobs"] = draw.choice((1, 5))
            try:
                await self.ask(kind, body, leave=draw.choice((None, None, None, 1, 7)))
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                self.counts[f"{kind} failed"] += 1
                self.failures.append((kind, 0, repr(error)))

    def read_memory(self):
        """MiB of the server and of the GPU, where they are known."""
        server = gpu = None
        if self.pid:
            with open(f"/proc/{self.pid}/status") as file:
                server = int(file.read().split("VmRSS:")[1].split()[0]) >> 10
        try:
            ask = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            gpu = int(subprocess.run(ask, capture_output=True, text=True).stdout.split()[0])
        except (OSError, IndexError, ValueError):
            pass
        return server, gpu

    async def watch(self, began, end):
        while time.perf_counter() < end:
            memory = await asyncio.to_thread(self.read_memory)
            self.memory.append((round(time.perf_counter() - began), *memory))
            await asyncio.sleep(min((end - began) / 20, max(0.0, end - time.perf_counter())))

    async def probes(self):
        bodies = [
            {"prompt": text[: 40 + number], "max_tokens": 48, "temperature": 0, "ignore_eos": True, "stream": True}
            for number, text in enumerate(self.texts)
        ]  # fmt: skip
        return [await self.ask("probe", body) for body in bodies]

    def wait(self, seconds=300):
        """Until the server accepts requests: it answers 503 while the model is loaded."""
        end = time.perf_counter() + seconds
        while True:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
            except OSError as error:
                if time.perf_counter() > end:
                    raise SystemExit(f"the server is not ready after {seconds} s: {error}") from error
                time.sleep(0.2)

    async def run(self, seconds):
        self.wait()
        before = await self.probes()
        self.counts.clear(), self.first.clear(), self.gaps.clear()
        began = time.perf_counter()
        end = began + seconds
        await asyncio.gather(self.watch(began, end), *(self.client(at, end) for at in range(self.clients)))
        took = time.perf_counter() - began
        answered = sum(self.counts[f"{kind} done"] for kind in ("plain", "schema", "logprobs")) + self.counts["left"]
        print(f"{self.clients} clients, {took:.0f} s: {answered / took:.1f} requests/s")
        for name, count in sorted(self.counts.items()):
            print(f"  {name}: {count}")
        for name, times in (("first token", self.first), ("gap", self.gaps)):
            times.sort()
            if times:
                at = {part: 1e3 * times[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.99, 1)}
                print(f"  {name} p50 {at[0.5]:.1f} ms, p99 {at[0.99]:.1f}, longest {at[1]:.1f}")
        print(f"  seconds, MiB of the server and of the GPU: {self.memory}")
        after = await self.probes()
        same = sum(one == other and one is not None for one, other in zip(before, after))
        print(f"  greedy answers that are the same before and after: {same} of {len(before)}")
        print(f"  failures: {self.failures[:5]}" if self.failures else "  no request failed")
        return not self.failures and same == len(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, nargs="?")
    parser.add_argument("seconds", type=float, nargs="?", default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--longest", type=int, default=4000, help="tokens of the longest text that prompts begin with")
    parser.add_argument("--pid", type=int, help="the server's process, whose memory is read")
    parser.add_argument("--name-end", metavar="DIR", help="name an end token in the model folder, and do nothing else")
    arguments = parser.parse_args()
    if arguments.name_end:
        name_end(arguments.name_end)
        return 0
    if arguments.port is None:
        parser.error("PORT is missing")
    return 0 if asyncio.run(Load(arguments).run(arguments.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
