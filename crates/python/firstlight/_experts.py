"""Routed experts of models of transformers: one call for the choice of experts and for all that are chosen."""

import inspect

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
