"""Tests the documentation of the package: ``python documented.py``, on any Python.

Every public function has a docstring; those of the ops document shapes, types, gradients and sources. ``ops.pyi`` has the parameters of
``ops.py``. ``python -m firstlight`` runs the program. It ends with 1 if a case fails.
"""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile

import cases
from cases import check

import firstlight
from firstlight import ops



def public(module):
    """The public functions and classes of a module."""
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            yield f"{module.__name__}.{name}", value


def docstrings():
    names = ["firstlight", "firstlight.ops", "firstlight.quantization", "firstlight.transformers", "firstlight._types", "firstlight._status"]
    names += ["firstlight.kernels", "firstlight.kernels.layers"]
    names += [f"firstlight.compat.{name}" for name in ("bert_padding", "causal_conv1d", "fla", "flash_attn", "mamba_ssm")]
    # None of these modules imports `transformers`; their functions import it when they are called.
    bare = [name for module in map(importlib.import_module, names) for name, value in public(module) if not (value.__doc__ or "").strip()]
    check("every public function has a docstring", not bare, bare)
    wanted = {"a shape": r"``\[", "types": r"\bTypes: ", "gradients": r"Gradients: ", "a source": r"Sources?: "}
    for name in ops.__all__:
        text = " ".join(getattr(ops, name).__doc__.split())
        check(f"ops.{name} says what it takes", all(re.search(one, text) for one in wanted.values()), [what for what, one in wanted.items() if not re.search(one, text)])
        function, arguments = getattr(ops, name), inspect.signature(getattr(ops, name)).parameters
        required = [one for one in arguments if arguments[one].default is inspect.Parameter.empty]
        missing = [one for one in required if not re.search(rf"\b{one}\b", function.__doc__)]
        check(f"ops.{name} names its arguments", not missing, missing)


def stubs():
    path = os.path.join(os.path.dirname(ops.__file__), "ops.pyi")
    with open(path) as file:
        tree = ast.parse(file.read())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            given = node.args
            parameters = [(one.arg, "positional") for one in given.args] + [(one.arg, "keyword") for one in given.kwonlyargs]
            found.setdefault(node.name, []).append(parameters)
    check("the stub has every op", sorted(found) == sorted(ops.__all__), sorted(set(found) ^ set(ops.__all__)))
    kinds = {inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional", inspect.Parameter.KEYWORD_ONLY: "keyword"}
    for name in ops.__all__:
        wanted = [(one.name, kinds[one.kind]) for one in inspect.signature(getattr(ops, name)).parameters.values()]
        wrong = [set(one) ^ set(wanted) or "another order" for one in found.get(name, [[]]) if one != wanted]
        check(f"the stub of ops.{name} has its parameters", not wrong, wrong)


def run(*arguments, path=None):
    environment = {**os.environ, "PATH": path or os.environ.get("PATH", "")}
    return subprocess.run([sys.executable, "-m", "firstlight", *arguments], capture_output=True, text=True, env=environment)


def program():
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "firstlight")
        with open(script, "w") as file:
            file.write('#!/bin/sh\necho "program: $*"\nexit 3\n')
        os.chmod(script, 0o755)
        path = folder + os.pathsep + os.environ.get("PATH", "")
        for words in (["doctor"], ["check", "--quick"], ["--version"], ["serve", "a b", "--help"]):
            ran = run(*words, path=path)
            fine = ran.returncode == 3 and ran.stdout == f"program: {' '.join(words)}\n"
            check(f"python -m firstlight {' '.join(words)}", fine, (ran.returncode, ran.stdout, ran.stderr))
        for words in (["run", "--help"], ["shim", "--help"], ["--help"]):
            ran = run(*words, path=path)
            check(f"python -m firstlight {' '.join(words)}", ran.returncode == 0 and "usage: python -m firstlight" in ran.stdout, ran.stderr)
        ran = run("doctor", path=os.path.join(folder, "nothing"))
        fine = ran.returncode == 1 and "the program is not installed" in ran.stderr and "hint: " in ran.stderr
        check("python -m firstlight without the program", fine, (ran.returncode, ran.stderr))


def main():
    docstrings()
    stubs()
    program()
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
