"""Fetches one source distribution into the working folder and prints its file name: INDEX PROJECT VERSION."""

import hashlib
import html
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request


def normalise(word):
    return re.sub(r"[-_.]+", "-", word).lower()


def links(page, body, kind):
    """Name, address and SHA-256 (or nothing) of each file of a project's page: PEP 691, or PEP 503."""
    if "json" in kind:
        for file in json.loads(body)["files"]:
            yield file["filename"], urllib.parse.urljoin(page, file["url"]), file["hashes"].get("sha256")
        return
    for address in re.findall(r'<a[^>]*href="([^"]+)"', body.decode()):
        address, _, fragment = urllib.parse.urljoin(page, html.unescape(address)).partition("#")
        name = urllib.parse.unquote(address.rpartition("/")[2])
        yield name, address, fragment.removeprefix("sha256=") or None


def main(index, project, version):
    page = f"{index.rstrip('/')}/{normalise(project)}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    request = urllib.request.Request(page, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = list(links(page, answer.read(), answer.headers.get("Content-Type", "")))
    for name, address, sha256 in found:
        stem = next((name[: -len(ending)] for ending in (".tar.gz", ".zip") if name.endswith(ending)), "")
        own, _, its_version = stem.rpartition("-")
        if (normalise(own), its_version) != (normalise(project), version):
            continue
        if sha256 is None:
            sys.exit(f"{page} gives no SHA-256 of {name}")
        with urllib.request.urlopen(address, timeout=60) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != sha256:
            sys.exit(f"{address} is not what its index lists: another SHA-256 than {sha256}")
        with open(name, "wb") as file:
            file.write(content)
        print(name)
        return
    sys.exit(f"{page} has no source distribution of version {version}")


try:
    main(*sys.argv[1:])
except (urllib.error.URLError, OSError, ValueError) as error:
    sys.exit(f"{sys.argv[1]}: {error}")
