"""Anthropic's client against a scripted model that calls a tool and then answers."""

import sys

import anthropic

url = sys.argv[1].removesuffix("/v1")
client = anthropic.Anthropic(base_url=url, api_key="sesame", max_retries=0)
ANSWER = "It does not rain in Ulm."
TOOL = {
    "name": "weather",
    "description": "The weather of a place",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}
USER = {"role": "user", "content": "Does it rain in Ulm?"}
ASK = {"model": "mini", "max_tokens": 200, "tools": [TOOL], "system": "be brief"}


def refused(kind, words, call):
    try:
        call()
    except kind as error:
        assert error.body["type"] == "error" and words in error.body["error"]["message"], error
    else:
        raise AssertionError(f"wanted {kind.__name__}: {words}")


# A call, its result and the answer.
called = client.messages.create(**ASK, messages=[USER], tool_choice={"type": "auto"})
assert (called.stop_reason, called.role, called.type) == ("tool_use", "assistant", "message"), called
(use,) = called.content
assert (use.type, use.name, use.input) == ("tool_use", "weather", {"place": "Ulm"}), use
result = {"type": "tool_result", "tool_use_id": use.id, "content": "no rain"}
talk = [USER, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
answered = client.messages.create(**ASK, messages=talk)
assert (answered.stop_reason, answered.content[0].text) == ("end_turn", ANSWER), answered
usage = answered.usage
counted = client.messages.count_tokens(model="mini", messages=talk, tools=[TOOL], system="be brief").input_tokens
assert usage.input_tokens + usage.cache_read_input_tokens == counted > 0
assert usage.output_tokens == len(ANSWER)

# Streams with the client's stream helper.
with client.messages.stream(**ASK, messages=talk) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"], kinds
assert final.content[0].text == ANSWER and final.usage.output_tokens == usage.output_tokens
with client.messages.stream(**ASK, messages=[USER]) as stream:
    final = stream.get_final_message()
assert final.stop_reason == "tool_use" and final.content[0].input == {"place": "Ulm"}, final
raw = list(client.messages.create(**ASK, messages=talk, stream=True))
assert [event.type for event in raw[:2]] == ["message_start", "content_block_start"]
assert "".join(event.delta.text for event in raw if event.type == "content_block_delta") == ANSWER

# Stop reasons.
cut = client.messages.create(**{**ASK, "max_tokens": 5}, messages=talk)
assert (cut.stop_reason, cut.content[0].text) == ("max_tokens", ANSWER[:5])
stopped = client.messages.create(**ASK, messages=talk, stop_sequences=["zzz", " rain"])
assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " rain"), stopped
assert stopped.content[0].text == "It does not"

# Ignored fields, and errors.
client.messages.create(
    **ASK, messages=talk, metadata={"user_id": "me"}, service_tier="auto", cache_control={"type": "ephemeral"}
)
refused(anthropic.BadRequestError, "`max_tokens` is missing", lambda: client.post(
    "/v1/messages", body={"model": "mini", "messages": [USER]}, cast_to=object
))
ask = lambda **more: client.messages.create(**{**ASK, "messages": [USER], **more})
refused(anthropic.NotFoundError, "claude", lambda: ask(model="claude"))
refused(anthropic.BadRequestError, "runs no tools itself", lambda: ask(tools=[{"type": "bash_20250124", "name": "bash"}]))
refused(anthropic.BadRequestError, "maximum context length", lambda: ask(messages=[{"role": "user", "content": "x" * 20000}]))
image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
refused(anthropic.BadRequestError, "reads text only", lambda: ask(messages=[{"role": "user", "content": [image]}]))
other = anthropic.Anthropic(base_url=url, api_key="open", max_retries=0)
refused(anthropic.AuthenticationError, "API key", lambda: other.messages.create(**ASK, messages=[USER]))
print("all of it")
