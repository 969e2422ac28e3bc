"""``python -m firstlight``: runs scripts that import firstlight under other packages' names, and the commands of the program.

``run script.py`` and ``shim DIR`` are implemented here. All other commands (``doctor``, ``check``, ``serve``, ``run MODEL``, ``--version``)
run the program that the wheel installs.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from typing import NoReturn, Optional, Sequence

from . import _shims


def program() -> Optional[str]:
    """The path of the program: where its wheel installed it, in this Python's scripts folder, or on PATH."""
    from importlib.metadata import PackageNotFoundError, files

    try:
        recorded = [str(file.locate()) for file in files("firstlight") or () if file.name == "firstlight" and "firstlight" not in file.parts[:-1]]
    except PackageNotFoundError:
        recorded = []
    schemes = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    candidates = [*recorded, *(os.path.join(folder, "firstlight") for folder in schemes if folder)]
    for candidate in candidates:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return os.path.abspath(candidate)
    return shutil.which("firstlight")


def _run_program(arguments: Sequence[str]) -> NoReturn:
    """Replaces this process with the program."""
    path = program()
    if path is None:
        sys.exit("firstlight: the program is not installed next to this Python\nhint: install the wheel, or put `firstlight` on PATH")
    command = [path, *arguments]
    if os.name != "posix":
        sys.exit(subprocess.run(command).returncode)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(path, command)


def _target(words: Sequence[str]) -> Optional[str]:
    """The first argument after ``run`` that is no option of this module: a script, a model, or an option of the program."""
    rest = iter(words)
    for word in rest:
        if word == "--only":
            next(rest, None)
        elif word not in ("--force", "--report") and not word.startswith("--only="):
            return word
    return None


def _is_script(path: str) -> bool:
    """Whether ``run`` runs this as Python: by its name, as a folder with a ``__main__.py``, or as a file that is no GGUF model."""
    if path.endswith((".py", ".pyc", ".pyw", ".pyz")):
        return True
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, "__main__.py"))
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) != b"GGUF"


def _run(arguments: argparse.Namespace) -> None:
    """Runs a script like ``python script.py``, with firstlight under the packages' names."""
    from ._patch import patch

    if not os.path.exists(arguments.script):
        sys.exit(f"firstlight: there is no {arguments.script}")
    sys.argv = [arguments.script, *arguments.arguments]
    with patch(*arguments.only, force=arguments.force) as patched:
        for name, where in patched.kept.items():
            print(f"firstlight: {name} is installed ({where}) and stays; --force replaces it by firstlight", file=sys.stderr)
        # Like Python, put the script's folder first on the path.
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
        try:
            runpy.run_path(arguments.script, run_name="__main__")
        finally:
            if arguments.report:
                _report()


def _report() -> None:
    from .transformers import report

    for title, counts in report().items():
        print(f"firstlight: {title.replace('_', ' ')}: {counts or 'nothing'}", file=sys.stderr)


def _shim(arguments: argparse.Namespace) -> None:
    """Writes the shim packages into a folder for PYTHONPATH."""
    packages = _shims.chosen(arguments.only)
    folder = os.path.abspath(arguments.folder)
    if not arguments.force:
        found = {package.name: _shims.there(package.name) for package in packages}
        kept = []
        for package in packages:
            where = found[package.name]
            if where is None or where.startswith(folder + os.sep):
                kept.append(package)
            else:
                print(f"firstlight: {package.name} is installed ({where}) and is left out; --force writes it too", file=sys.stderr)
        packages = kept
    files = _shims.write(folder, packages)
    print(f"{len(files)} files for {', '.join(package.name for package in packages) or 'no package'} in {folder}")
    print(f"PYTHONPATH={folder} puts them in place; remove the folder and they are gone")


def _parser() -> argparse.ArgumentParser:
    about = "firstlight under the names of other packages; any other command is that of the program: doctor, check, plan, serve, ..."
    parser = argparse.ArgumentParser(prog="python -m firstlight", description=about)
    commands = parser.add_subparsers(required=True, metavar="run | shim | COMMAND")
    run = commands.add_parser("run", help="run a script with firstlight.patch(); what is no Python file is a model for the program")
    shim = commands.add_parser("shim", help="write packages for PYTHONPATH")
    for command in (run, shim):
        command.add_argument("--force", action="store_true", help="also replace packages that are installed")
        only = "only this one; may be repeated"
        command.add_argument("--only", action="append", default=[], metavar="PACKAGE", choices=_shims.PACKAGES, help=only)
    run.add_argument("--report", action="store_true", help="at the end, which calls of models ran on firstlight, to standard error")
    run.add_argument("script")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    run.set_defaults(work=_run)
    shim.add_argument("folder")
    shim.set_defaults(work=_shim)
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Runs a command line; the default is this process's arguments."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in ("run", "shim", "-h", "--help"):
        _run_program(words)
    if words and words[0] == "run":
        target = _target(words[1:])
        if target is not None and target not in ("-h", "--help") and not _is_script(target):
            _run_program(words)
    given = _parser().parse_args(words)
    given.work(given)


if __name__ == "__main__":
    main()
