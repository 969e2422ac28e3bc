"""Tool calls with OpenAI's client, and a model that calls `weather` and answers after the result."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="sesame", max_retries=0)
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
SAME = {"model": "mini", "temperature": 0, "max_tokens": 200, "tools": TOOLS}
talk = [{"role": "user", "content": "Is it raining in Ulm?"}]

# A call with tool_choice auto, required and named.
for choice in ["auto", "required", {"type": "function", "function": {"name": "weather"}}]:
    whole = client.chat.completions.create(messages=talk, tool_choice=choice, **SAME).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
    assert call.function.name == "weather", call
    assert json.loads(call.function.arguments) == {"place": "Ulm"}, call

# The client's stream helper and its events.
with client.chat.completions.stream(messages=talk, **SAME) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_completion().choices[0]
assert "tool_calls.function.arguments.delta" in kinds, kinds
assert kinds.count("tool_calls.function.arguments.done") == 1, kinds
(collected,) = final.message.tool_calls
assert collected.function.arguments == call.function.arguments, collected
assert final.finish_reason == "tool_calls", final

# The client returns the message with the result.
result = {"role": "tool", "tool_call_id": call.id, "content": "no rain"}
talk += [whole.message.model_dump(), result]
answer = client.chat.completions.create(messages=talk, **SAME).choices[0]
assert answer.message.content == "It does not rain in Ulm.", answer
assert answer.finish_reason == "stop" and not answer.message.tool_calls, answer

print("all of it")
