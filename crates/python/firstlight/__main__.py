"""``python -m firstlight run script.py`` and ``python -m firstlight shim DIR``."""

import argparse
import os
import runpy
import sys

from . import _shims


def _run(arguments):
    """Runs a script in the place of ``python script.py``, with firstlight under the packages' names."""
    from ._patch import patch

    if not os.path.exists(arguments.script):
        sys.exit(f"firstlight: there is no {arguments.script}")
    sys.argv = [arguments.script, *arguments.arguments]
    with patch(*arguments.only, force=arguments.force) as patched:
        for name, where in patched.kept.items():
            print(f"firstlight: {name} is installed ({where}) and stays; --force puts firstlight in its place", file=sys.stderr)
        # The script's folder is the first on its path, as Python has it.
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments.script)))
        try:
            runpy.run_path(arguments.script, run_name="__main__")
        finally:
            if arguments.report:
                _report()


def _report():
    from .transformers import report

    for title, counts in report().items():
        print(f"firstlight: {title.replace('_', ' ')}: {counts or 'nothing'}", file=sys.stderr)


def _shim(arguments):
    """Writes the packages into a folder for PYTHONPATH."""
    packages = _shims.chosen(arguments.only)
    folder = os.path.abspath(arguments.folder)
    if not arguments.force:
        found = {package.name: _shims.there(package.name) for package in packages}
        for name, where in found.items():
            if where is not None and not where.startswith(folder + os.sep):
                print(f"firstlight: {name} is installed ({where}) and is left out; --force writes it too", file=sys.stderr)
        packages = [package for package in packages if found[package.name] is None or found[package.name].startswith(folder + os.sep)]
    files = _shims.write(folder, packages)
    print(f"{len(files)} files for {', '.join(package.name for package in packages) or 'no package'} in {folder}")
    print(f"PYTHONPATH={folder} puts them in place; remove the folder and they are gone")


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m firstlight", description="firstlight under the names of other packages")
    commands = parser.add_subparsers(required=True, metavar="run | shim")
    run = commands.add_parser("run", help="run a script with firstlight.patch()")
    shim = commands.add_parser("shim", help="write packages for PYTHONPATH")
    for command in (run, shim):
        command.add_argument("--force", action="store_true", help="also in the place of packages that are installed")
        about = "only this one; may be repeated"
        command.add_argument("--only", action="append", default=[], metavar="PACKAGE", choices=_shims.PACKAGES, help=about)
    run.add_argument("--report", action="store_true", help="at the end, which calls of models ran on firstlight, to standard error")
    run.add_argument("script")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    run.set_defaults(work=_run)
    shim.add_argument("folder")
    shim.set_defaults(work=_shim)
    given = parser.parse_args(arguments)
    given.work(given)


if __name__ == "__main__":
    main()
