# Run by the interpreter of a new environment. Prints facts that no file has, one label and value per line. With the argument
# "torch" it also imports torch and prints the CUDA version and GPU that torch sees.
import site
import sys


def say(label, value):
    print(label, str(value).replace("\n", " "), sep="\t")


say("sys.prefix", sys.prefix)
say("sys.executable", sys.executable)
say("site-packages", site.getsitepackages()[0])
say("python", sys.version.split()[0])
if sys.argv[1:] == ["torch"]:
    try:
        import torch
    except Exception as error:
        say("torch failed", f"{type(error).__name__}: {error}")
    else:
        say("cuda", torch.version.cuda)
        available = torch.cuda.is_available()
        say("CUDA available", f"True, {torch.cuda.get_device_name(0)}" if available else "False")
