"""Runs models of transformers on firstlight's kernels: ``firstlight.transformers.enable()``; ``disable()`` undoes it.

It replaces the functions that models call for their mixers (causal convolution, Mamba, Mamba-2, gated delta rule, Kimi Delta Attention),
their RMS norms and their experts, and registers an attention named ``"firstlight"``. A call that no kernel supports runs the original
code, and ``report()`` counts it with the reason. ``enable`` returns what it replaced, and what it did not replace with reasons.
"""

from __future__ import annotations

import copy
import functools
import importlib.abc
import importlib.util
import inspect
import sys
import types
import weakref
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Optional

from . import _experts, _masks, _mixers, _norms, _original
from ._attention import attention
from ._counts import RAN, fell, forget, ran, report
from ._keywords import known, parameters
from ._library import Refused
from .compat import causal_conv1d, fla, mamba_ssm

__all__ = ["Enabled", "disable", "enable", "forget", "report"]

# The names of these functions in modeling files, by package: the package's names and those of transformers' fallbacks.
_FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {
    "causal_conv1d": {
        "causal_conv1d_fn": causal_conv1d.causal_conv1d_fn,
        "causal_conv1d_update": causal_conv1d.causal_conv1d_update,
    },
    "mamba_ssm": {
        "mamba_chunk_scan_combined": mamba_ssm.mamba_chunk_scan_combined,
        "mamba2_chunk_scan": mamba_ssm.mamba_chunk_scan_combined,
        "selective_state_update": mamba_ssm.selective_state_update,
        "mamba2_selective_state_update": mamba_ssm.selective_state_update,
        "mamba_selective_scan": _mixers.selective_scan,
        "mamba_selective_state_update": _mixers.selective_state_update,
    },
    "fla": {
        "chunk_kda": fla.chunk_kda,
        "chunk_kimi_delta_attention": fla.chunk_kda,
        "fused_recurrent_kda": fla.fused_recurrent_kda,
        "recurrent_kimi_delta_attention": fla.fused_recurrent_kda,
        "torch_chunk_gated_delta_rule": _mixers.gated_delta_rule,
        "torch_recurrent_gated_delta_rule": _mixers.gated_delta_rule,
    },
}
# Without the packages these are None or missing in modeling files of transformers 4, and mixers call none of them.
_FAST_PATH = ("causal_conv1d_fn", "causal_conv1d_update", "mamba_chunk_scan_combined", "selective_state_update")


class Changes:
    """Changes that can be undone. ``active`` is true until then."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], object]] = []
        self.active: bool = False

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Sets an attribute of a class or a module."""
        self.active = True
        # An inherited attribute is deleted from the class instead of set.
        if name in vars(owner):
            before = vars(owner)[name]
            self.steps.append(lambda: setattr(owner, name, before))
        else:
            self.steps.append(lambda: delattr(owner, name))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Undoes the changes in reverse order."""
        self.active = False
        while self.steps:
            self.steps.pop()()


@dataclass
class Enabled:
    """The result of ``enable``: the names that it replaced, by modeling file or model; what it did not replace, with the reason; and what
    computes a different formula than the original."""

    replaced: dict[str, list[str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"on firstlight: {owner}: {', '.join(names)}" for owner, names in self.replaced.items()]
        lines += [f"as before: {name}: {why}" for name, why in self.left.items()]
        lines += [f"another result than before: {name}: {why}" for name, why in self.changed.items()]
        return "\n".join(lines) or "nothing to replace"


_ENABLED = Changes()
# By changed modeling file: the replaced names, and the reasons for those that were not replaced.
_FILES: dict[str, tuple[list[str], dict[str, str]]] = {}


def enable(model: Any = None) -> Enabled:
    """Runs all models of transformers in this process on firstlight's kernels, including those imported later. With a ``model``, also sets
    its attention and experts to ``"firstlight"``; other models need ``attn_implementation="firstlight"``. The model is not kept alive.
    Returns an ``Enabled`` for the model's modeling files, or for all imported ones."""
    if not _ENABLED.steps:
        _register_attention()
        _experts.register()
        functions = {name: function for package in _FUNCTIONS.values() for name, function in package.items()}
        _into_modeling_files(_ENABLED, functions, True, nullcontext)
        _change_configurations(_ENABLED)
    files = sorted(_FILES)
    result = Enabled()
    if model is not None:
        files = sorted({type(module).__module__ for module in model.modules()} & set(_FILES))
        _enable_model(model, result)
    for name in files:
        replaced, left = _FILES[name]
        if replaced:
            result.replaced[name.rpartition(".")[2]] = sorted(replaced)
        result.left.update(left)
    return result


def disable() -> None:
    """Undoes ``enable``."""
    _ENABLED.undo()
    _FILES.clear()
    _masks.forget()


def _configs(model: Any) -> list[Any]:
    """The configurations of a model and its submodules, without duplicates."""
    found, waiting = {}, [getattr(module, "config", None) for module in model.modules()]
    while waiting:
        config = waiting.pop()
        if config is None or id(config) in found or not hasattr(config, "_attn_implementation"):
            continue
        found[id(config)] = config
        waiting += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return list(found.values())


def _enable_model(model: Any, result: Enabled) -> None:
    configs = _configs(model)
    before = [(config, config._attn_implementation_internal) for config in configs]
    for config, implementation in before:
        if implementation != "firstlight":
            _original.remember(config, implementation)
    name = type(model).__name__
    _enable_attention(model, name, configs, before, result)
    for config in configs:
        if getattr(config, "_experts_implementation_internal", None) in ("eager", "batched_mm", "grouped_mm") and not _is_quantized(model):
            _experts.remember(config, config._experts_implementation_internal)
            _restore(config, "_experts_implementation_internal", config._experts_implementation_internal, lambda one: _experts.forget(id(one)))
            config._experts_implementation_internal = "firstlight"
    functions = {name: function for package in _FUNCTIONS.values() for name, function in package.items()}
    for module in model.modules():
        _bind_instance(module, functions)


def _enable_attention(model: Any, name: str, configs: list[Any], before: list[tuple[Any, Optional[str]]], result: Enabled) -> None:
    for module in model.modules():
        if _original.depends_on_name(type(module)):
            result.left[f"{name} attention"] = f"{type(module).__name__} computes something else for each attention's name"
            return
    try:
        model.set_attn_implementation("firstlight")
    except (ValueError, ImportError, NotImplementedError) as why:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        result.left[f"{name} attention"] = str(why)
    for config, implementation in before:
        # transformers skips submodules whose configuration is a copy of the model's.
        if model.config._attn_implementation_internal == "firstlight" and type(config) is type(model.config):
            config._attn_implementation_internal = "firstlight"
        if config._attn_implementation_internal != implementation:
            _restore(config, "_attn_implementation_internal", implementation, _original.forget)
    if any(config._attn_implementation_internal == "firstlight" for config in configs):
        result.replaced.setdefault(name, []).append("attention")
        if any(_original.implementation(config) == "sdpa" and getattr(config, "attn_logit_softcapping", None) for config in configs):
            result.changed[f"{name} attention"] = "it applies attn_logit_softcapping, as eager attention does; transformers' SDPA leaves it out"
    else:
        result.left.setdefault(f"{name} attention", "transformers does not let this model's attention be set")


def _is_quantized(model: Any) -> bool:
    return getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None


def _restore(config: Any, name: str, value: Any, forget_config: Callable[[Any], object]) -> None:
    """Registers the undo step of a change of a configuration, which is not kept alive."""
    reference = weakref.ref(config)

    def step() -> None:
        config = reference()
        if config is not None:
            setattr(config, name, value)
            forget_config(config)

    _ENABLED.steps.append(step)


def _bind_instance(module: Any, functions: dict[str, Callable[..., Any]]) -> None:
    """Replaces functions that a mixer of transformers 4, created before ``enable``, has as attributes."""
    for name, theirs in list(vars(module).items()):
        ours = functions.get(getattr(theirs, "__name__", None)) if isinstance(theirs, types.FunctionType) else None
        if ours is None or not _is_modeling(theirs.__module__) or hasattr(theirs, "_firstlight"):
            continue
        reference = weakref.ref(module)
        setattr(module, name, _instead(_ENABLED, theirs.__name__, theirs, ours))

        def step(reference: Any = reference, name: str = name, theirs: Any = theirs) -> None:
            module = reference()
            if module is not None:
                setattr(module, name, theirs)

        _ENABLED.steps.append(step)


def _change_configurations(changes: Changes) -> None:
    """Pickles configurations with the original implementations, which exist in processes without firstlight. Restores copies of
    configurations, which submodules have, like their originals. Adds the id of a configuration as a property."""
    from transformers import PretrainedConfig

    def __getstate__(self: Any) -> dict[str, Any]:
        state = dict(vars(self))
        if state.get("_attn_implementation_internal") == "firstlight":
            state["_attn_implementation_internal"] = _original.implementation(self)
        if state.get("_experts_implementation_internal") == "firstlight":
            state["_experts_implementation_internal"] = _experts.implementation(self)
        return state

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Any:
        found = memo[id(self)] = type(self).__new__(type(self))
        vars(found).update({name: copy.deepcopy(value, memo) for name, value in vars(self).items()})
        if getattr(self, "_attn_implementation_internal", None) == "firstlight":
            before = _original.implementation(self)
            _original.remember(found, before)
            _restore(found, "_attn_implementation_internal", before, _original.forget)
        return found

    changes.set(PretrainedConfig, "__getstate__", __getstate__)
    changes.set(PretrainedConfig, "__deepcopy__", __deepcopy__)
    changes.set(PretrainedConfig, "_firstlight_key", property(id))


def rebind(packages: list[str], hidden: Callable[[], ContextManager[None]]) -> Changes:
    """Replaces functions of packages in modeling files, for ``firstlight.patch``. Modeling files imported later are executed within
    ``hidden``, so that they define their fallbacks as without the packages. Returns the changes."""
    changes = Changes()
    functions = {name: function for package in packages for name, function in _FUNCTIONS.get(package, {}).items()}
    _into_modeling_files(changes, functions, False, hidden)
    return changes


def _into_modeling_files(
    changes: Changes, functions: dict[str, Callable[..., Any]], classes: bool, during: Callable[[], ContextManager[None]]
) -> None:
    def work(module: Any) -> None:
        left: dict[str, str] = {}
        replaced = _patch(changes, module, functions, left)
        if classes:
            _patch_classes(changes, module, replaced, left)
            _FILES[module.__name__] = replaced, left

    finder = _AfterImport(work, during)
    sys.meta_path.insert(0, finder)
    changes.steps.append(finder.leave)
    for name, module in list(sys.modules.items()):
        if _is_modeling(name) and module is not None:
            work(module)


def _is_modeling(name: str) -> bool:
    return name.startswith("transformers.models.") and ".modeling_" in name


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``work`` on each modeling file after its import by another finder, which runs within ``during``."""

    def __init__(self, work: Callable[[Any], None], during: Callable[[], ContextManager[None]]) -> None:
        self.work, self.during = work, during
        self.looking: set[str] = set()
        self.left = False

    def leave(self) -> None:
        sys.meta_path.remove(self)
        self.left = True

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
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

        def exec_module(module: Any) -> None:
            del spec.loader.exec_module
            if self.left:
                run(module)
                return
            with self.during():
                run(module)
            self.work(module)

        spec.loader.exec_module = exec_module
        return spec


def _classes(module: Any) -> list[tuple[str, Any]]:
    return [(name, cls) for name, cls in list(vars(module).items()) if inspect.isclass(cls) and cls.__module__ == module.__name__]


def _patch(changes: Changes, module: Any, functions: dict[str, Callable[..., Any]], left: dict[str, str]) -> list[str]:
    """Replaces functions of a modeling file and returns their names. Adds mixers that are not replaced to ``left``, with the reason."""
    replaced: list[str] = []
    for name, ours in functions.items():
        theirs = getattr(module, name, None)
        if callable(theirs):
            changes.set(module, name, _instead(changes, name, theirs, ours))
            replaced.append(name)
    mixers = [(name, cls) for name, cls in _classes(module) if _has_fast_path(cls)]
    if mixers and all(name in functions and getattr(module, name, None) is None for name in _FAST_PATH):
        for name in _FAST_PATH:
            changes.set(module, name, _counted(name, functions[name]))
        for name, cls in mixers:
            if not _has_one_formula(cls):
                left[name] = "its code without kernels limits the time steps otherwise than its code with them"
                continue
            changes.set(cls, "forward", _mixer(name, cls))
            replaced.append(name)
    return replaced


def _has_fast_path(cls: Any) -> bool:
    """Whether a class has a code path that calls these functions, and another without them."""
    fast = getattr(cls, "cuda_kernels_forward", None)
    return hasattr(cls, "torch_forward") and fast is not None and set(_FAST_PATH) <= set(inspect.unwrap(fast).__code__.co_names)


def _has_one_formula(cls: Any) -> bool:
    """Whether both code paths of a mixer read the same limits of time steps."""
    limits = [{one for one in inspect.unwrap(code).__code__.co_names if one.startswith("time_step")} for code in (cls.cuda_kernels_forward, cls.torch_forward)]
    return limits[0] == limits[1]


def _patch_classes(changes: Changes, module: Any, replaced: list[str], left: dict[str, str]) -> None:
    for name, cls in _classes(module):
        if _norms.is_norm(name):
            why = _norms.patch(changes, name, cls)
            if why is None:
                replaced.append(name)
            elif "RMSNorm" in name:
                left[name] = why
        elif name.endswith(("Mixer", "GatedDeltaNet")) and hasattr(cls, "slow_forward"):
            changes.set(cls, "slow_forward", _counted_as_before(name, cls.slow_forward))
            left[name] = _SLOW
    for name, cls in _experts.blocks(dict(_classes(module))):
        changes.set(cls, "forward", functools.wraps(cls.forward)(_experts.forward_of(name, cls.forward)))
        replaced.append(name)
    replaceable = any(hasattr(cls, "_apply_gate") for _, cls in _classes(module))
    for name, cls in _classes(module):
        if name.endswith(("Experts", "MoE", "Moe", "MoeBlock")) and not replaceable and name not in replaced:
            left[name] = "its experts are not transformers' replaceable ones"


_SLOW = "its scan is part of the module and not a function that can be replaced"


def _counted_as_before(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fell(name, _SLOW)
        return theirs(*args, **kwargs)

    return wrapped


def _counted(name: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(ours)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found = ours(*args, **kwargs)
        ran(name)
        return found

    return wrapped


def _mixer(name: str, cls: Any) -> Callable[..., Any]:
    """A ``forward`` for a mixer of transformers 4 that runs its code path for packages' functions, which usually requires a GPU. It falls
    back to the original ``forward`` if a function of firstlight refuses."""
    theirs = cls.forward
    on_gpu_only = "cuda" in inspect.unwrap(cls.cuda_kernels_forward).__code__.co_names
    taken = [key for key in inspect.signature(cls.cuda_kernels_forward).parameters if key not in ("self", "hidden_states")]
    signature = inspect.signature(theirs)

    @functools.wraps(theirs)
    def forward(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, hidden_states, *args, **kwargs).arguments
        given = {**given, **given.get("kwargs", {})}
        advanced = RAN["causal_conv1d_update"]
        try:
            if self.training:
                raise NotImplementedError("training")
            if on_gpu_only and not hidden_states.is_cuda:
                raise NotImplementedError("its code for kernels asks for a GPU")
            return self.cuda_kernels_forward(hidden_states, **{key: given[key] for key in taken if key in given})
        except (Refused, NotImplementedError) as why:
            if RAN["causal_conv1d_update"] != advanced:
                # The convolution's state has been updated, so the fallback would process the token twice.
                raise
            fell(name, str(why))
        return theirs(self, hidden_states, *args, **kwargs)

    return forward


def _instead(changes: Changes, name: str, theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Calls ``ours``, and ``theirs`` if ours refuses or does not take a keyword that is set."""
    taken = parameters(ours)
    only_theirs = parameters(theirs) - taken

    @functools.wraps(theirs)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        # A model that was created while enabled keeps this function after `disable`.
        if not changes.active:
            return theirs(*args, **kwargs)
        try:
            found = ours(*args, **known(kwargs, taken, only_theirs))
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return theirs(*args, **kwargs)
        ran(name)
        return found

    wrapped._firstlight = True  # type: ignore[attr-defined]
    return wrapped


def _register_attention() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register("firstlight", attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("firstlight", _masks.mask)
