"""Compares small models of transformers with and without firstlight's kernels: logits and ids, plain, padded and generating.

``python models.py [cpu] [cuda]``. It prints a line for each case and ends with 1 if one fails.
"""

import copy
import sys

import cases
import torch
import transformers
from cases import check
from transformers import AutoModelForCausalLM

import firstlight
import firstlight.transformers

COMMON = {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **COMMON
    ),
    "granitemoehybrid": lambda: transformers.GraniteMoeHybridConfig(
        hidden_size=256,
        intermediate_size=256,
        shared_intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=["mamba", "attention", "mamba"],
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_chunk_size=64,
        num_local_experts=0,
        num_experts_per_tok=0,
        position_embedding_type="nope",
        **COMMON,
    ),
    "bamba": lambda: transformers.BambaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=64,
        mamba_d_state=128,
        mamba_n_groups=1,
        mamba_chunk_size=64,
        **COMMON,
    ),
    "kimi_linear": lambda: transformers.KimiLinearConfig(
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=64,
        num_hidden_layers=4,
        layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
        num_attention_heads=2,
        num_key_value_heads=2,
        kv_lora_rank=64,
        linear_num_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        **COMMON,
    ),
}
# transformers 4 does not have Kimi-Linear.
FAMILIES = [family for family in CONFIGS if family != "kimi_linear" or hasattr(transformers, "KimiLinearConfig")]
# Functions that must run on firstlight, by a part of their names, which differ between transformers 4 and 5.
SCAN = ("causal_conv1d_fn", "causal_conv1d_update", "chunk_scan", "selective_state_update")
KDA = (
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_kimi_delta_attention",
    "recurrent_kimi_delta_attention",
    "KimiLinearRMSNormGated",
    "KimiLinearMoE",
)
WANTED = {"llama": (), "granitemoehybrid": SCAN, "bamba": SCAN, "kimi_linear": KDA}
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def logits(model, **inputs):
    with torch.no_grad():
        return model(**inputs).logits.float()


def generated(model, ids, **settings):
    with torch.no_grad():
        return model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None, **settings)


def distance(found, wanted, seen):
    """Relative error of the logits of tokens that are not padding."""
    found, wanted = found.cpu()[seen], wanted.cpu()[seen]
    return ((found - wanted).norm() / wanted.norm()).item()


LENGTHS = [23, 1, 40]


def packed(family, model, ids, wanted, device, allowed):
    """Compares sequences packed into one row with each sequence alone."""
    lengths = LENGTHS
    ends = torch.tensor([0, *lengths], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
    found = logits(
        model,
        input_ids=torch.cat(ids, 1).to(device),
        position_ids=torch.cat([torch.arange(length) for length in lengths])[None].to(device),
        seq_idx=torch.cat([torch.full((length,), at, dtype=torch.int32) for at, length in enumerate(lengths)])[None].to(device),
        cu_seq_lens_q=ends,
        cu_seq_lens_k=ends,
        max_length_q=max(lengths),
        max_length_k=max(lengths),
        use_cache=False,
    )
    error = distance(found, wanted, torch.ones(1, sum(lengths), dtype=torch.bool))
    check(f"{family} {device} {str(model.dtype).removeprefix('torch.')} packed", error <= allowed, f"{error:.1e} from float64")


def static(label, model, ids, mask, wanted, padded):
    """Static caches longer than the sequence, step by step and as one compiled graph."""
    from transformers.generation.configuration_utils import CompileConfig

    room = {"cache_implementation": "static", "disable_compile": True}
    check(f"{label} static cache", torch.equal(generated(model, ids[:1], **room), wanted), "the same ids")
    found = generated(model, ids, attention_mask=mask, **room)
    check(f"{label} static cache, padded", torch.equal(found, padded), "the same ids")
    if TORCH < (2, 6):
        # An earlier torch cannot trace transformers' own models.
        return
    whole = CompileConfig(backend="aot_eager", fullgraph=True, mode=None, dynamic=False)
    whole._compile_all_devices = True
    before = firstlight.transformers.report()
    found = generated(model, ids[:1], cache_implementation="static", compile_config=whole)
    after = firstlight.transformers.report()
    # Some models of transformers 4 do not support static caches.
    graph = after["compiled"] or not getattr(model, "_can_compile_fullgraph", False)
    fine = torch.equal(found, wanted) and graph and after["as_before"] == before["as_before"]
    check(f"{label} compiled", fine, f"traced: {after['compiled']}")
    torch._dynamo.reset()


def compare(family, device, dtype):
    torch.manual_seed(5)
    exact = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32).eval()
    model = copy.deepcopy(exact).to(device, dtype)
    # The reference uses the weights rounded to the storage type.
    exact.load_state_dict({name: value.float().cpu() for name, value in model.state_dict().items()})
    # torch's grouped GEMM does not support float64; the loop over experts does.
    exact.config._experts_implementation = "eager"
    exact = exact.double()
    label = f"{family} {device} {str(dtype).removeprefix('torch.')}"
    ids = torch.randint(3, 200, (2, 70))
    mask = torch.ones_like(ids)
    mask[0, :13] = 0
    cases = {"plain": {"input_ids": ids}, "padded": {"input_ids": ids, "attention_mask": mask}}
    there = {name: {key: value.to(device) for key, value in inputs.items()} for name, inputs in cases.items()}
    before = {name: logits(model, **inputs) for name, inputs in there.items()}
    references = {name: logits(exact, **inputs) for name, inputs in cases.items()}
    wanted = generated(model, there["plain"]["input_ids"][:1])
    padded = generated(model, there["padded"]["input_ids"], attention_mask=there["padded"]["attention_mask"])
    rows = [torch.randint(3, 200, (1, length)) for length in LENGTHS]
    alone = torch.cat([logits(exact, input_ids=one) for one in rows], 1)
    firstlight.transformers.enable(model)
    try:
        for name, inputs in there.items():
            seen = cases[name].get("attention_mask", mask.new_ones(mask.shape)).bool()
            ours, theirs = (distance(found, references[name], seen) for found in (logits(model, **inputs), before[name]))
            # Compared with float64 on the CPU: within float32 rounding, or at most the error of transformers' own code.
            allowed = 1e-5 if dtype == torch.float32 else 1.1 * theirs
            check(f"{label} {name}", ours <= max(allowed, theirs), f"{ours:.1e} from float64, transformers {theirs:.1e}")
        found = generated(model, there["plain"]["input_ids"][:1])
        # 16-bit types round differently, so ties between logits may resolve differently.
        same = int((found == wanted).sum())
        fine = same == found.numel() if dtype == torch.float32 else same > 0.8 * found.numel()
        check(f"{label} generating", fine, f"{same} of {found.numel()} ids")
        # There is no float32 attention on a GPU, and no fallback for packed sequences. Kimi-Linear's mixers get no lengths.
        if family != "kimi_linear" and (device == "cpu" or dtype != torch.float32):
            packed(family, model, rows, alone, device, 1e-5 if dtype == torch.float32 else 3e-2)
        report = firstlight.transformers.report()
        print("     ran:", report["firstlight"])
        print("     as before:", report["as_before"])
        # There are no float32 kernels for attention and experts on a GPU: only these fall back, and are counted.
        narrow = device == "cuda" and dtype == torch.float32
        fell = {why for why in report["as_before"] if not (narrow and why.startswith(("attention: ", "KimiLinearMoE: ")))}
        if family == "bamba" and transformers.__version__ < "5":
            # Its own mask does not distinguish padding from another sequence.
            fell.discard("attention: an attention mask that is more than padding")
        ran = report["as_before"] if narrow else report["firstlight"]
        check(f"{label} counted", any(name.startswith("attention") for name in ran), "its attention ran")
        missed = [name for name in WANTED[family] if not any(name in one for one in report["firstlight"])]
        check(f"{label} mixers", not missed, f"not run: {missed}" if missed else "each function of its mixers ran")
        check(f"{label} all", not fell, "nothing else fell back")
        if device == "cpu":
            static(label, model, ids, mask, wanted, padded)
        if device == "cpu" and family == "llama" and TORCH >= (2, 6):
            # Without lengths, transformers derives the mask of the sequences from their positions.
            at = torch.cat([torch.arange(length) for length in LENGTHS])[None]
            found = logits(model, input_ids=torch.cat(rows, 1), position_ids=at, use_cache=False)
            error = distance(found, alone, torch.ones(1, sum(LENGTHS), dtype=torch.bool))
            check(f"{label} packed by positions", error <= 1e-5, f"{error:.1e} from float64")
    finally:
        firstlight.transformers.disable()
        firstlight.transformers.forget()
    again = logits(model, **there["plain"])
    check(f"{label} disabled", torch.equal(again, before["plain"]) and not firstlight.transformers.report()["firstlight"], "as it was")


def main(devices):
    for device in devices:
        for family in FAMILIES:
            compare(family, device, torch.float32)
            if device == "cuda":
                compare(family, device, torch.bfloat16)
    return cases.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["cpu"]))
