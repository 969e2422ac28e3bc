"""Fetches files over HTTP, several at once, each into its place once its SHA-256 is the one that is wanted.

Started by firstlight with a Python that the plan uses, isolated and without its packages. The one argument is a file of
JSON: {"threads": 8, "attempts": 5, "timeout": 60, "files": [{"url": .., "path": .., "sha256": ..}]}, or "check" in place
of "files" for addresses that are only asked whether they answer. What happens is said on standard output, one line each,
fields by tabs: what, number of the file, and a value.

    bytes     N  count    so many more bytes came
    dropped   N  reason   the connection ended early; it is tried again, from where it ended
    done      N  count    the file is in its place; so many bytes of it came over the network
    mismatch  N  sha256   the file is another one than was wanted, and was thrown away
    failed    N  reason   it could not be fetched
    answers   N  count    the address answers, and says that the file has so many bytes (-1: it does not say)
"""

import fcntl
import hashlib
import http.client
import json
import os
import queue
import sys
import threading
import time
import urllib.error
import urllib.request

CHUNK = 1 << 18
# What comes is said at most every tenth of a second for each file: a line for each chunk would cost more than it tells.
QUIET = 0.1

speaking = threading.Lock()


def say(*fields):
    with speaking:
        # When nobody listens any more, firstlight has ended, and so does this.
        try:
            sys.stdout.write("\t".join(str(f).replace("\n", " ").replace("\t", " ") for f in fields) + "\n")
            sys.stdout.flush()
        except OSError:
            os._exit(1)


def end_with_parent(parent):
    """A killed firstlight leaves nobody to fetch for."""
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(1)


def request(url, timeout, offset=0, method="GET"):
    headers = {"User-Agent": "firstlight", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    return urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method), timeout=timeout)


def digest_of(part):
    """The hash of what is there, and the place to go on from."""
    digest = hashlib.sha256()
    part.seek(0)
    while chunk := part.read(CHUNK):
        digest.update(chunk)
    return digest


def stream(number, job, part, timeout):
    """Reads the rest of a file behind what is there, and gives the hash of the whole and the count of bytes that came."""
    digest = digest_of(part)
    offset = part.tell()
    came = 0
    try:
        answer = request(job["url"], timeout, offset)
    except urllib.error.HTTPError as error:
        if error.code == 416 and offset:
            # There is nothing behind what is there: either it is whole, or it is not this file.
            return digest, 0
        raise
    with answer:
        if offset and answer.status != 206:
            # A server that cannot go on sends the whole again.
            part.seek(0)
            part.truncate()
            digest = hashlib.sha256()
        wanted = answer.headers.get("Content-Length")
        said = time.monotonic()
        unsaid = 0
        try:
            while chunk := answer.read(CHUNK):
                part.write(chunk)
                digest.update(chunk)
                came += len(chunk)
                unsaid += len(chunk)
                if time.monotonic() - said > QUIET:
                    say("bytes", number, unsaid)
                    said, unsaid = time.monotonic(), 0
        finally:
            part.flush()
            job["came"] += came
            if unsaid:
                say("bytes", number, unsaid)
        if wanted is not None and came < int(wanted):
            raise ConnectionError(f"the connection ended after {came} of {wanted} bytes")
    return digest, came


def permanent(error):
    """Whether asking again would give the same answer: a file that is not there, or one that may not be had."""
    return isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code not in (408, 425, 429)


def fetch(number, job, options):
    path = job["path"]
    job["came"] = 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "a+b") as part:
        # Another apply may want the same file for another environment: it waits, and finds the file there.
        fcntl.flock(part, fcntl.LOCK_EX)
        if os.path.exists(path):
            with open(path, "rb") as whole:
                if digest_of(whole).hexdigest() == job["sha256"]:
                    return say("done", number, 0)
            os.unlink(path)
        for attempt in range(1, options["attempts"] + 1):
            try:
                digest, _ = stream(number, job, part, options["timeout"])
                break
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
                if permanent(error) or attempt == options["attempts"]:
                    return say("failed", number, reason)
                say("dropped", number, reason)
                time.sleep(min(0.2 * 2**attempt, 10))
        if digest.hexdigest() != job["sha256"]:
            os.unlink(path + ".part")
            return say("mismatch", number, digest.hexdigest())
        part.flush()
        os.fsync(part.fileno())
        os.rename(path + ".part", path)
    say("done", number, job["came"])


def check(number, url, options):
    try:
        with request(url, options["timeout"], method="HEAD") as answer:
            say("answers", number, answer.headers.get("Content-Length", -1))
    except (OSError, http.client.HTTPException) as error:
        # Some servers refuse HEAD and answer GET.
        if isinstance(error, urllib.error.HTTPError) and error.code in (403, 405, 501):
            return say("answers", number, -1)
        say("failed", number, f"{type(error).__name__}: {error}")


def work(jobs, options, act):
    while True:
        try:
            number, job = jobs.get_nowait()
        except queue.Empty:
            return
        try:
            act(number, job, options)
        except Exception as error:
            say("failed", number, f"{type(error).__name__}: {error}")


def main():
    parent = os.getppid()
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        options = json.load(file)
    act, wanted = (check, options["check"]) if "check" in options else (fetch, options["files"])
    jobs = queue.Queue()
    for numbered in enumerate(wanted):
        jobs.put(numbered)
    workers = [
        threading.Thread(target=work, args=(jobs, options, act)) for _ in range(min(options["threads"], len(wanted)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


main()
