import platform

import pytest


def _machine():
    """The architecture. Its name differs between systems: arm64 on macOS is aarch64 on Linux."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "aarch64": "arm64"}.get(name, name)


def _has(backend):
    """Whether torch is installed and finds a device of this backend."""
    try:
        import torch
    except ImportError:
        return False
    if backend == "cuda":
        return torch.cuda.is_available()
    return torch.backends.mps.is_available()


def _is(machine):
    return None if _machine() == machine else f"needs {machine}, this is {_machine()}"


def _reaches(*backends):
    if any(_has(backend) for backend in backends):
        return None
    return f"needs {' or '.join(backends)}, torch finds none here"


# Marker: its description, and a function that returns the reason to skip, or None.
MARKERS = {
    "arm64_cuda": ("64-bit Arm with CUDA", lambda: _is("arm64") or _reaches("cuda")),
    "arm64_mps": ("64-bit Arm with Metal", lambda: _is("arm64") or _reaches("mps")),
    "x86_64": ("x86-64", lambda: _is("x86_64")),
    "requires_gpu": ("a GPU with CUDA or Metal", lambda: _reaches("cuda", "mps")),
    "requires_cuda": ("a GPU with CUDA", lambda: _reaches("cuda")),
    "requires_mps": ("a GPU with Metal", lambda: _reaches("mps")),
}


def pytest_configure(config):
    for name, (about, _) in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: runs only on {about}")


def pytest_runtest_setup(item):
    for name, (_, why_not) in MARKERS.items():
        if item.get_closest_marker(name) and (reason := why_not()):
            pytest.skip(reason)
