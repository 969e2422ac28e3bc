import sys
import sysconfig
from importlib import metadata


def say(label, value):
    print(label, str(value).replace("\n", " "), sep="\t")


def version(*names):
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "not installed"


say("sys.prefix", sys.prefix)
say("sys.executable", sys.executable)
say("site-packages", sysconfig.get_path("purelib"))
say("python", sys.version.split()[0])
say("torch", version("torch"))
if version("torch") != "not installed":
    try:
        import torch
    except Exception as error:
        say("torch failed", f"{type(error).__name__}: {error}")
    else:
        say("cuda", torch.version.cuda)
        here = torch.cuda.is_available()
        say("CUDA available", f"True, {torch.cuda.get_device_name(0)}" if here else "False")
else:
    say("cuda", "none: torch is not installed")
say("triton", version("triton", "pytorch-triton"))
say("flash_attn", version("flash-attn"))
