"""Models of transformers, loaded from a folder with weights: the logits of a prompt, or generated tokens.

Its layers fall back to torch's operators if a package is missing, so the evidence is which kernels ran. Messages of
transformers about it, which differ between versions, are the reason.
"""

import logging

FALLS_BACK = ("fast path is not available", "falling back")


class Listener(logging.Handler):
    """Records messages of transformers' loggers about fast paths, which otherwise go to standard error."""

    said = []

    def emit(self, record):
        text = record.getMessage()
        if any(words in text for words in FALLS_BACK):
            self.said.append(text)


listener = Listener()
logging.getLogger("transformers").addHandler(listener)


def loaded(case, model_type):
    """The model, reused for other prompts, and the messages recorded for it."""
    transformers = package("transformers")
    if torch is None:
        raise NotApplicable("transformers runs models by torch, which is not here")
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[case.dtype]
    try:
        transformers.AutoConfig.for_model(model_type)
    except ValueError:
        raise NotApplicable("%s has no models of type %s" % (version("transformers"), model_type))
    if model_type not in case.models:
        # Some messages are logged once per process; resets that for another model.
        if hasattr(getattr(logging.Logger, "warning_once", None), "cache_clear"):
            logging.Logger.warning_once.cache_clear()
        listener.said = []
        # Only files of the folder: no downloads, and no code of the folder is run.
        more = {"dtype": kind, "local_files_only": True, "trust_remote_code": False}
        model = transformers.AutoModelForCausalLM.from_pretrained(case.word("folder"), **more)
        # No end-of-sequence id, so that exactly the requested number of tokens is generated.
        model.generation_config.eos_token_id = None
        case.models[model_type] = model.to(case.device).eval(), listener.said
    model, case.said = case.models[model_type]
    return model


def prepared(case, model_type):
    model = loaded(case, model_type)
    if case.count("new_tokens"):
        return generation(model, case)
    ids = case.tensor("ids").long()[None]
    return lambda: model(input_ids=ids, use_cache=False), lambda result: {"logits": result.logits[0].float()}


class Streamer:
    """A streamer: generate() passes it the prompt first, then the ids of each step."""

    def __init__(self, put):
        self.put_new, self.has_begun = put, False

    def put(self, ids):
        if self.has_begun:
            self.put_new(ids)
        self.has_begun = True

    def end(self):
        pass


def generation(model, case):
    ids = case.tensor("ids").long()

    def run(put=None):
        # Logits are not recorded when the generation is timed.
        more = {"streamer": Streamer(put)} if put else {"output_logits": True, "return_dict_in_generate": True}
        count = case.count("new_tokens")
        return model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **more)

    def collect(result):
        return {"logits": torch.stack(result.logits).float(), "tokens": result.sequences[:, ids.shape[1] :].T.contiguous()}

    return run, collect


@peer("transformers.granitemoehybrid", "transformers")
def granite(case):
    return prepared(case, "granitemoehybrid")


@peer("transformers.kimi_linear", "transformers")
def kimi(case):
    return prepared(case, "kimi_linear")
