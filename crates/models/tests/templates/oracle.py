"""Renders conversations with transformers' apply_chat_template, for comparison with firstlight's.

Reads {"templates": {name: text}, "conversations": [..], "snippets": [..], "given": {..}} on standard input, and writes for each
template the text of each conversation, and of each snippet with the given variables; null if transformers refuses."""

import json
import sys

import jinja2
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

asked = json.load(sys.stdin)
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>")),
    bos_token="<s>",
    eos_token="</s>",
    unk_token="<unk>",
)


def render(template, conversation):
    try:
        return tokenizer.apply_chat_template(
            conversation["messages"],
            tools=conversation.get("tools"),
            documents=conversation.get("documents"),
            chat_template=template,
            add_generation_prompt=conversation.get("add_generation_prompt", False),
            continue_final_message=conversation.get("continue_final_message", False),
            tokenize=False,
            **conversation.get("kwargs", {}),
        )
    except Exception as error:
        # The kind of error does not matter: both must refuse the same conversations.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return None


one = {"messages": [{"role": "user", "content": "hi"}], "kwargs": asked["given"]}
answer = {
    "transformers": transformers.__version__,
    "jinja2": jinja2.__version__,
    "rendered": {
        name: [render(text, conversation) for conversation in asked["conversations"]]
        for name, text in asked["templates"].items()
    },
    "snippets": [render(text, one) for text in asked["snippets"]],
}
json.dump(answer, sys.stdout)
