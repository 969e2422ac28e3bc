"""Tests the package's types with type checkers: ``python check.py``, with mypy, pyright and numpy.

Every public name has a known type (``pyright --verifytypes``), ``passes.py`` is clean under ``mypy --strict`` and pyright, and both find
each wrong line of ``fails.py`` and no other. It prints a line for each case and ends with 1 if one fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FAILED: list[str] = []
RAN = 0


def check(name: str, fine: bool, found: object = "") -> None:
    """Counts a case and prints its line."""
    global RAN
    RAN += 1
    print(f"{'ok  ' if fine else 'FAIL'} {name:52} {'' if fine else found}", flush=True)
    if not fine:
        FAILED.append(name)


def tool(name: str, *arguments: str) -> str:
    """The output of a type checker, which checks for this Python."""
    folder = os.path.dirname(os.path.abspath(sys.executable))
    environment = {**os.environ, "PATH": folder + os.pathsep + os.environ.get("PATH", ""), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    with tempfile.TemporaryDirectory() as empty:
        ran = subprocess.run([sys.executable, "-m", name, *arguments], capture_output=True, text=True, cwd=empty, env=environment)
    return ran.stdout + ran.stderr


def lines_of_mypy(path: Path, said: str) -> set[int]:
    """The lines of a file with mypy errors."""
    return {int(found) for found in re.findall(rf"{re.escape(path.name)}:(\d+): error", said)}


def lines_of_pyright(said: str) -> set[int]:
    """The lines with pyright errors; for an expression of several lines, its first."""
    found = json.loads(said)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}


def main() -> int:
    """Runs both checkers."""
    found = json.loads(tool("pyright", "--outputjson", "--verifytypes", "firstlight"))["typeCompleteness"]
    unknown = [one["name"] for one in found["symbols"] if one["isExported"] and not one["isTypeKnown"]]
    check("every public name has a known type", found["completenessScore"] == 1 and not unknown, (found["completenessScore"], unknown))
    modules = {module["name"] for module in found["modules"]}
    wanted = {"firstlight", "firstlight.ops", "firstlight.transformers", "firstlight.compat.flash_attn"}
    check("of every module", wanted <= modules, modules)
    passes, fails = HERE / "passes.py", HERE / "fails.py"
    wrong = {number for number, line in enumerate(fails.read_text().splitlines(), 1) if line.endswith("# error")}
    for path, lines in ((passes, set()), (fails, wrong)):
        said = tool("mypy", "--strict", "--cache-dir", os.devnull, str(path))
        check(f"mypy --strict on {path.name}", lines_of_mypy(path, said) == lines, said if not lines else lines ^ lines_of_mypy(path, said))
        said = tool("pyright", "--outputjson", str(path))
        check(f"pyright on {path.name}", lines_of_pyright(said) == lines, said if not lines else lines ^ lines_of_pyright(said))
    print(f"{RAN - len(FAILED)} passed, {len(FAILED)} failed{': ' + str(FAILED) if FAILED else ''}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
