"""Generating models, correct and cheating. Each takes tensors, settings, and a callback for new ids."""

from array import array

from language_models import VOCABULARY


def logits_after(ids):
    return [(sum(ids) * (word + 3)) % 11 + word / 16 for word in range(VOCABULARY)]


def generated(tensors, settings, put, choose):
    rows = [list(row) for row in tensors["ids"].tolist()]
    count = int(settings["new_tokens"])
    logits, tokens = [], []
    for _ in range(count):
        step = [logits_after(row) for row in rows]
        chosen = [choose(values) for values in step]
        put(chosen)
        for row, token in zip(rows, chosen):
            row.append(token)
        logits += [value for values in step for value in values]
        tokens += chosen
    shape = [count, len(rows)]
    return {
        "logits": memoryview(array("f", logits)).cast("B").cast("f", shape + [VOCABULARY]),
        "tokens": memoryview(array("i", tokens)).cast("B").cast("i", shape),
    }


def likeliest(values):
    return values.index(max(values))


def greedy(tensors, settings, put):
    return generated(tensors, settings, put, likeliest)


def slow_path(tensors, settings, put):
    """Correct, but by another function than the fast path."""
    return generated(tensors, settings, put, likeliest)


def samples(tensors, settings, put):
    """Chooses the least likely token, as sampling could."""
    return generated(tensors, settings, put, lambda values: values.index(min(values)))


def other_prompt(tensors, settings, put):
    """Continues the prompt without its first token."""
    cut = {"ids": memoryview(bytes(tensors["ids"])).cast("i", tensors["ids"].shape)}
    rows = [row[1:] + [0] for row in cut["ids"].tolist()]
    flat = array("i", [token for row in rows for token in row])
    return generated({"ids": memoryview(flat).cast("B").cast("i", tensors["ids"].shape)}, settings, put, likeliest)


def text_chunks(tensors, settings, put):
    """Passes two tokens at a time to the callback, like chunks of text."""
    kept = []

    def pairs(ids):
        kept.append(ids)
        if len(kept) % 2 == 0:
            put(kept[-2] + kept[-1])

    return generated(tensors, settings, pairs, likeliest)


def stops(tensors, settings, put):
    """Stops early when it is timed."""
    asked = int(settings["new_tokens"])
    settings = dict(settings, new_tokens=str(min(asked, 3)))
    return generated(tensors, settings, put, likeliest)


def silent(tensors, settings, put):
    """Never calls the callback."""
    return generated(tensors, settings, lambda ids: None, likeliest)
