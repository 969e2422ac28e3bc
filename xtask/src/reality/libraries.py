"""Opens every compiled library of an environment's packages, each in a separate process, and prints JSON lines.

Argument: timeout per library in seconds. A library that does not open alone is opened after an import of its package and of torch.
"""

import ctypes
import json
import os
import signal
import sys
import sysconfig
import time


def files(root):
    for folder, _, names in os.walk(root):
        for name in sorted(names):
            path = os.path.join(folder, name)
            if (name.endswith(".so") or ".so." in name) and os.path.isfile(path):
                with open(path, "rb") as file:
                    if file.read(4) == b"\x7fELF":
                        yield path


def opened(path, modules):
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    for module in modules:
        try:
            __import__(module)
        except BaseException:
            pass
    try:
        ctypes.CDLL(path)
    except BaseException as error:
        return str(error)
    return ""


def tried(path, modules, seconds):
    pipe, answer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(answer, opened(path, modules).encode("utf-8", "replace")[:4000] or b"opened")
        os._exit(0)
    os.close(answer)
    end = time.monotonic() + seconds
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "it did not end"
        time.sleep(0.005)
    said = os.read(pipe, 4000).decode("utf-8", "replace")
    os.close(pipe)
    return None if said == "opened" else said or "it ended by a signal"


def main():
    root, seconds = sysconfig.get_path("purelib"), float(sys.argv[1])
    for path in files(root):
        inside = os.path.relpath(path, root)
        package = inside.split(os.sep)[0].split(".")[0]
        error = tried(path, [], seconds)
        if error:
            imported = [name for name in ("torch", package) if os.path.isdir(os.path.join(root, name)) and name != "nvidia"]
            error = tried(path, imported, seconds * 2)
        print(json.dumps({"library": inside, "error": error}), flush=True)


main()
