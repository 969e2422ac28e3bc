"""firstlight's harness: runs kernels of an installed Python stack and reports which kernels ran.

usage: python -I -B harness.py ADAPTERS [DIR]...: ADAPTERS is the folder with the adapters; each DIR is searched for packages
before the environment's own. Requests are JSON lines on standard input, responses JSON lines on standard output. Both streams
are duplicated before other imports, and all output of libraries goes to standard error.

Requires only Python 3.8. Tensors are torch tensors if torch can be imported, otherwise memoryviews.
"""

import json
import os
import sys
import time

# Saved before a package can replace them.
clock = time.perf_counter
requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
nothing = os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
os.dup2(2, 1)
sys.stdout = sys.stderr

import importlib
import importlib.util
import mmap
import struct
import warnings


class NotApplicable(Exception):
    """The peer does not support this call, for the reason given; not a failure of its kernel."""


class NotInstalled(Exception):
    """The environment does not have the peer's package."""


class Broken(Exception):
    """The peer's package is installed and cannot be loaded."""


def reason_of(error):
    return "%s: %s" % (type(error).__name__, first_line(error))


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else "no message")[:300]


def reason_of_warning(warning):
    """The text of a warning without torch's source location; None for warnings about backends that were not requested."""
    text = first_line(warning.message).partition(" (Triggered internally")[0].strip()
    return None if "runtime disabled" in text or text.endswith("because:") else text


def package(name):
    """A module of the environment under test."""
    try:
        return importlib.import_module(name)
    except (NotApplicable, NotInstalled, Broken):
        raise
    except BaseException as error:
        # An import can raise anything, SystemExit included.
        if isinstance(error, (KeyboardInterrupt, MemoryError)):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            raise NotInstalled(reason_of(error))
        raise Broken(reason_of(error)) from error


def is_installed(name):
    """Whether the environment has a top-level module, without importing it."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:
        # A module that was imported without a spec.
        return True


def version(name):
    """Name and version of a distribution in the environment."""
    from importlib import metadata

    try:
        return "%s %s" % (name, metadata.version(name))
    except metadata.PackageNotFoundError:
        found = getattr(sys.modules.get(name), "__version__", None)
        return "%s %s" % (name, found) if found else name


torch, no_torch = None, ""


def find_torch():
    global torch, no_torch
    try:
        torch = importlib.import_module("torch")
    except BaseException as error:
        no_torch = "torch cannot be imported: " + reason_of(error)


