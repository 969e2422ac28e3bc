use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "gate-broadcast",
    title: "gates of the branches do not broadcast against the heads",
    about: "\
Native sparse attention mixes three branches (compressed, selected, sliding window) with a gate for each query head.
With grouped-query attention the gate has H heads while the branches may have the layout G groups of h heads. A gate of
the wrong shape either fails or, if one of the sizes is 1, broadcasts silently over the wrong axis: such code works
with one head or one group and fails with more.

It shows as
  RuntimeError: The size of tensor a (16) must match the size of tensor b (4) at non-singleton dimension 2
from a line that multiplies by a gate.

Reshape gate and branch to the same [B, T, G, h, 1] layout before the product, and test prefill and decode with more
than one group and more than one head per group. `firstlight verify nsa` covers these shapes.",
    links: &[
        "https://arxiv.org/abs/2502.11089",
    ],
    texts: &[
        Text::new("gate*The size of tensor a (*) must match the size of tensor b (*) at non-singleton dimension", "    out = gates[..., 0:1] * O_cmp + gates[..., 1:2] * O_sel + gates[..., 2:3] * O_win
RuntimeError: The size of tensor a (16) must match the size of tensor b (4) at non-singleton dimension 2"),
        Text::new("gate broadcasting failed", "AssertionError: gate broadcasting failed for h=4, G=2"),
    ],
    remedy: |_| vec!["firstlight verify nsa".into()],
    ..Rule::BLANK
};
