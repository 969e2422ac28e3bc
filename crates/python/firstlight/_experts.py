"""Routed experts for models of transformers: one ``ops.moe`` call for routing and all experts."""

import inspect
import sys
from functools import lru_cache

from . import ops
from ._counts import fell, ran
from ._library import Refused

# Source lines of a block, its router and its experts, without white space. Classes that contain all of them compute what ``ops.moe`` does.
_BLOCK = (
    "_,topk_weights,topk_indices=self.gate(hidden_states)",
    "hidden_states=self.experts(hidden_states,topk_indices,topk_weights).view(*orig_shape)",
    "hidden_states=hidden_states+self.shared_experts(residuals)returnhidden_states",
)
_ROUTER = (
    "router_logits=F.linear(hidden_states.type(torch.float32),self.weight.type(torch.float32))scores=router_logits.sigmoid()",
    "scores_for_choice=scores+self.e_score_correction_bias",
    "topk_weights=scores.gather(1,topk_indices)",
    "ifself.norm_topk_prob:denominator=topk_weights.sum(dim=-1,keepdim=True)+1e-20topk_weights/=denominator",
    "topk_weights=topk_weights*self.routed_scaling_factor",
)
_EXPERTS = (
    "gate,up=nn.functional.linear(current_state,self.gate_up_proj[expert_idx]).chunk(2,dim=-1)",
    "current_hidden_states=self.act_fn(gate)*upcurrent_hidden_states=nn.functional.linear(current_hidden_states,self.down_proj[expert_idx])",
)


def blocks(classes):
    """The supported MoE blocks among the classes of a modeling file, ``{name: class}``."""
    for name, cls in classes.items():
        family = name.removesuffix("MoE")
        router, experts = classes.get(family + "TopkRouter"), classes.get(family + "Experts")
        if family != name and router and experts and _says(cls, _BLOCK) and _says(router, _ROUTER) and _says(experts, _EXPERTS):
            yield name, cls


def _says(cls, lines):
    try:
        text = "".join(inspect.getsource(inspect.unwrap(cls.forward)).split())
    except (OSError, TypeError):
        return False
    return all(line in text for line in lines)


def forward_of(name, theirs):
    """A ``forward`` for a block by ``ops.moe``, which falls back to the original if that refuses."""

    def forward(self, hidden_states):
        try:
            found = _routed(self.gate, self.experts, hidden_states)
        except (Refused, NotImplementedError, TypeError) as why:
            fell(name, str(why))
            return theirs(self, hidden_states)
        ran(name)
        return found + self.shared_experts(hidden_states)

    return forward


def _routed(gate, experts, hidden_states):
    import torch

    if gate.num_group != 1:
        raise NotImplementedError(f"experts in {gate.num_group} groups")
    if type(experts.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        raise NotImplementedError(f"experts with {type(experts.act_fn).__name__}")
    # Hooks that read router logits or move weights would not run, because this call bypasses both modules.
    if any(one._forward_hooks or one._forward_pre_hooks or "forward" in one.__dict__ for one in (gate, experts)):
        raise NotImplementedError("hooks of a router or of experts")
    x = hidden_states.view(-1, hidden_states.shape[-1])
    found = ops.moe(
        x,
        torch.nn.functional.linear(x.float(), gate.weight.float()),
        experts.gate_up_proj,
        experts.down_proj,
        top_k=gate.top_k,
        score="sigmoid",
        renormalise=bool(gate.norm_topk_prob),
        weight_scale=gate.routed_scaling_factor,
        correction=gate.e_score_correction_bias.float(),
    )
    return found.view(hidden_states.shape)


def register():
    """Registers experts named ``"firstlight"`` with transformers 5. Returns whether its registry exists."""
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:
        return False
    ALL_EXPERTS_FUNCTIONS.register("firstlight", experts)
    return True


# The original experts implementation of each enabled model, by the id of its configuration.
_BEFORE = {}


def remember(config, implementation):
    """Records a model's original experts implementation."""
    _BEFORE[id(config)] = implementation


def forget(config_id):
    """Drops what ``remember`` recorded."""
    _BEFORE.pop(config_id, None)


def implementation(config):
    """The original experts implementation."""
    return _BEFORE.get(id(config)) or "grouped_mm"


def experts(self, hidden_states, top_k_index, top_k_weights):
    """Experts with the signature of transformers, with the chosen experts and weights of each token. Falls back to the original
    implementation if ``ops.moe`` refuses."""
    name = type(self).__name__
    try:
        found = _chosen(self, hidden_states, top_k_index, top_k_weights)
    except (Refused, NotImplementedError, TypeError) as why:
        fell(name, str(why))
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        function = ALL_EXPERTS_FUNCTIONS.get_interface(implementation(self.config), inspect.unwrap(type(self).forward))
        return function(self, hidden_states, top_k_index, top_k_weights)
    ran(name)
    return found


# Flags of transformers' experts, with the values that `ops.moe` supports.
_FLAGS = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}


@lru_cache(maxsize=None)
def _flags(module, name):
    """The flags of experts with the values that `ops.moe` supports. Unknown flags of newer releases of transformers, such as
    `has_post_expert_norm`, must not be set."""
    init = getattr(sys.modules[module], name).__init__
    codes = [getattr(one, "__code__", None) for one in (init, inspect.unwrap(init))]
    names = {one for code in codes if code is not None for one in code.co_names}
    return tuple({**{one: False for one in sorted(names) if one.startswith(("has_", "is_"))}, **_FLAGS}.items())


# torch.compile runs this while tracing and treats the result as a constant.
_flags._dynamo_marked_constant = True


def _chosen(self, hidden_states, top_k_index, top_k_weights):
    import torch

    for flag, wanted in _flags(type(self).__module__, type(self).__name__):
        if getattr(self, flag, wanted) is not wanted:
            raise NotImplementedError(f"experts with `{flag}` {not wanted}")
    if type(self)._apply_gate.__module__ != "transformers.integrations.moe":
        raise NotImplementedError("experts with a gate of their own")
    if type(self.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        raise NotImplementedError(f"experts with {type(self.act_fn).__name__}")
    count = self.gate_up_proj.shape[0]
    if count != self.num_experts:
        raise NotImplementedError("experts spread over ranks")
    x = hidden_states.reshape(-1, hidden_states.shape[-1])
    # `ops.moe` selects experts by logits. The logarithms of the weights select the same experts, with weights that sum to 1.
    weights = top_k_weights.reshape(x.shape[0], -1).float()
    total = weights.sum(-1, keepdim=True)
    logits = torch.full((x.shape[0], count), -1e30, dtype=torch.float32, device=x.device)
    logits.scatter_(1, top_k_index.reshape(x.shape[0], -1), weights.clamp(min=1e-30).log())
    found = ops.moe(x, logits, self.gate_up_proj, self.down_proj, top_k=weights.shape[1], score="softmax_of_chosen")
    return (found * total.to(found.dtype)).reshape(hidden_states.shape)
