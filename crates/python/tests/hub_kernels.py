"""Tests firstlight's layers in Hugging Face's ``kernels`` package, without a network: ``python hub_kernels.py PAGE``.

Tests ``use_kernels`` of transformers, ``kernelize`` of other modules, this package's folder as a local kernel, and the programs in the
book's PAGE whose comment names this file. Requires the version of ``kernels`` that transformers requires. Prints a line per case and exits
with status 1 if one fails.
"""

import os
import socket
import sys
import tempfile
import warnings

import cases
import page
import torch
import transformers
from cases import check

import firstlight.kernels
import firstlight.transformers as ours

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "sweep"))
from tiny import VOCABULARY, classes, make  # noqa: E402

import kernels  # noqa: E402
from kernels import Mode  # noqa: E402

CLASSES = classes()
# Models of transformers, and which functions of each must run on firstlight.
MODELS = {
    "LlamaForCausalLM": ["LlamaRMSNorm"],
    "GraniteMoeHybridForCausalLM": ["GraniteMoeHybridRMSNorm", "causal_conv1d_fn", "causal_conv1d_update", "mamba_chunk_scan_combined", "selective_state_update"],
    "MambaForCausalLM": ["causal_conv1d_fn", "causal_conv1d_update", "selective_scan_fn", "selective_state_update"],
    "Qwen3NextForCausalLM": ["Qwen3NextRMSNormGated", "causal_conv1d_fn", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"],
    "Qwen3_5ForCausalLM": ["Qwen3_5RMSNorm", "Qwen3_5RMSNormGated", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"],
    "KimiLinearForCausalLM": ["KimiLinearRMSNorm", "KimiLinearRMSNormGated", "chunk_kda", "fused_recurrent_kda"],
}


def refuse_network(*_):
    raise OSError("this test must not use the network")


socket.socket.connect = refuse_network


def ids(tokens=19):
    return torch.randint(3, VOCABULARY, (2, tokens), generator=torch.Generator().manual_seed(2))


def error(found, wanted):
    return ((found - wanted).norm() / wanted.norm()).item()


@torch.no_grad()
def outputs(model):
    logits = model(input_ids=ids(), use_cache=False).logits
    return logits, model.generate(ids(), max_new_tokens=5, min_new_tokens=5, do_sample=False, pad_token_id=0)


def gradients(model):
    model.train()
    model.zero_grad()
    torch.manual_seed(4)  # for dropout
    model(input_ids=ids(), use_cache=False).logits.sin().sum().backward()
    model.eval()
    return torch.cat([value.grad.flatten() for value in model.parameters() if value.grad is not None])


def models():
    for name, wanted in MODELS.items():
        model = make(name, CLASSES[name]).eval()
        logits, text = outputs(model)
        ours.forget()
        model.set_use_kernels(True, firstlight.kernels.config())
        found, generated = outputs(model)
        report = ours.report()
        missing = [layer for layer in wanted if not report["firstlight"].get(layer)]
        check(f"{name} with use_kernels", error(found, logits) < 1e-4 and torch.equal(generated, text), error(found, logits))
        check(f"  runs on firstlight: {', '.join(wanted)}", not missing, (missing, report))


def training():
    """In training, layers with gradients are replaced."""
    mixers = ("causal_conv1d_fn", "mamba_chunk_scan_combined")
    for name, wanted in (("LlamaForCausalLM", ("LlamaRMSNorm",)), ("GraniteMoeHybridForCausalLM", mixers)):
        model = make(name, CLASSES[name]).eval()
        before = gradients(model)
        model.train()
        ours.forget()
        model.set_use_kernels(True, firstlight.kernels.config())
        found = gradients(model)
        report = ours.report()
        fine = error(found, before) < 1e-3 and all(report["firstlight"].get(layer) for layer in wanted)
        check(f"gradients of {name} with use_kernels", fine, (error(found, before), report))


def saved():
    """A model loaded by ``from_pretrained`` with ``use_kernels``."""
    model = make("LlamaForCausalLM", CLASSES["LlamaForCausalLM"]).eval()
    logits, _ = outputs(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours.forget()
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, use_kernels=True, kernel_config=firstlight.kernels.config()).eval()
    found, _ = outputs(model)
    check("from_pretrained with use_kernels", error(found, logits) < 1e-4 and ours.report()["firstlight"].get("LlamaRMSNorm"), ours.report())


@kernels.use_kernel_forward_from_hub("RMSNorm")
class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.randn(32)), 1e-5

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


@kernels.use_kernel_forward_from_hub("RMSNorm")
class Halved(Norm):
    def forward(self, x):
        return 0.5 * super().forward(x)


def other_modules():
    x = torch.randn(3, 32)
    for source in ("mapping", "register", "local"):
        model = torch.nn.Sequential(Norm(), Halved())
        with torch.no_grad():
            wanted = model(x)
            ours.forget()
            if source == "mapping":
                with kernels.use_kernel_mapping(firstlight.kernels.mapping(), inherit_mapping=False):
                    kernels.kernelize(model, mode=Mode.INFERENCE, device="cpu")
            elif source == "register":
                with kernels.use_kernel_mapping({}, inherit_mapping=False):
                    firstlight.kernels.register()
                    kernels.kernelize(model, mode=Mode.INFERENCE, device="cpu")
            else:
                layer = kernels.LocalLayerRepository(firstlight.kernels.PATH, layer_name="RMSNorm")
                with kernels.use_kernel_mapping({"RMSNorm": {"cpu": layer}}, inherit_mapping=False):
                    kernels.kernelize(model, mode=Mode.INFERENCE, device="cpu")
            found, report = model(x), ours.report()
        fine = error(found, wanted) < 1e-5 and report["firstlight"] == {"Norm": 1}
        check(f"kernelize by {source}", fine, (error(found, wanted), report))
        check("  a layer with another formula is not replaced", any(why.startswith("Halved: its formula") for why in report["as_before"]), report)


def layers():
    """Every layer passes the checks of ``kernels``: no constructor, no members, and known modes."""
    for name in firstlight.kernels.layers.NAMES:
        layer = getattr(firstlight.kernels.layers, name)
        members = {one for one in dir(layer)} - set(dir(torch.nn.Module))
        fine = issubclass(layer, torch.nn.Module) and layer.__init__ is torch.nn.Module.__init__
        check(f"layer {name}", fine and members <= {"can_torch_compile", "has_backward"}, members)
    try:
        firstlight.kernels.layers.Nothing
        found = "nothing was raised"
    except AttributeError as why:
        found = str(why)
    check("a missing layer raises AttributeError", "no attribute 'Nothing'" in found, found)


def enabled():
    """``enable`` together with ``kernels``, which makes functions of transformers modules."""
    for name in MODELS:
        model = make(name, CLASSES[name]).eval()
        before = outputs(model)
        ours.forget()
        ours.enable(model)
        found, report = outputs(model), ours.report()
        ours.disable()
        again = outputs(model)
        same = all(torch.equal(one, other) for one, other in zip(before, again))
        fine = error(found[0], before[0]) < 1e-4 and torch.equal(found[1], before[1]) and same
        check(f"{name} after enable and disable", fine and report["firstlight"].get("attention", 1) > 0, (error(found[0], before[0]), same, report))


def documented():
    """The programs of the page, with a small model instead of the published one."""
    programs = page.programs_of(sys.argv[1], "hub_kernels.py")
    check("the page has programs with kernels", programs)
    with tempfile.TemporaryDirectory() as folder:
        page.drawn(folder)
        for program in programs:
            ours.forget()
            found = {}
            exec(compile(program.replace(page.PUBLISHED, folder), "program", "exec"), found)
            with torch.no_grad():
                found["model"](input_ids=ids())
            ran = ours.report()["firstlight"]
            check(f"  {program.splitlines()[0]} ..", ran.get("GraniteMoeHybridRMSNorm") and ran.get("mamba_chunk_scan_combined"), ran)


def main():
    # `kernelize` changes functions of transformers for the whole process, so tests of unchanged functions run first.
    for part in (layers, enabled, other_modules, models, training, saved, documented):
        try:
            part()
        except Exception as why:  # an unexpected exception fails the part
            check(part.__name__, False, f"{type(why).__name__}: {why}")
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
