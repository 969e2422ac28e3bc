"""Imports modules of installed packages, each in a separate process, and prints the results as JSON lines.

Standard input is one JSON object:
  packages  names of distributions whose top-level modules are imported; null for all
  modules   additional modules, by name
  seconds   time limit of one import
  total     time limit of all imports; the remaining ones are not tried
  bytes     memory limit of one import
  jobs      parallel imports
Requires only Python 3.6. Run it with -I -B, so that it writes no bytecode.
"""

import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import time

SKIPPED = {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools"}


def normalise(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def records():
    """Name and RECORD paths of each installed distribution."""
    for folder in sys.path:
        if os.path.basename(folder) not in ("site-packages", "dist-packages") or not os.path.isdir(folder):
            continue
        for entry in sorted(os.listdir(folder)):
            if not entry.endswith(".dist-info") or entry.startswith("~"):
                continue
            try:
                with open(os.path.join(folder, entry, "RECORD"), errors="replace") as record:
                    paths = [line.rsplit(",", 2)[0].strip('"') for line in record]
            except OSError:
                continue
            yield normalise(entry[: -len(".dist-info")].split("-")[0]), paths


def modules(paths):
    """The names that users import: top-level modules, and those directly below a namespace package."""
    packages = {path[: -len("/__init__.py")] for path in paths if path.endswith("/__init__.py")}
    found = set()
    for path in packages:
        parts = path.split("/")
        if len(parts) == 1 or (len(parts) == 2 and parts[0] not in packages):
            found.add(".".join(parts))
    for path in paths:
        if "/" not in path and path.endswith((".py", ".so")):
            found.add(path.split(".")[0])
    plain = {name for name in found if all(part.isidentifier() for part in name.split("."))}
    return sorted(name for name in plain if not name.startswith("_") and name.split(".")[-1] not in SKIPPED)


def namespaces(paths):
    """Namespace packages: folders with files below them for which no distribution has an __init__.py."""
    folders = {path.rsplit("/", 1)[0] for path in paths if "/" in path and path.endswith((".py", ".so"))}
    above = {"/".join(folder.split("/")[:count]) for folder in folders for count in range(1, folder.count("/") + 2)}
    whole = {path[: -len("/__init__.py")] for path in paths if path.endswith("/__init__.py")}
    return {folder.replace("/", ".") for folder in above - whole}


def limited(asked):
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (int(asked["seconds"]) * 4 + 5,) * 2)
    if hasattr(resource, "RLIMIT_DATA"):
        resource.setrlimit(resource.RLIMIT_DATA, (asked["bytes"],) * 2)


def child(module, asked, answer):
    """Imports one module and writes the error, or nothing if it succeeded."""
    limited(asked)
    # The result has a separate pipe, because modules print when they are imported.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    said = ""
    try:
        __import__(module)
        # A folder without its __init__.py is imported as an empty namespace package.
        if getattr(sys.modules[module], "__file__", None) is None and module not in asked["namespaces"]:
            said = "ImportError: its __init__.py is gone"
    except BaseException as error:  # SystemExit and KeyboardInterrupt are failed imports too.
        said = "%s: %s" % (type(error).__name__, error)
    os.write(answer, said.encode("utf-8", "replace")[:60000])
    os._exit(1 if said else 0)


class Import:
    def __init__(self, package, module, asked):
        self.package, self.module, self.asked = package, module, asked
        self.began = time.monotonic()
        self.pipe, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            child(module, asked, answer)
        os.close(answer)
        self.said = b""

    def ended(self):
        """The result line; None while the import runs."""
        while select.select([self.pipe], [], [], 0)[0]:
            part = os.read(self.pipe, 65536)
            if not part:
                break
            self.said += part
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        late = time.monotonic() - self.began > self.asked["seconds"]
        if pid == 0 and not late:
            return None
        error = self.said.decode("utf-8", "replace")
        if pid == 0:
            self.kill()
            error = "it did not end within %g s" % self.asked["seconds"]
        elif os.WIFSIGNALED(status):
            error = "it ended by signal %d" % os.WTERMSIG(status)
        elif os.WEXITSTATUS(status) and not error:
            error = "it ended with status %d" % os.WEXITSTATUS(status)
        # Ends the processes that it started.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass
        os.close(self.pipe)
        return self.line(error or None)

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def line(self, error):
        seconds = round(time.monotonic() - self.began, 3)
        return {"package": self.package, "module": self.module, "error": error, "seconds": seconds}


def main():
    asked = json.load(sys.stdin)
    wanted = None if asked.get("packages") is None else {normalise(name) for name in asked["packages"]}
    pending = [("", module) for module in asked.get("modules", [])]
    listed = []
    for package, paths in records():
        listed += paths
        if wanted is None or package in wanted:
            pending += [(package, module) for module in modules(paths)]
    asked["namespaces"] = namespaces(listed)
    seen = set()
    pending = [pair for pair in pending if not (pair[1] in seen or seen.add(pair[1]))]
    home = tempfile.mkdtemp(prefix="imports-")
    os.chdir(home)
    os.environ.update(HOME=home, XDG_CACHE_HOME=home, CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
    end = time.monotonic() + asked["total"]
    running, left = [], 0
    while pending or running:
        while pending and len(running) < asked["jobs"]:
            if time.monotonic() > end:
                left, pending = len(pending), []
                break
            running.append(Import(*pending.pop(0), asked=asked))
        still = []
        for one in running:
            line = one.ended()
            if line is None:
                still.append(one)
            else:
                print(json.dumps(line), flush=True)
        if len(still) == len(running):
            time.sleep(0.005)
        running = still
    print(json.dumps({"left": left}), flush=True)
    import shutil

    shutil.rmtree(home, ignore_errors=True)


main()
