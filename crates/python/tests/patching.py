"""Tests ``firstlight.patch()``, ``python -m firstlight run`` and ``python -m firstlight shim``: what they replace, and that undoing is complete.

``python patching.py``, with torch and transformers. It prints a line for each case and ends with 1 if one fails. Each case is a process.
Most are forks of this one, which has imported the slowest imports of transformers, but neither transformers nor firstlight.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
import traceback

import cases
import huggingface_hub  # noqa: F401
import torch._dynamo  # noqa: F401
import torch.distributed.tensor  # noqa: F401
import torch.fx.experimental.symbolic_shapes  # noqa: F401

# A small model's logits, by transformers with or without the replacements of the case.
MODEL = """
import warnings; warnings.filterwarnings("ignore")
import sys, torch, transformers
def model():
    torch.manual_seed(5)
    config = transformers.BambaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=64, mamba_d_state=128, mamba_n_groups=1, mamba_chunk_size=64,
        vocab_size=200, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 73)[None]).logits
def near(found, wanted):
    return (found - wanted).norm() < 1e-5 * wanted.norm()
"""
STATE = """
import importlib, importlib.metadata, sys
from transformers.utils import import_utils
def state():
    '''All that a patch may touch.'''
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("flash_attn", "causal_conv1d", "mamba_ssm", "fla")}
    modeling = {name: dict(vars(module)) for name, module in sys.modules.items() if ".modeling_" in name}
    classes = {cls: dict(vars(cls)) for one in modeling.values() for cls in one.values() if isinstance(cls, type)}
    table = dict(getattr(import_utils, "PACKAGE_DISTRIBUTION_MAPPING", {}))
    asked = {name: getattr(import_utils, name)() for name in
             ("is_flash_attn_2_available", "is_causal_conv1d_available", "is_mamba_2_ssm_available")}
    versions = {}
    for name in ("flash_attn", "flash-attn", "causal-conv1d", "mamba_ssm", "flash-linear-attention"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    import transformers.modeling_flash_attention_utils as flash
    return modules, list(sys.meta_path), list(sys.path), modeling, classes, table, asked, versions, dict(vars(flash))
"""


def forked(program, path, paths):
    """The output and exit code of a program in a fork of this process, with these folders first on its path."""
    with tempfile.TemporaryFile("w+") as said:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                os.environ["PYTHONPATH"] = paths
                sys.path[:0] = path
                sys.argv = ["-c"]
                exec(compile(program, "<case>", "exec"), {"__name__": "__main__"})
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return said.read(), code


def case(name, program, words=(), arguments=("-c",), path=(), wrong=False):
    """Runs a program, which must succeed (or fail, with ``wrong``) and print these words."""
    paths = os.pathsep.join([*path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    if arguments == ("-c",):
        said, code = forked(textwrap.dedent(program), path, paths)
    else:
        command = [sys.executable, *arguments, *([program] if program else [])]
        ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        said, code = ran.stdout + ran.stderr, ran.returncode
    missing = [word for word in words if word not in said]
    fine = (code != 0) == wrong and not missing
    cases.check(name, fine)
    if not fine:
        print(textwrap.indent(f"ended with {code}, missing {missing}\n" + said[-3000:], "     "))


def patches():
    case(
        "patch leaves no trace, around models imported before and within",
        MODEL
        + STATE
        + textwrap.dedent("""
        from transformers.models.llama import modeling_llama
        import firstlight, firstlight.transformers
        exact = model() if {before} else None
        before = state()
        with firstlight.patch() as patched:
            assert patched.names == ["flash_attn", "causal_conv1d", "mamba_ssm", "fla"] and not patched.kept
            during = state()
            assert during[7] == {{"flash_attn": "2.8.3+firstlight", "flash-attn": "2.8.3+firstlight", "causal-conv1d": "1.5.2+firstlight",
                "mamba_ssm": "2.2.6+firstlight", "flash-linear-attention": "0.2.1+firstlight"}}, during[7]
            import flash_attn, flash_attn.bert_padding, mamba_ssm, fla
            from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
            assert mamba_chunk_scan_combined is firstlight.compat.mamba_ssm.mamba_chunk_scan_combined
            assert flash_attn.__spec__.origin == "firstlight.patch('flash_attn')" and flash_attn.__spec__.name == "flash_attn"
            assert flash_attn.__version__ == "2.8.3+firstlight"
            ours = logits(model())
            ran = firstlight.transformers.report()["firstlight"]
            assert any("chunk_scan" in name for name in ran) and ran["causal_conv1d_fn"] == 2, ran
            assert not any("Norm" in name or name == "attention" for name in ran), ran
        after = state()
        names = ["modules", "meta_path", "path", "modeling", "classes", "table", "asked", "versions", "flash"]
        for name, one, other in zip(names, before, after):
            if name in ("modeling", "classes"):
                other = {{key: value for key, value in other.items() if key in one}}
            assert one == other, (name, [(k, one[k], other.get(k)) for k in one if one[k] != other.get(k)] if isinstance(one, dict) else other)
        for module in after[3].values():
            for value in module.values():
                assert not getattr(value, "__module__", "").startswith("firstlight"), value
        firstlight.transformers.forget()
        plain = logits(model())
        assert not firstlight.transformers.report()["firstlight"]
        assert near(ours, plain) and not torch.equal(ours, plain)
        """).format(before=True),
    )
    case(
        "patch before transformers is imported, undone by a call",
        """
        import sys, firstlight
        patched = firstlight.patch("causal_conv1d")
        assert patched.names == ["causal_conv1d"]
        import causal_conv1d
        """
        + textwrap.indent(MODEL, "        ")
        + """
        import firstlight.transformers
        m = model()
        ours = logits(m)
        ran = firstlight.transformers.report()["firstlight"]
        patched.undo(); patched.undo()
        assert "causal_conv1d" not in sys.modules
        from transformers.utils import import_utils
        assert "causal_conv1d" not in getattr(import_utils, "PACKAGE_DISTRIBUTION_MAPPING", {})
        plain = logits(m)
        # transformers 4 takes its fast path with all functions or none.
        wanted = {"causal_conv1d_fn"} if transformers.__version__ >= "5" else set()
        assert set(ran) == wanted, ran
        assert firstlight.transformers.report()["firstlight"] == ran and near(ours, plain)
        """,
    )
    case(
        "an unknown package is refused with a reason",
        """
        import firstlight
        firstlight.patch("xformers")
        """,
        ["has shims for flash_attn, causal_conv1d, mamba_ssm, fla, not for `xformers`"],
        wrong=True,
    )
    case(
        "a keyword is not dropped",
        MODEL
        + textwrap.dedent("""
        import firstlight, inspect
        x, w = torch.randn(1, 8, 20), torch.randn(8, 4)
        with firstlight.patch():
            import causal_conv1d
            names = inspect.signature(causal_conv1d.causal_conv1d_fn).parameters
            assert "activation" in names and not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in names.values())
            run = causal_conv1d.causal_conv1d_fn
            if transformers.__version__ >= "5":
                from transformers.integrations import use_kernel_func_from_hub_with_fallback as decorate
                # As a modeling file of someone else has it: what the signature does not name is dropped before the call.
                @decorate("causal_conv1d_fn", "causal_conv1d")
                def causal_conv1d_fn(x, weight, bias=None, activation=None, seq_idx=None):
                    raise AssertionError("its own code ran")
                run = causal_conv1d_fn
            found = run(x, w, None, activation="silu")
        wanted = torch.nn.functional.conv1d(torch.nn.functional.pad(x, (3, 0)), w[:, None], groups=8)
        assert near(found, torch.nn.functional.silu(wanted)) and not near(found, wanted)
        """),
    )
    case(
        "bert_padding takes padding away and brings it back",
        """
        import torch
        from firstlight.compat.bert_padding import index_first_axis, pad_input, unpad_input
        x = torch.randn(3, 7, 2, 4, requires_grad=True)
        mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1] * 7, [1, 0, 0, 0, 0, 0, 0]])
        rows, indices, ends, longest, used = unpad_input(x, mask)
        assert torch.equal(rows, x[mask.bool()]) and torch.equal(index_first_axis(x.flatten(0, 1), indices), rows)
        assert ends.tolist() == [0, 5, 12, 13] and ends.dtype == torch.int32 and longest == 7 and used.tolist() == [5, 7, 1]
        back = pad_input(rows, indices, 3, 7)
        assert torch.equal(back, x * mask[..., None, None])
        back.sum().backward()
        assert torch.equal(x.grad, mask[..., None, None].expand_as(x).float())
        """,
    )


def with_real_package(folder):
    """An installed package is not replaced without force."""
    os.makedirs(os.path.join(folder, "causal_conv1d"))
    with open(os.path.join(folder, "causal_conv1d", "__init__.py"), "w") as file:
        file.write("causal_conv1d_fn = 'theirs'\n")
    case(
        "an installed package wins, unless forced",
        """
        import sys, firstlight
        import causal_conv1d
        theirs = causal_conv1d
        with firstlight.patch() as patched:
            assert "causal_conv1d" in patched.kept and "causal_conv1d" not in patched.names, patched.kept
            import causal_conv1d
            assert causal_conv1d.causal_conv1d_fn == "theirs"
        with firstlight.patch("causal_conv1d", force=True) as patched:
            import causal_conv1d
            assert callable(causal_conv1d.causal_conv1d_fn)
        assert sys.modules["causal_conv1d"] is theirs
        """,
        path=[folder],
    )
    case("shim leaves it out", os.path.join(folder, "out"), ["causal_conv1d is installed", "PYTHONPATH="], ("-m", "firstlight", "shim"), [folder])
    present = sorted(name.split("-")[0] for name in os.listdir(os.path.join(folder, "out")) if not name.endswith(".dist-info"))
    cases.check("it writes the others", present == ["fla", "flash_attn", "mamba_ssm"], present)


def commands(folder):
    script = os.path.join(folder, "script.py")
    with open(script, "w") as file:
        file.write(
            MODEL
            + textwrap.dedent("""
            import importlib.metadata
            from helper import answer
            assert answer == 42 and sys.argv[1:] == ["--flag", "value"] and __name__ == "__main__", sys.argv
            print("flash", importlib.metadata.version("flash_attn"), logits(model()).shape[1])
            """)
        )
    with open(os.path.join(folder, "helper.py"), "w") as file:
        file.write("answer = 42\n")
    words = ["flash 2.8.3+firstlight 70", "'causal_conv1d_fn': 2", "as before: nothing"]
    case("run", "", words, ("-m", "firstlight", "run", "--report", script, "--flag", "value"))
    case("run without a script", "", ["there is no nothing.py"], ("-m", "firstlight", "run", "nothing.py"), wrong=True)
    run_models(folder)
    shim = os.path.join(folder, "shim")
    case("shim", shim, ["for flash_attn, causal_conv1d, mamba_ssm, fla"], ("-m", "firstlight", "shim"))
    case("shim again, over itself", shim, ["for flash_attn, causal_conv1d, mamba_ssm, fla"], ("-m", "firstlight", "shim"), [shim])
    case(
        "a shim on the path",
        MODEL
        + textwrap.dedent(f"""
        import importlib.metadata, importlib.util, firstlight
        from importlib.metadata import version
        assert version("flash_attn") == version("flash-attn") == "2.8.3+firstlight"
        assert [str(f) for f in importlib.metadata.files("causal-conv1d")] and importlib.util.find_spec("fla.ops.kda")
        from flash_attn.bert_padding import pad_input, unpad_input
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined
        import causal_conv1d
        assert causal_conv1d.__file__.startswith({shim!r}) and causal_conv1d.__version__ == "1.5.2+firstlight"
        found = logits(model())
        if transformers.__version__ >= "5":
            assert firstlight.status(-1)["calls"] == {{"conv1d": 2, "ssd": 2}}, firstlight.status(-1)
        torch.save(found, {os.path.join(folder, "found.pt")!r})
        """),
        path=[shim],
    )
    case(
        "and without it",
        MODEL
        + textwrap.dedent(f"""
        assert near(torch.load({os.path.join(folder, "found.pt")!r}), logits(model()))
        """),
    )


def run_models(folder):
    """``run`` with a model is a command of the program."""
    from firstlight.__main__ import _is_script, _target

    model, package = os.path.join(folder, "my-model"), os.path.join(folder, "package")
    for path in (model, package):
        os.mkdir(path)
    gguf, main = os.path.join(folder, "model.gguf"), os.path.join(package, "__main__.py")
    for path, content in ((gguf, b"GGUF\x03"), (main, b""), (os.path.join(folder, "tool"), b"#!/usr/bin/env python\n")):
        with open(path, "wb") as file:
            file.write(content)
    scripts = {model: False, gguf: False, "org/name": False, "-p": False, package: True, os.path.join(folder, "tool"): True, "nothing.py": True}
    found = {path: _is_script(path) for path in scripts}
    cases.check("what run takes for a script", found == scripts, found)
    lines = (["--only", "fla", "--report", "x.py"], ["--only=fla", "--force", "m", "-p", "hi"], ["-p", "hi", "m"], ["--report"])
    cases.check("the target of run", [_target(line) for line in lines] == ["x.py", "m", "-p", None])


def main():
    patches()
    with tempfile.TemporaryDirectory() as folder:
        with_real_package(folder)
    with tempfile.TemporaryDirectory() as folder:
        commands(folder)
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
