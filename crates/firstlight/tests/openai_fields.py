"""Each field of OpenAI's client, one per request, against the server whose address is given.

The fields are those of the client's types: a field that a later version adds fails here until the server handles it.
"""

import sys
import typing

import openai
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

client = openai.OpenAI(base_url=sys.argv[1], api_key="sesame", max_retries=0)
TALK = [{"role": "user", "content": "hi"}]
WEATHER = {"name": "weather", "description": "tells", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
JSON = {"name": "answer", "description": "whether", "strict": True, "schema": SCHEMA}

# A value that changes the answer, and the error code if the server refuses it.
TEXT = {
    "frequency_penalty": (0.5, None),
    "logit_bias": ({"104": -100}, None),
    "max_tokens": (3, None),
    "model": ("mini", None),
    "n": (2, None),
    "presence_penalty": (0.5, None),
    "seed": (7, None),
    "stop": (["zzz"], None),
    "stream": (True, None),
    "stream_options": ({"include_usage": True, "include_obfuscation": False}, None),
    "temperature": (0.5, None),
    "top_p": (0.5, None),
    "user": ("me", None),
}
CHAT = TEXT | {
    "audio": ({"voice": "alloy", "format": "mp3"}, "unsupported_parameter"),
    "function_call": ({"name": "weather"}, "unsupported_value"),
    "functions": ([WEATHER], "unsupported_value"),
    "logprobs": (True, None),
    "max_completion_tokens": (3, None),
    "messages": (TALK, None),
    "metadata": ({"app": "test"}, None),
    "modalities": (["text"], None),
    "moderation": ({"model": "omni-moderation-latest"}, "unsupported_parameter"),
    "parallel_tool_calls": (True, None),
    "prediction": ({"type": "content", "content": "hello"}, None),
    "prompt_cache_key": ("key", None),
    "prompt_cache_options": ({"mode": "explicit"}, None),
    "prompt_cache_retention": ("24h", None),
    "reasoning_effort": ("low", None),
    "response_format": ({"type": "json_schema", "json_schema": JSON}, None),
    "safety_identifier": ("me", None),
    "service_tier": ("auto", None),
    "store": (True, None),
    "tool_choice": ("none", None),
    "tools": ([{"type": "function", "function": WEATHER}], None),
    "top_logprobs": (2, None),
    "verbosity": ("low", None),
    "web_search_options": ({}, "unsupported_parameter"),
}
COMPLETION = TEXT | {
    "best_of": (2, "unsupported_value"),
    "echo": (True, None),
    "logprobs": (1, None),
    "prompt": ("x", None),
    "suffix": ("end", "unsupported_value"),
}
# vLLM's fields, which clients send in `extra_body`.
EXTRA = {
    "top_k": (5, None),
    "min_p": (0.1, None),
    "repetition_penalty": (1.1, None),
    "stop_token_ids": ([7], None),
    "ignore_eos": (True, None),
    "min_tokens": (2, None),
    "allowed_token_ids": ([104, 105], None),
    "logit_bias": ({"104": 1.5, "105": -0.5}, None),
    "guided_choice": (["yes", "no"], None),
    "guided_regex": ("[ab]+", None),
    "guided_json": (SCHEMA, None),
    "structured_outputs": ({"choice": ["yes", "no"]}, None),
    "priority": (1, None),
    "cache_salt": ("salt", "unsupported_parameter"),
    "use_beam_search": (True, "unsupported_value"),
    "length_penalty": (1.0, None),
    "skip_special_tokens": (False, "unsupported_value"),
}
# Fields of a message that clients return from an answer.
MESSAGE = {
    "annotations": ([], None),
    "audio": (None, None),
    "function_call": (None, None),
    "name": ("me", None),
    "parsed": (None, None),
    "reasoning": ("hm", None),
    "reasoning_content": ("hm", None),
    "refusal": (None, None),
    "tool_calls": ([], None),
    "prefix": (True, "unsupported_value"),
    "images": (["aGk="], "unknown_parameter"),
}


def code(call):
    try:
        answer = call()
        if isinstance(answer, openai.Stream):
            assert list(answer)
        return None
    except openai.BadRequestError as error:
        return error.code


def check(values, params, ask):
    if params is not None:
        assert set(values) == set(typing.get_type_hints(params)), set(values) ^ set(typing.get_type_hints(params))
    for name, (value, want) in values.items():
        got = code(lambda: ask(name, value))
        assert got == want, f"{name}: {got}, wanted {want}"


# Fields that need another field.
NEEDS = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}


def chat(name, value):
    body = {"model": "mini", "messages": TALK, "max_tokens": 2, **NEEDS.get(name, {}), name: value}
    return client.chat.completions.create(**body)


def completion(name, value):
    body = {"model": "mini", "prompt": "x", "max_tokens": 2, **NEEDS.get(name, {}), name: value}
    return client.completions.create(**body)


def message(name, value):
    said = [*TALK, {"role": "assistant", "content": "yes", name: value}, *TALK]
    return client.chat.completions.create(model="mini", messages=said, max_tokens=2)


check(CHAT, chat_create_params.CompletionCreateParamsStreaming, chat)
check(COMPLETION, completion_create_params.CompletionCreateParamsStreaming, completion)
check(EXTRA, None, lambda name, value: chat("extra_body", {name: value}))
check(EXTRA, None, lambda name, value: completion("extra_body", {name: value}))
check(MESSAGE, None, message)
print("all of it")
