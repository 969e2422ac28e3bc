"""firstlight's kernels in models of transformers: ``firstlight.transformers.enable()``, and ``disable()`` undoes it.

The functions that models of transformers call for their mixers (causal convolution, Mamba-2, Kimi Delta Attention), their RMS norms,
Kimi-Linear's experts and an attention named ``"firstlight"`` run on firstlight. A call that no kernel takes runs as it did before, and
``report()`` says which and why: nothing falls back unseen.
"""

import functools
import importlib.abc
import importlib.util
import inspect
import sys
from contextlib import nullcontext

from . import _experts, ops
from ._attention import attention, mask
from ._counts import RAN, fell, forget, ran, report
from ._library import Refused
from .compat import causal_conv1d, fla, mamba_ssm

__all__ = ["disable", "enable", "forget", "report"]

# What modeling files call these functions, by package: the names of the packages', and their own of transformers' fallbacks.
_FUNCTIONS = {
    "causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d.causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d.causal_conv1d_update,
    },
    "mamba_ssm": {
        "mamba_chunk_scan_combined": mamba_ssm.mamba_chunk_scan_combined,
        "mamba2_chunk_scan": mamba_ssm.mamba_chunk_scan_combined,
        "selective_state_update": mamba_ssm.selective_state_update,
        "mamba2_selective_state_update": mamba_ssm.selective_state_update,
    },
    "fla": {
        "chunk_kda": fla.chunk_kda,
        "chunk_kimi_delta_attention": fla.chunk_kda,
        "fused_recurrent_kda": fla.fused_recurrent_kda,
        "recurrent_kimi_delta_attention": fla.fused_recurrent_kda,
    },
}
# Without the packages these are None in modeling files of transformers 4, or not there: mixers then call no function at all.
_FAST_PATH = ("causal_conv1d_fn", "causal_conv1d_update", "mamba_chunk_scan_combined", "selective_state_update")


class Changes:
    """What was changed, and how to undo it."""

    def __init__(self):
        self.steps = []

    def set(self, owner, name, value):
        # A class may have inherited what it gets, and is to inherit it again.
        if name in vars(owner):
            before = vars(owner)[name]
            self.steps.append(lambda: setattr(owner, name, before))
        else:
            self.steps.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def undo(self):
        while self.steps:
            self.steps.pop()()


_ENABLED = Changes()


def enable(model=None):
    """Puts firstlight's kernels into every model of transformers in this process, those imported later too. With a ``model``, its
    attention becomes ``"firstlight"`` as well, which otherwise ``attn_implementation="firstlight"`` asks for."""
    if not _ENABLED.steps:
        _register_attention()
        functions = {name: function for package in _FUNCTIONS.values() for name, function in package.items()}
        _into_modeling_files(_ENABLED, functions, True, nullcontext)
    if model is not None:
        before = model.config._attn_implementation
        model.set_attn_implementation("firstlight")
        _ENABLED.steps.append(lambda: model.set_attn_implementation(before))


def disable():
    """Everything as it was before ``enable``."""
    _ENABLED.undo()


def rebind(packages, hidden):
    """Functions of packages in modeling files, for ``firstlight.patch``: those imported later are read ``hidden`` from the packages, so
    that their own code stays beneath. Gives the changes."""
    changes = Changes()
    functions = {name: function for package in packages for name, function in _FUNCTIONS.get(package, {}).items()}
    _into_modeling_files(changes, functions, False, hidden)
    return changes


def _into_modeling_files(changes, functions, classes, during):
    def work(module):
        _patch(changes, module, functions)
        if classes:
            _patch_classes(changes, module)

    finder = _AfterImport(work, during)
    sys.meta_path.insert(0, finder)
    changes.steps.append(finder.leave)
    for name, module in list(sys.modules.items()):
        if _is_modeling(name) and module is not None:
            work(module)


def _is_modeling(name):
    return name.startswith("transformers.models.") and ".modeling_" in name


class _AfterImport(importlib.abc.MetaPathFinder):
    """Works on a modeling file once it has been imported by whoever finds it."""

    def __init__(self, work, during):
        self.work, self.during = work, during
        self.looking = set()
        self.left = False

    def leave(self):
        sys.meta_path.remove(self)
        self.left = True

    def find_spec(self, name, path, target=None):
        if not _is_modeling(name) or name in self.looking:
            return None
        self.looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking.discard(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module):
            del spec.loader.exec_module
            if self.left:
                return run(module)
            with self.during():
                run(module)
            self.work(module)

        spec.loader.exec_module = exec_module
        return spec


def _classes(module):
    return [(name, cls) for name, cls in list(vars(module).items()) if inspect.isclass(cls) and cls.__module__ == module.__name__]


def _patch(changes, module, functions):
    for name, ours in functions.items():
        theirs = getattr(module, name, None)
        if callable(theirs):
            changes.set(module, name, _instead(name, theirs, ours))
    mixers = [(name, cls) for name, cls in _classes(module) if _has_fast_path(cls)]
    if mixers and all(name in functions and getattr(module, name, None) is None for name in _FAST_PATH):
        for name in _FAST_PATH:
            changes.set(module, name, _counted(name, functions[name]))
        for name, cls in mixers:
            changes.set(cls, "forward", _mixer(name, cls))


def _has_fast_path(cls):
    """Whether a class has code that calls just these functions, beside code of its own."""
    fast = getattr(cls, "cuda_kernels_forward", None)
    return hasattr(cls, "torch_forward") and fast is not None and set(_FAST_PATH) <= set(inspect.unwrap(fast).__code__.co_names)


def _patch_classes(changes, module):
    for name, cls in _classes(module):
        if name.endswith(("RMSNorm", "RMSNormGated")):
            _patch_norm(changes, name, cls)
    for name, cls in _experts.blocks(dict(_classes(module))):
        changes.set(cls, "forward", functools.wraps(cls.forward)(_experts.forward_of(name, cls.forward)))


def _counted(name, ours):
    @functools.wraps(ours)
    def wrapped(*args, **kwargs):
        found = ours(*args, **kwargs)
        ran(name)
        return found

    return wrapped


def _mixer(name, cls):
    """A mixer of transformers 4 by its code for packages' functions, which asks for a GPU, and as before where one of ours refuses."""
    theirs = cls.forward
    taken = [key for key in inspect.signature(cls.cuda_kernels_forward).parameters if key not in ("self", "hidden_states")]
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def forward(self, hidden_states, *args, **kwargs):
        given = signature.bind(self, hidden_states, *args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        advanced = RAN["causal_conv1d_update"]
        try:
            if self.training:
                raise NotImplementedError("training")
            return self.cuda_kernels_forward(hidden_states, **{key: given[key] for key in taken if key in given})
        except (Refused, NotImplementedError) as why:
            if RAN["causal_conv1d_update"] != advanced:
                # The convolution's state is a token further: what ran as before would take that token twice.
                raise
            fell(name, str(why))
        return theirs(self, hidden_states, *args, **kwargs)

    return forward


def _instead(name, theirs, ours):
    """Ours, and theirs where ours refuses. A keyword that theirs knows and ours does not is no reason to drop it."""
    taken = set(inspect.signature(ours).parameters)
    only_theirs = set(inspect.signature(inspect.unwrap(theirs)).parameters) - taken

    def without_others(kwargs):
        for key, value in kwargs.items():
            if key in only_theirs and value is not None and value is not False:
                raise NotImplementedError(f"keyword {key}")
        return {key: value for key, value in kwargs.items() if key in taken}

    @functools.wraps(theirs)
    def wrapped(*args, **kwargs):
        try:
            found = ours(*args, **kwargs) if kwargs.keys() <= taken else ours(*args, **without_others(kwargs))
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return theirs(*args, **kwargs)
        ran(name)
        return found

    return wrapped


def _norm_of(cls):
    """How a norm is called whose own text says that it is ``weight * x / sqrt(mean(x^2) + eps)``, gated before it or after it where it
    takes a gate: a function from the norm to what ``ops.rms_norm`` is given besides. None for any other norm."""
    try:
        text = "".join(inspect.getsource(cls.forward).split())
    except (OSError, TypeError):
        return None
    plain = "variance=hidden_states.pow(2).mean(-1,keepdim=True)" in text
    plain &= "hidden_states=hidden_states*torch.rsqrt(variance+self.variance_epsilon)" in text
    if not plain:
        return None
    weighted = "returnself.weight*hidden_states.to(input_dtype)" in text
    if "gate" not in inspect.signature(cls.forward).parameters:
        return (lambda norm: {}) if weighted and "gate" not in text else None
    if weighted and "hidden_states=hidden_states*nn.functional.silu(gate.to(torch.float32))" in text:
        return lambda norm: {}
    after = "hidden_states=hidden_states*ACT2FN[self.activation](gate.to(torch.float32))returnhidden_states.to(input_dtype)"
    if "hidden_states=self.weight.to(torch.float32)*hidden_states" in text and text.endswith(after):
        return lambda norm: {"norm_before_gate": True, "activation": norm.activation}
    return None


def _patch_norm(changes, name, cls):
    settings = _norm_of(cls)
    if settings is None:
        return
    theirs, gated = cls.forward, "gate" in inspect.signature(cls.forward).parameters

    @functools.wraps(theirs)
    def forward(self, hidden_states, gate=None):
        try:
            if hidden_states.dtype != self.weight.dtype:
                raise NotImplementedError(f"{hidden_states.dtype} beside a weight of {self.weight.dtype}")
            found = ops.rms_norm(hidden_states, self.weight, gate=gate, eps=self.variance_epsilon, **settings(self))
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return theirs(self, hidden_states, gate) if gated else theirs(self, hidden_states)
        ran(name)
        return found

    changes.set(cls, "forward", forward)


def _register_attention():
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("firstlight", attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("firstlight", mask)
