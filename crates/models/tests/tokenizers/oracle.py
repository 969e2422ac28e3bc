"""Encodes and decodes with the `tokenizers` package, which the tests compare firstlight with.

The first line on standard input is a list of texts. Each further line is {"file": .., "lists": [..]}: a tokenizer.json and lists of
token ids. The answer to it is a line: the ids of each text, and what they and the lists are decoded to, without special tokens and
with them; null where the package fails."""

import json
import sys

from tokenizers import Tokenizer


def decoded(tokenizer, ids):
    both = []
    for skip in (True, False):
        try:
            both.append(tokenizer.decode(ids, skip_special_tokens=skip))
        except BaseException:
            # The package panics where a decoder gets no token at all.
            both.append(None)
    return both


texts = json.loads(sys.stdin.readline())
for line in sys.stdin:
    asked = json.loads(line)
    tokenizer = Tokenizer.from_file(asked["file"])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    answer = {
        "ids": ids,
        "texts": [decoded(tokenizer, one) for one in ids],
        "lists": [decoded(tokenizer, one) for one in asked["lists"]],
    }
    print(json.dumps(answer), flush=True)
