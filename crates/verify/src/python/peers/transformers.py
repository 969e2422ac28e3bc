"""transformers' own models, from a folder with weights, by whichever kernels transformers takes: the logits of a prompt, or
tokens that it generates.

Its layers fall back to torch's operators where a package of theirs is missing: what counts is which kernels ran. What
transformers says of it, in words that changed over its versions, is the reason.
"""

import logging

FALLS_BACK = ("fast path is not available", "falling back")


class Listener(logging.Handler):
    """Keeps what transformers' loggers say of fast paths, which goes to standard error otherwise."""

    said = []

    def emit(self, record):
        text = record.getMessage()
        if any(words in text for words in FALLS_BACK):
            self.said.append(text)


listener = Listener()
logging.getLogger("transformers").addHandler(listener)


def loaded(case, model_type):
    """The model, which stays for other prompts, and what was said of it since."""
    transformers = package("transformers")
    if torch is None:
        raise NotApplicable("transformers runs models by torch, which is not here")
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[case.dtype]
    try:
        transformers.AutoConfig.for_model(model_type)
    except ValueError:
        raise NotApplicable("%s has no models of type %s" % (version("transformers"), model_type))
    if model_type not in case.models:
        # Some things are said once in a process: another model may say them again.
        if hasattr(getattr(logging.Logger, "warning_once", None), "cache_clear"):
            logging.Logger.warning_once.cache_clear()
        listener.said = []
        # Only files of the folder: nothing is fetched, and no code of the folder is run.
        more = {"dtype": kind, "local_files_only": True, "trust_remote_code": False}
        model = transformers.AutoModelForCausalLM.from_pretrained(case.word("folder"), **more)
        # No id ends an answer: as many tokens are generated as are asked for.
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
    """generate() hands over the prompt first, then the ids of each token as they are chosen."""

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
        # Where time is taken the logits are not kept.
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
