"""Trains small models of transformers with and without firstlight's kernels, and compares the losses: ``python learning.py [STEPS]``.

The text is the documentation of Python's statements (``pydoc_data``), a token for each byte. It prints a line for each model and ends with 1 if one fails.
"""

import copy
import sys
from pydoc_data import topics

import cases
import torch
import transformers
from cases import check

import firstlight
import firstlight.transformers

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
TEXT = torch.tensor(list("\n".join(topics.topics.values()).encode()[:200_000]))
COMMON = {"vocab_size": 256, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
MAMBA = {"chunk_size": 32, "n_groups": 1, "expand": 2}
MODELS = {
    "mamba2": lambda: transformers.Mamba2Config(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_heads=4, head_dim=32, state_size=32, **MAMBA
    ),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(
        intermediate_size=96,
        shared_intermediate_size=96,
        num_hidden_layers=3,
        layer_types=["mamba", "attention", "mamba"],
        num_local_experts=0,
        num_experts_per_tok=0,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_state=32,
        **{f"mamba_{name}": value for name, value in MAMBA.items()},
        **COMMON,
    ),
    "qwen3_next": lambda: transformers.Qwen3NextConfig(
        intermediate_size=96,
        num_hidden_layers=4,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        **COMMON,
    ),
}
# The gradients that a step of each model computes by the library, and how often.
CALLS = {
    "mamba2": {"ssd_backward": 2, "conv1d_backward": 2},
    "granitemoehybrid": {"ssd_backward": 2, "conv1d_backward": 2, "attention_backward": 1},
    "qwen3_next": {"gated_delta_backward": 3, "conv1d_backward": 3, "attention_backward": 1},
}


def losses(model):
    """The losses of all steps, on the same text in each call."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator, found = torch.Generator().manual_seed(1), []
    model.train()
    for _ in range(STEPS):
        starts = torch.randint(0, len(TEXT) - 65, (4,), generator=generator)
        ids = torch.stack([TEXT[start : start + 64] for start in starts])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


def main():
    for name, config in MODELS.items():
        torch.manual_seed(0)
        plain = transformers.AutoModelForCausalLM.from_config(config())
        ours = copy.deepcopy(plain)
        wanted = losses(plain)
        before = dict(firstlight.status()["calls"])
        firstlight.transformers.enable(ours)
        found = losses(ours)
        firstlight.transformers.disable()
        after = firstlight.status()["calls"]
        calls = {op: after.get(op, 0) - before.get(op, 0) for op in CALLS[name]}
        apart = (found - wanted).abs().max().item()
        learned = found[-1] < found[0] - 0.5
        fine = apart <= 1e-4 * wanted.abs().max() and learned
        check(f"{name} learns as without", fine, f"{found[0]:.4f} to {found[-1]:.4f}, apart by {apart:.1e}")
        check(f"{name}'s gradients are the library's", calls == {op: count * STEPS for op, count in CALLS[name].items()}, calls)
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
