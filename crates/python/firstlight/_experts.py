"""Routed experts of models of transformers: one call for the choice of experts and for all that are chosen."""

import inspect
import sys
from functools import lru_cache

from . import ops
from ._counts import fell, ran
from ._library import Refused

# Code of a block, of its router and of its experts, without white space: what has all of it is what ``ops.moe`` computes.
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
    """Blocks of a modeling file, ``{name: class}``, with their routers and experts."""
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
    """A block's ``forward`` by ``ops.moe``, and as before where that refuses."""

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
    # Whoever listens to these two, for a router's logits or to move weights, hears nothing of a call that goes past them.
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
    """Registers experts named ``"firstlight"`` with transformers 5; gives whether it has such a registry."""
    try:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    except ImportError:
        return False
    ALL_EXPERTS_FUNCTIONS.register("firstlight", experts)
    return True


# Of each configuration of an enabled model its experts before, by identity.
_BEFORE = {}


def remember(config, implementation):
    """Records what a model's experts were before ``enable``."""
    _BEFORE[id(config)] = implementation


def forget(config_id):
    """Drops what ``remember`` recorded."""
    _BEFORE.pop(config_id, None)


def implementation(config):
    """The experts from before ``enable``."""
    return _BEFORE.get(id(config)) or "grouped_mm"


def experts(self, hidden_states, top_k_index, top_k_weights):
    """Experts as transformers calls them, with each token's choice and weights; as before where ``ops.moe`` does not take them."""
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


# Flags of transformers' experts with the values that `ops.moe` computes.
_FLAGS = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}


@lru_cache(maxsize=None)
def _flags(module, name):
    """Flags that experts have, with the values that `ops.moe` computes. A flag of a later transformers, such as `has_post_expert_norm`,
    asks for more than it computes where it is set."""
    init = getattr(sys.modules[module], name).__init__
    codes = [getattr(one, "__code__", None) for one in (init, inspect.unwrap(init))]
    names = {one for code in codes if code is not None for one in code.co_names}
    return tuple({**{one: False for one in sorted(names) if one.startswith(("has_", "is_"))}, **_FLAGS}.items())


# torch.compile runs this where it traces, and keeps the answer.
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
    # `ops.moe` chooses experts by logits: with the logarithms of the weights it makes the same choice, and weights that sum to 1.
    weights = top_k_weights.reshape(x.shape[0], -1).float()
    total = weights.sum(-1, keepdim=True)
    logits = torch.full((x.shape[0], count), -1e30, dtype=torch.float32, device=x.device)
    logits.scatter_(1, top_k_index.reshape(x.shape[0], -1), weights.clamp(min=1e-30).log())
    found = ops.moe(x, logits, self.gate_up_proj, self.down_proj, top_k=weights.shape[1], score="softmax_of_chosen")
    return (found * total.to(found.dtype)).reshape(hidden_states.shape)
