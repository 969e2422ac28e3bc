"""OpenAI's client against the server whose address is given."""

import asyncio
import sys

import openai

URL, KEY = sys.argv[1], "sesame"
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
TALK = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
SAME = {"model": "mini", "temperature": 1.0, "seed": 7, "max_tokens": 20}


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"wanted {kind.__name__}: {words}")


# Whole and streamed answers and their usage are equal.
assert [model.id for model in client.models.list()] == ["mini"]
whole = client.chat.completions.create(messages=TALK, n=2, **SAME)
assert [choice.index for choice in whole.choices] == [0, 1]
assert {choice.finish_reason for choice in whole.choices} <= {"length", "stop"}
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
texts, usage = ["", ""], None
for chunk in client.chat.completions.create(
    messages=TALK, n=2, stream=True, stream_options={"include_usage": True}, **SAME
):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        texts[choice.index] += choice.delta.content or ""
assert texts == [choice.message.content for choice in whole.choices], texts
assert usage == whole.usage, usage

# Embeddings: the client asks for base64 by default.
both = client.embeddings.create(model="mini", input=["hello", "you"])
plain = client.embeddings.create(model="mini", input="hello", encoding_format="float")
assert [one.index for one in both.data] == [0, 1] and both.usage.total_tokens == 8
assert len(plain.data[0].embedding) == len(both.data[0].embedding) > 1
assert max(abs(a - b) for a, b in zip(plain.data[0].embedding, both.data[0].embedding)) < 1e-5
refused(openai.BadRequestError, "dimensions", lambda: client.embeddings.create(model="mini", input="a", dimensions=3))

# The client's stream helper.
with client.chat.completions.stream(messages=TALK, **SAME) as stream:
    kinds = {event.type for event in stream}
    final = stream.current_completion_snapshot
assert kinds >= {"chunk", "content.delta"}, kinds
assert final.choices[0].message.content == texts[0]

# Log probabilities and stop strings.
likely = client.chat.completions.create(
    messages=TALK, model="mini", temperature=0, max_completion_tokens=4, logprobs=True, top_logprobs=3
)
for token in likely.choices[0].logprobs.content:
    top = [entry.logprob for entry in token.top_logprobs]
    assert len(top) == 3 and top == sorted(top, reverse=True) and token.logprob == top[0]
plain = client.completions.create(prompt=["hello", "you"], logprobs=2, **SAME)
assert len(plain.choices) == 2 and len(plain.choices[0].logprobs.token_logprobs) == 20
text = plain.choices[0].text
stop = next(letter for letter in text[1:] if letter.isalnum() and letter != text[0])
cut = client.completions.create(prompt="hello", stop=stop, **SAME).choices[0]
assert (cut.text, cut.finish_reason) == (text[: text.index(stop)], "stop")
ids = client.completions.create(prompt=[104, 101, 108, 108, 111], **SAME)
assert ids.choices[0].text == text
# `echo` prepends the prompt to each answer, streamed or whole.
echoed = client.completions.create(prompt=["hello", [104, 105]], echo=True, n=2, **SAME)
assert [choice.text[:2] for choice in echoed.choices] == ["he", "he", "hi", "hi"]
assert echoed.choices[0].text == "hello" + text
pieces = client.completions.create(prompt="hello", echo=True, stream=True, **SAME)
assert "".join(chunk.choices[0].text for chunk in pieces) == "hello" + text
# A bias of -100 bans a token, 100 forces it, and a small bias selects a token of nearly the same probability.
plain = dict(model="mini", prompt="hello", temperature=0, max_tokens=8)
first = client.completions.create(logprobs=1, **plain).choices[0]
letter = next(token for token in first.logprobs.tokens if len(token) == 1 and token.isascii())
biased = lambda bias: client.completions.create(logit_bias={str(ord(letter)): bias}, **plain).choices[0].text
assert letter not in biased(-100) and biased(100) == letter * 8 and biased(0) == first.text
likely = client.completions.create(logprobs=2, **plain | {"max_tokens": 1}).choices[0].logprobs.top_logprobs[0]
(best, _), (second, _) = sorted(likely.items(), key=lambda entry: -entry[1])[:2]
gap = likely[best] - likely[second]
if len(second) == 1 and second.isascii():
    one = lambda bias: client.completions.create(logit_bias={str(ord(second)): bias}, logprobs=1, **plain | {"max_tokens": 1}).choices[0]
    assert one(gap - 0.01).text == best and one(gap + 0.01).text == second
    # Log probabilities are those before the bias.
    assert abs(one(gap + 0.01).logprobs.token_logprobs[0] - likely[second]) < 1e-4
# With `echo` the prompt tokens have log probabilities too, also without completion tokens.
scored = client.completions.create(logprobs=2, echo=True, **plain).choices[0]
assert scored.text == "hello" + first.text and scored.logprobs.tokens[:5] == list("hello")
assert scored.logprobs.token_logprobs[5:] == first.logprobs.token_logprobs and scored.logprobs.text_offset[:6] == [0, 1, 2, 3, 4, 5]
assert scored.logprobs.token_logprobs[0] is None and scored.logprobs.top_logprobs[0] is None
for at in range(1, 5):
    # The log probability of a prompt token equals that of the same token after its prefix.
    one = client.completions.create(model="mini", prompt="hello"[:at], temperature=0, max_tokens=1, logprobs=20, echo=False).choices[0]
    known = one.logprobs.top_logprobs[0].get("hello"[at])
    assert known is None or abs(known - scored.logprobs.token_logprobs[at]) < 1e-4, (at, known)
    top = scored.logprobs.top_logprobs[at]
    assert 2 <= len(top) <= 3 and abs(max(top.values()) - max(one.logprobs.top_logprobs[0].values())) < 1e-4
alone = client.completions.create(logprobs=2, echo=True, **plain | {"max_tokens": 0})
assert alone.choices[0].text == "hello" and alone.choices[0].finish_reason == "length" and alone.usage.completion_tokens == 0
assert alone.choices[0].logprobs.token_logprobs == scored.logprobs.token_logprobs[:5]
assert client.completions.create(echo=True, **plain | {"max_tokens": 0}).choices[0].text == "hello"
# The request of lm-evaluation-harness: token ids, several prompts, one more token.
both = client.completions.create(**plain | {"prompt": [[104, 101, 108], [104, 105]], "max_tokens": 1}, logprobs=1, echo=True, seed=1234)
assert [len(choice.logprobs.token_logprobs) for choice in both.choices] == [4, 3]
streamed = list(client.completions.create(logprobs=2, echo=True, stream=True, **plain))
assert sum((chunk.choices[0].logprobs.token_logprobs for chunk in streamed), []) == scored.logprobs.token_logprobs
extra = client.completions.create(
    prompt="hello", model="mini", max_tokens=30, extra_body={"ignore_eos": True, "top_k": 5, "min_p": 0.01}
)
assert extra.usage.completion_tokens == 30

# Errors are the client's exceptions.
other = openai.OpenAI(base_url=URL, api_key="open", max_retries=0)
refused(openai.AuthenticationError, "Bearer", lambda: other.models.list())
ask = lambda **more: client.completions.create(**{"model": "mini", "prompt": "x", **more})
refused(openai.NotFoundError, "gpt-4", lambda: ask(model="gpt-4"))
refused(openai.BadRequestError, "`n` is 0", lambda: ask(n=0))
refused(openai.BadRequestError, "maximum context length is 512 tokens", lambda: ask(max_tokens=512))
refused(openai.BadRequestError, "`users`", lambda: ask(extra_body={"users": "me"}))
refused(openai.NotFoundError, "gpt-4", lambda: client.models.retrieve("gpt-4"))
assert client.models.retrieve("mini").id == "mini"


# Many requests at once, some of which are cancelled.
async def many():
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as several:
        async def one(number):
            stream = await several.chat.completions.create(messages=TALK, stream=True, **SAME)
            said = ""
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
                if number % 4 == 3:
                    await stream.close()
                    return texts[0]
            return said

        return await asyncio.gather(*(one(number) for number in range(32)))


assert set(asyncio.run(many())) == {texts[0]}
print("all of it")
