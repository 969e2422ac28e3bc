"""Reads the releases of a table from PyPI and prints the updated table.

usage: pypi.py TABLE [--only PACKAGE]... [--sample N] [--date YYYY-MM-DD]

TABLE has the packages and releases to read; newer releases are added. Requirements come from the METADATA inside the wheel, read by
range requests: the registry's JSON has those of the first uploaded file.
"""

import argparse
import concurrent.futures
import html
import io
import json
import re
import sys
import tarfile
import tomllib
import urllib.parse
import urllib.request
import zipfile

INDEX = "https://pypi.org/simple/"
# Packages whose versions must agree within one environment; the resolver handles other requirements.
SHARED = (
    "torch torchvision torchaudio triton nvidia-cuda-runtime-cu12 cuda-toolkit xformers flashinfer-python fla-core "
    "apache-tvm-ffi tilelang quack-kernels transformers tokenizers huggingface-hub numpy einops"
).split()
# Tags of wheels for plans: CPython 3.10 and newer with the GIL, on Linux and on Apple silicon.
PYTHON = re.compile(r"^(cp31\d|cp3\d|py3|py39|py2)(\.|$)")
PLATFORM = re.compile(r"^(any|manylinux.*_(x86_64|aarch64)|macosx_.*_(arm64|universal2))$")


class Remote(io.RawIOBase):
    """A remote file, read by HTTP range requests."""

    def __init__(self, url):
        self.url, self.at = url, 0
        request = urllib.request.Request(url, headers={"Range": "bytes=0-0"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status != 206:
                raise OSError(f"{url} is not served by ranges")
            self.size = int(answer.headers["Content-Range"].split("/")[1])

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, into):
        count = min(len(into), self.size - self.at)
        if count <= 0:
            return 0
        headers = {"Range": f"bytes={self.at}-{self.at + count - 1}"}
        request = urllib.request.Request(self.url, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = answer.read()
        into[: len(data)] = data
        self.at += len(data)
        return len(data)


def order(version):
    """A key that sorts final and post releases as PEP 440 does; `None` for a pre-release."""
    read = re.fullmatch(r"(\d+(?:\.\d+)*)(?:\.post(\d+))?", version)
    return read and ([int(part) for part in read[1].split(".")], int(read[2] or -1))


def listing(package):
    """Name, address and SHA-256 of every file of a package on the index that is not yanked."""
    page = urllib.parse.urljoin(INDEX, package + "/")
    with urllib.request.urlopen(page, timeout=60) as answer:
        text = answer.read().decode()
    found = []
    for link, attributes, name in re.findall(r'<a href="([^"]+)"([^>]*)>([^<]+)</a>', text):
        address, _, fragment = html.unescape(link).partition("#")
        sha256 = fragment.removeprefix("sha256=")
        if "data-yanked" not in attributes:
            found.append((name, urllib.parse.urljoin(page, address), sha256))
    return found


def version_of(package, name):
    """The version in a file name."""
    spelt = r"[-_.]+".join(re.escape(part) for part in re.split(r"[-_.]+", package))
    read = re.match(rf"(?i){spelt}-([^-]+?)(?:-.*\.whl|\.tar\.gz|\.zip)$", name)
    return read and read[1]


def kept(name):
    """Whether plans can use a file: an sdist, or a wheel with a supported tag."""
    if not name.endswith(".whl"):
        return name.endswith((".tar.gz", ".zip"))
    python, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    if not PYTHON.match(python) or (re.fullmatch(r"cp3\d", python) and abi != "abi3"):
        return False
    return not abi.endswith("t") and any(PLATFORM.match(tag) for tag in platform.split("."))


def metadata(name, address):
    """The METADATA of a wheel, or the PKG-INFO of a source distribution."""
    if name.endswith(".whl"):
        archive = zipfile.ZipFile(io.BufferedReader(Remote(address), 1 << 16))
        inner = [entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA")]
        return archive.read(inner[0]).decode(errors="replace")
    with urllib.request.urlopen(address, timeout=120) as answer:
        archive = tarfile.open(fileobj=io.BytesIO(answer.read()))
    inner = [entry for entry in archive.getnames() if re.fullmatch(r"[^/]+/PKG-INFO", entry)]
    return archive.extractfile(inner[0]).read().decode(errors="replace")


def size(address):
    request = urllib.request.Request(address, method="HEAD")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return int(answer.headers["Content-Length"])


def release(package, version, files):
    """One row of the table."""
    files = sorted(file for file in files if kept(file[0]))
    wheels = [file for file in files if file[0].endswith(".whl")]
    # Reads the wheel for x86-64 Linux, whose markers cover other platforms.
    first = sorted(wheels, key=lambda file: ("manylinux" not in file[0] or "x86_64" not in file[0], file[0]))
    name, address, _ = (first or files)[0]
    text = metadata(name, address)
    python = re.search(r"^Requires-Python: (.*)$", text, re.M)
    requires = []
    for line in re.findall(r"^Requires-Dist: (.*)$", text, re.M):
        wanted = re.match(r"[A-Za-z0-9._-]+", line)[0].lower().replace("_", "-")
        # A package without wheels is locked without building it, so all its requirements are listed.
        if (wanted in SHARED or not wheels) and "extra ==" not in line and "extra==" not in line:
            requires.append(re.sub(r"\s*\(([^)]*)\)", r"\1", line).replace(" ;", ";").strip())
    rows = [f"{name} {size(address)} {sha256}" for name, address, sha256 in files]
    return {
        "package": package,
        "version": version,
        "python": python[1].strip() if python else "",
        "requires": requires,
        "files": rows,
    }


def written(rows, date):
    """The table as TOML; a JSON string is a TOML string too."""
    out = [
        "# What PyPI has of the packages that plans are made of. Regenerated by `cargo xtask facts`: do not edit by hand.",
        "#",
        "# A file is its name, its size in bytes and its SHA-256. Files for other platforms, for free-threaded Pythons and for",
        "# Pythons older than 3.10 are left out, and so are requirements on packages that only one of these needs.",
        "",
        "[source.pypi]",
        'what = "PyPI: its index, and METADATA inside the wheels"',
        f"date = {json.dumps(date)}",
    ]
    for row in rows:
        out += ["", "[[release]]"]
        out += [f"{key} = {json.dumps(row[key])}" for key in ("package", "version", "python")]
        for key in ("requires", "files"):
            lines = [f"  {json.dumps(line)}," for line in row[key]]
            out += [f"{key} = [", *lines, "]"] if lines else [f"{key} = []"]
        out.append('source = "pypi"')
    return "\n".join(out) + "\n"


def main():
    read = argparse.ArgumentParser()
    read.add_argument("table")
    read.add_argument("--only", action="append", default=[])
    read.add_argument("--sample", type=int, default=0)
    read.add_argument("--date")
    arguments = read.parse_args()
    with open(arguments.table, "rb") as file:
        table = tomllib.load(file)
    have = {}
    for row in table["release"]:
        have.setdefault(row["package"], {})[row["version"]] = row
    chosen = [package for package in have if not arguments.only or package in arguments.only]
    with concurrent.futures.ThreadPoolExecutor(8) as workers:
        indexes = dict(zip(chosen, workers.map(listing, chosen)))
        wanted = []
        for package in chosen:
            by_version = {}
            for file in indexes[package]:
                by_version.setdefault(version_of(package, file[0]), []).append(file)
            newest = max(order(version) for version in have[package])
            newer = [v for v in by_version if v and order(v) and order(v) > newest]
            if arguments.sample:
                # Reads the same rows each time and adds no new releases, so that only wrong rows fail.
                newer = []
            for version in sorted([*have[package], *newer], key=order):
                wanted.append((package, version, by_version.get(version, [])))
        if arguments.sample:
            # Evenly spread over the table.
            step = max(1, len(wanted) // arguments.sample)
            wanted = wanted[step - 1 :: step]
        gone = [f"{package} {version}" for package, version, files in wanted if not files]
        if gone:
            sys.exit(f"no longer on PyPI: {', '.join(gone)}")
        rows = list(workers.map(lambda row: release(*row), wanted))
    sys.stdout.write(written(rows, arguments.date or table["source"]["pypi"]["date"]))


main()
