"""transformers' own models: the logits of a prompt, from a folder with weights, by whichever kernels transformers takes.

Its layers fall back to torch's operators where a package of theirs is missing, which newer versions do not always say: what
counts is which kernels ran.
"""


def prepared(case, model_type):
    transformers = package("transformers")
    if torch is None:
        raise NotApplicable("transformers runs models by torch, which is not here")
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[case.dtype]
    config = transformers.AutoConfig.for_model
    try:
        config(model_type)
    except ValueError:
        raise NotApplicable("%s has no models of type %s" % (version("transformers"), model_type))
    # Only files of the folder: nothing is fetched, and no code of the folder is run.
    more = {"dtype": kind, "local_files_only": True, "trust_remote_code": False}
    model = transformers.AutoModelForCausalLM.from_pretrained(case.word("folder"), **more)
    model = model.to(case.device).eval()
    ids = case.tensor("ids").long()[None]
    return lambda: model(input_ids=ids, use_cache=False), lambda result: {"logits": result.logits[0].float()}


@peer("transformers.granitemoehybrid", "transformers")
def granite(case):
    return prepared(case, "granitemoehybrid")


@peer("transformers.kimi_linear", "transformers")
def kimi(case):
    return prepared(case, "kimi_linear")
