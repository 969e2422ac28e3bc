"""The firstlight wheel of an environment: its ops take the contract's tensors and settings by name, in torch's memory and on torch's
stream. Its results are compared with the same reference as those of this program."""

import inspect

# The arguments that request outputs other than the first.
WHOLE = {
    "attention": ("return_lse", ("o", "lse")),
    "nsa": ("return_indices", ("o", "indices")),
    "moe": ("return_choice", ("o", "chosen", "weights")),
    "conv1d": ("return_state", ("o", "final_state")),
    "gated_delta": ("return_state", ("o", "final_state")),
    "kda": ("return_state", ("o", "final_state")),
    "selective_scan": ("return_state", ("o", "final_state")),
    "ssd": ("return_state", ("o", "final_state")),
}
# Pairs of settings that are one argument of the Python op.
PAIRS = {"window": ("window_left", "window_right", -1, -1), "dt_limit": ("dt_min", "dt_max", 0.0, float("inf"))}


def value(word):
    if word in ("true", "false"):
        return word == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word


def arguments(case, function):
    known = inspect.signature(function).parameters
    given = {name: value(word) for name, word in case.settings.items()}
    for name, (low, high, least, most) in PAIRS.items():
        if name in known and (low in given or high in given):
            given[name] = (given.pop(low, least), given.pop(high, most))
    # Its only value: there is no argument for it.
    if case.op == "nsa" and given.get("causal"):
        del given["causal"]
    for name in list(given) + list(case.files):
        if name not in known:
            raise NotApplicable("firstlight.ops.%s has no argument `%s`" % (function.__name__, name))
    return {**given, **{name: case.tensor(name) for name in case.files}}


def op(name, called=None):
    @peer("firstlight." + name, "firstlight")
    def prepare(case):
        module = package("firstlight")
        function = getattr(package("firstlight.ops"), called or name)
        case.refuse(
            state_indices="a pool of states is written over, and the contract's stays",
            out="the result has the type of the tensors, or of the residual",
        )
        more = arguments(case, function)
        flag, outputs = WHOLE.get(name, (None, ("o",)))
        if flag:
            more[flag] = True

        def run():
            try:
                with torch.no_grad():
                    return function(**more)
            except module.Refused as why:
                raise NotApplicable(str(why))

        return run, lambda found: dict(zip(outputs, found if flag else (found,)))


for name in ("attention", "conv1d", "gated_delta", "kda", "linear", "moe", "nsa", "selective_scan", "ssd"):
    op(name)
op("rmsnorm", "rms_norm")
