"""RMS norms of transformers' modeling files on ``ops.rms_norm``, where their source shows that formula."""

import functools
import inspect

from . import ops
from ._counts import fell, ran
from ._library import Refused

_VARIANCE = "variance=hidden_states.pow(2).mean(-1,keepdim=True)"
_NORMED = "hidden_states=hidden_states*torch.rsqrt(variance+self.variance_epsilon)"
_GATE_FIRST = "hidden_states=hidden_states*nn.functional.silu(gate.to(torch.float32))"
_ACTIVATION = "hidden_states=hidden_states*ACT2FN[self.activation](gate.to(torch.float32))"
_SILU = "hidden_states=hidden_states*F.silu(gate.to(torch.float32))"
_END = "returnhidden_states.to(input_dtype)"
_WEIGHTED = ("hidden_states=self.weight.to(torch.float32)*hidden_states", "hidden_states=self.weight*hidden_states.to(input_dtype)")


def is_norm(name):
    """Whether a class is an RMS norm by its name."""
    return name.endswith(("RMSNorm", "RMSNormGated"))


def _settings(cls):
    """A function from a norm to the arguments of ``ops.rms_norm`` beyond weight and epsilon, or None for a formula that it does not have:
    ``weight * x / sqrt(mean(x^2) + eps)``, where a gate multiplies x or the result."""
    try:
        text = "".join(line.split("#")[0] for line in inspect.getsource(cls.forward).splitlines())
        text = "".join(text.split())
    except (OSError, TypeError):
        return None
    if _VARIANCE not in text or _NORMED not in text:
        return None
    weighted = "returnself.weight*hidden_states.to(input_dtype)" in text
    if "gate" not in inspect.signature(cls.forward).parameters:
        return (lambda norm: {}) if weighted and "gate" not in text else None
    if weighted and _GATE_FIRST in text:
        return lambda norm: {}
    if not any(weight in text for weight in _WEIGHTED):
        return None
    if text.endswith(_ACTIVATION + _END):
        return lambda norm: {"norm_before_gate": True, "activation": norm.activation}
    if text.endswith(_SILU + _END):
        return lambda norm: {"norm_before_gate": True, "activation": "silu"}
    return None


def patch(changes, name, cls):
    """Replaces a norm's ``forward``. Gives the reason where it does not."""
    settings = _settings(cls)
    if settings is None:
        return "its formula is not that of firstlight's RMS norm"
    theirs, gated = cls.forward, "gate" in inspect.signature(cls.forward).parameters

    @functools.wraps(theirs)
    def forward(self, hidden_states, gate=None):
        try:
            # `Module.__getattr__` takes longer than all else here.
            weight = self.weight
            if hidden_states.dtype != weight.dtype:
                raise NotImplementedError(f"{hidden_states.dtype} with a weight of {weight.dtype}")
            found = ops.rms_norm(hidden_states, weight, gate=gate, eps=self.variance_epsilon, **settings(self))
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return theirs(self, hidden_states, gate) if gated else theirs(self, hidden_states)
        ran(name)
        return found

    changes.set(cls, "forward", forward)
    return None
