"""The attention that a model of transformers would run without firstlight, and which arguments it reads."""

import dis
import inspect
import sys
import weakref
from functools import lru_cache

# The original attention of each enabled model, by the id of its configuration, which is not hashable.
_ORIGINALS = {}


def remember(config, implementation):
    """Records a model's original attention."""
    key = id(config)
    _ORIGINALS[key] = weakref.ref(config, lambda _: _ORIGINALS.pop(key, None)), implementation


def forget(config):
    """Drops what ``remember`` recorded."""
    _ORIGINALS.pop(id(config), None)


def implementation(config):
    """``"sdpa"`` or ``"eager"``: the original attention, or for a model created with ``attn_implementation="firstlight"`` the default of
    transformers."""
    return _implementation(_key(config), config.__class__.__module__)


def _key(config):
    """The id of a configuration, from a property that ``enable`` adds, because torch.compile of 2.6 cannot trace ``id`` of it."""
    return getattr(config, "_firstlight_key", 0)


def _implementation(key, module):
    found = _ORIGINALS.get(key, (None, None))[1]
    return found if found in ("sdpa", "eager") else "sdpa" if _supports(module, "_supports_sdpa") else "eager"


@lru_cache(maxsize=None)
def _supports(module, flag):
    """Whether all models of a configuration's modeling file set this flag."""
    modeling = sys.modules.get(module.replace(".configuration_", ".modeling_"))
    classes = [value for value in vars(modeling).values() if isinstance(value, type)] if modeling is not None else []
    flags = [getattr(cls, flag) for cls in classes if cls.__module__ == modeling.__name__ and hasattr(cls, flag)]
    return bool(flags) and all(flags)


def passes_masks_through(config):
    """Whether a model passes masks to attention without reading them. Models with flash attention do, because its masks have no query
    dimension."""
    return config is not None and _flag(config.__class__.__module__, "_supports_flash_attn")


def _flag(module, name):
    return _supports(module, name)


def mask(config, given):
    """The mask that transformers would create for the original attention."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    return ALL_MASK_ATTENTION_FUNCTIONS[implementation(config)](**given)


def attention(module):
    """The original attention function of a module, and whether it is the eager one of its modeling file."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    cls, config = type(module), getattr(module, "config", None)
    eager_module = _eager_module(cls.__module__, cls.__name__)
    if eager_module is not None and config is not None and implementation(config) == "eager":
        return sys.modules[eager_module].eager_attention_forward, True
    return sdpa_attention_forward, False


def _eager_module(module, name):
    return _eager_of(module, name)


@lru_cache(maxsize=None)
def _eager_of(module, name):
    """The name of the modeling file that has the eager attention of a class."""
    cls = getattr(sys.modules.get(module), name, None)
    for base in getattr(cls, "__mro__", ()):
        if hasattr(sys.modules.get(base.__module__), "eager_attention_forward"):
            return base.__module__
    return None


def reads(module, name):
    """Whether the original attention, eager or SDPA, can read a keyword."""
    return _reads(type(module).__module__, type(module).__name__, name)


def _reads(module, cls, name):
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    eager_module = _eager_module(module, cls)
    eager = _names(sys.modules[eager_module].eager_attention_forward) if eager_module else ()
    return name in _names(sdpa_attention_forward) or name in eager or "**" in eager


def attributes(module):
    """Attributes of the module that its eager attention reads, except those that all attention modules have."""
    return _attributes_of(type(module).__module__, type(module).__name__)


def _attributes_of(module, cls):
    eager_module = _eager_module(module, cls)
    return _attributes(sys.modules[eager_module].eager_attention_forward) if eager_module else ()


# torch.compile runs these while tracing and treats the results as constants, because their arguments are constant.
for _function in (_flag, _implementation, _eager_module, _reads, _attributes_of):
    _function._dynamo_marked_constant = True


def _code(function):
    """The code of a function without its decorators, or None."""
    return getattr(inspect.unwrap(function), "__code__", None)


@lru_cache(maxsize=None)
def _names(function):
    """A function's parameter names and string constants, and ``"**"`` if it passes its keyword arguments on."""
    code = _code(function)
    count = code.co_argcount + code.co_kwonlyargcount
    names = set(code.co_varnames[:count]) | {value for value in code.co_consts if isinstance(value, str)}
    if code.co_flags & 8:
        keywords = code.co_varnames[count + bool(code.co_flags & 4)]
        steps = list(dis.get_instructions(code))
        for step, following in zip(steps, steps[1:]):
            if step.opname.startswith("LOAD_FAST") and step.argval == keywords and following.opname in ("DICT_MERGE", "CALL_FUNCTION_EX"):
                names.add("**")
    return frozenset(names)


@lru_cache(maxsize=None)
def depends_on_name(cls):
    """Whether the forward pass of an attention module branches on the name of the attention implementation, as sparse attention does."""
    code = _code(getattr(cls, "forward", None))
    if code is None or "ALL_ATTENTION_FUNCTIONS" not in code.co_names or "_attn_implementation" not in code.co_names:
        return False
    texts = [value for const in code.co_consts for value in (const if isinstance(const, (tuple, frozenset)) else (const,))]
    return any(isinstance(value, str) and value == "sdpa" for value in texts)


_COMMON_ATTRIBUTES = {"num_key_value_groups", "training", "is_causal", "scaling", "config", "head_dim", "layer_idx", "dropout", "attention_dropout"}


@lru_cache(maxsize=None)
def _attributes(function):
    code = _code(function)
    if not code.co_argcount:
        return ()
    first, found, steps = code.co_varnames[0], [], list(dis.get_instructions(code))
    for step, following in zip(steps, steps[1:]):
        if step.opname.startswith("LOAD_FAST") and step.argval == first and following.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found.append(following.argval)
    return tuple(name for name in dict.fromkeys(found) if name not in _COMMON_ATTRIBUTES)
