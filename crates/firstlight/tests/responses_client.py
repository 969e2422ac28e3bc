"""OpenAI's client and /v1/responses against a scripted model that calls a tool and then answers."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="sesame", max_retries=0)
ANSWER = "It does not rain in Ulm."
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": True,
}
ASK = {"model": "mini", "input": "Does it rain in Ulm?", "tools": [TOOL], "temperature": 0}


def refused(kind, code, call):
    try:
        call()
    except kind as error:
        assert error.code == code, error
    else:
        raise AssertionError(f"wanted {kind.__name__}: {code}")


def events(stream):
    all = list(stream)
    assert [event.sequence_number for event in all] == list(range(len(all)))
    return all


# A call, its result and the answer; the client returns the items.
called = client.responses.create(**ASK, instructions="be brief", store=False, metadata={"app": "test"})
assert called.status == "completed" and called.metadata == {"app": "test"} and called.store is False
assert called.instructions == "be brief" and called.tools[0].name == "weather"
(call,) = called.output
assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"place": "Ulm"}), call
result = {"type": "function_call_output", "call_id": call.call_id, "output": "no rain"}
items = [{"role": "user", "content": ASK["input"]}, call.model_dump(exclude_none=True), result]
answered = client.responses.create(**{**ASK, "input": items})
assert answered.output_text == ANSWER, answered
usage = answered.usage
assert usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens == len(ANSWER)
refused(openai.NotFoundError, "response_not_found", lambda: client.responses.retrieve(called.id))

# The same with responses stored on the server.
first = client.responses.create(**ASK)
second = client.responses.create(**{**ASK, "input": [result]}, previous_response_id=first.id)
assert second.output_text == ANSWER and second.previous_response_id == first.id
# The later conversation contains the earlier one.
assert second.usage.input_tokens > first.usage.input_tokens
kept = client.responses.retrieve(second.id)
assert kept.output == second.output and kept.id == second.id
listed = client.responses.input_items.list(second.id)
assert [item.type for item in listed.data] == ["function_call_output"] and listed.data[0].output == "no rain"
client.responses.delete(first.id)
refused(openai.NotFoundError, "response_not_found", lambda: client.responses.retrieve(first.id))
refused(openai.NotFoundError, "response_not_found", lambda: client.responses.delete(first.id))
after = lambda id: client.responses.create(**{**ASK, "input": [result]}, previous_response_id=id)
refused(openai.BadRequestError, "previous_response_not_found", lambda: after(first.id))
# A response stays valid after the response that it continues is deleted.
assert after(second.id).output_text == ANSWER

# Streams: events of the client's types, in OpenAI's order.
streamed = events(client.responses.create(**ASK, stream=True))
kinds = [event.type for event in streamed]
deltas = "".join(event.delta for event in streamed if event.type == "response.function_call_arguments.delta")
assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"], kinds
assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"], kinds
assert deltas == streamed[-3].arguments == call.arguments
assert streamed[-1].response.output[0].arguments == call.arguments
streamed = events(client.responses.create(**{**ASK, "input": items}, stream=True))
kinds = [event.type for event in streamed]
head = ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"]
tail = ["output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed"]
assert kinds[:5] == [f"response.{kind}" for kind in head], kinds
assert kinds[-5:] == [f"response.{kind}" for kind in tail], kinds
assert "".join(event.delta for event in streamed if event.type == "response.output_text.delta") == ANSWER
final = streamed[-1].response
assert final.output_text == ANSWER and final.usage.output_tokens == len(ANSWER) and final.status == "completed"
assert client.responses.retrieve(final.id).output_text == ANSWER
with client.responses.stream(**{**ASK, "input": items}) as stream:
    stream.until_done()
    assert stream.get_final_response().output_text == ANSWER

# A limit makes a response incomplete.
cut = client.responses.create(**{**ASK, "input": items}, max_output_tokens=5)
assert (cut.status, cut.incomplete_details.reason, cut.output_text) == ("incomplete", "max_output_tokens", ANSWER[:5])
streamed = events(client.responses.create(**{**ASK, "input": items}, max_output_tokens=5, stream=True))
assert streamed[-1].type == "response.incomplete" and streamed[-1].response.output[0].status == "incomplete"

# Log probabilities, and a custom tool with text input.
likely = client.responses.create(
    **{**ASK, "input": items}, max_output_tokens=2, top_logprobs=2, include=["message.output_text.logprobs"]
)
assert [token.token for token in likely.output[0].content[0].logprobs] == list(ANSWER[:2])
custom = {"type": "custom", "name": "weather", "description": "a place"}
freeform = client.responses.create(**{**ASK, "tools": [custom]})
assert freeform.output[0].type == "custom_tool_call" and "Ulm" in freeform.output[0].input, freeform.output
streamed = events(client.responses.create(**{**ASK, "tools": [custom]}, stream=True))
assert [event.type for event in streamed][-4:] == [
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "response.output_item.done",
    "response.completed",
]

# An answer does not end before `min_tokens`.
talk = dict(model="mini", messages=[{"role": "user", "content": "x"}], temperature=0, max_tokens=200)
short = client.chat.completions.create(**talk).usage.completion_tokens
assert short < 150, short
long = client.chat.completions.create(**talk, extra_body={"min_tokens": 150}).usage.completion_tokens
assert long >= 150, long

# Structured output, and unsupported requests.
form = {"format": {"type": "json_schema", "name": "answer", "schema": {"enum": ["yes"]}}}
assert client.responses.create(model="mini", input="x", text=form).output_text == '"yes"'
ask = lambda **more: client.responses.create(**{"model": "mini", "input": "x", **more})
refused(openai.BadRequestError, "unsupported_value", lambda: ask(tools=[{"type": "file_search", "vector_store_ids": []}]))
refused(openai.BadRequestError, "unsupported_value", lambda: ask(background=True))
refused(openai.BadRequestError, "unsupported_parameter", lambda: ask(conversation="conv_1"))
refused(openai.BadRequestError, "context_length_exceeded", lambda: ask(input="x" * 20000))
refused(openai.NotFoundError, "model_not_found", lambda: ask(model="gpt-4"))
refused(openai.BadRequestError, "missing_required_parameter", lambda: client.responses.create(model="mini"))

# Each field in a separate request.
NEUTRAL = {
    "include": ["reasoning.encrypted_content"],
    "max_tool_calls": 3,
    "parallel_tool_calls": True,
    "prompt_cache_key": "key",
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_retention": "24h",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "me",
    "service_tier": "auto",
    "text": {"verbosity": "low"},
    "tool_choice": "none",
    "top_p": 0.5,
    "truncation": "auto",
    "user": "me",
}
for name, value in NEUTRAL.items():
    assert ask(**{name: value, "max_output_tokens": 2}).status == "incomplete", name
print("all of it")
