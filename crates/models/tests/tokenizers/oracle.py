"""Encodes and decodes with the `tokenizers` package, for comparison with firstlight.

The first line on standard input is a list of texts. Each further line is {"file": .., "lists": [..]}: a tokenizer.json and lists of
token ids. The answer is a line: the ids of each text, and the decoded text of these ids and of the lists, without and with special
tokens; null if the package fails."""

import json
import sys

from tokenizers import Tokenizer


def decoded(tokenizer, ids):
    both = []
    for skip in (True, False):
        try:
            both.append(tokenizer.decode(ids, skip_special_tokens=skip))
        except BaseException:
            # The package panics if a decoder gets no token.
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
