"""Checks that URLs answer, and downloads files in parallel. A file is moved to its path once its SHA-256 is correct.

firstlight runs it with a Python that the plan uses, isolated and without its packages. The argument is a JSON file: {"threads": 8, "attempts": 5, "timeout": 60, "check_timeout": 10, "check": [..], "files": [{"url": .., "path": ..,
"sha256": .., "bytes": ..}], "bearer": null}. A file has "git_blob" instead of "sha256" if its git object
id is known, and neither if its content may change. "bearer" has the environment variable of a token, and a URL on the host that
receives it. No file is written before every URL of "check" has answered. Each event is one line on standard output with
fields separated by tabs: the event, the index of the file or URL, and a value.

    answers    N  count    the URL answers; Content-Length in bytes, -1 without one
    silent     N  reason   the URL does not answer
    bytes      N  count    bytes received since the last such line
    dropped    N  reason   the connection ended early; the download is resumed
    done       N  count    the file is at its path; bytes that were downloaded
    mismatch   N  sha256   the file has another hash than expected and was deleted
    failed     N  reason   the file could not be downloaded
"""

# Attempts to reach a host before any server has answered: a name that does not resolve stays so.
UNREACHABLE_ATTEMPTS = 3


def digest_for(job):
    """A new hash object of the kind that the job has: git blob id or SHA-256."""
    if "git_blob" in job:
        return hashlib.sha1(b"blob %d\0" % job["bytes"])
    return hashlib.sha256()


def digest_of(part, job):
    """Hashes the partial file and seeks to its end."""
    digest = digest_for(job)
    part.seek(0)
    while chunk := part.read(CHUNK):
        digest.update(chunk)
    return digest


def stream(connections, number, job, part, options):
    """Downloads the rest of a partial file, and returns the hash of the whole."""
    digest = digest_of(part, job)
    offset = part.tell()
    try:
        answer, url = connections.request("GET", job["url"], options["timeout"], offset)
    except Refused as error:
        if error.status == 416 and offset:
            # The partial file is not shorter than the remote one: it is complete or wrong, which its hash decides.
            return digest
        raise
    if offset and answer.status != 206:
        # A server without range requests sends the whole file.
        part.seek(0)
        part.truncate()
        digest = digest_for(job)
    options["answered"] = True
    wanted = answer.headers.get("Content-Length")
    received = unreported = 0
    reported = time.monotonic()
    whole = False
    try:
        while chunk := answer.read(CHUNK):
            part.write(chunk)
            digest.update(chunk)
            received += len(chunk)
            unreported += len(chunk)
            if time.monotonic() - reported > REPORT_INTERVAL:
                say("bytes", number, unreported)
                reported, unreported = time.monotonic(), 0
        whole = wanted is None or received >= int(wanted)
    finally:
        part.flush()
        job["received"] += received
        if unreported:
            say("bytes", number, unreported)
        if not whole:
            connections.drop(url)
    if not whole:
        raise ConnectionError(f"the connection ended after {received} of {wanted} bytes")
    return digest


def unreachable(error):
    """Whether the host has no address or no route: the network is missing, or the name is wrong."""
    lacking = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED)
    return isinstance(error, socket.gaierror) or getattr(error, "errno", None) in lacking


def permanent(error):
    """Whether a retry would fail in the same way: the file does not exist, or access is denied."""
    return isinstance(error, Refused) and error.status < 500 and error.status not in (408, 425, 429)


def fetch(connections, number, job, options):
    path = job["path"]
    known = job.get("sha256") or job.get("git_blob")
    job["received"] = 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "a+b") as part:
        # Another apply may download the same file for another environment: it waits for the lock and then finds the file.
        fcntl.flock(part, fcntl.LOCK_EX)
        if not known:
            # Its content may have changed.
            part.truncate(0)
        elif os.path.exists(path):
            with open(path, "rb") as whole:
                if digest_of(whole, job).hexdigest() == known:
                    return say("done", number, 0)
            os.unlink(path)
        for attempt in range(1, options["attempts"] + 1):
            try:
                digest = stream(connections, number, job, part, options)
                break
            except (OSError, http.client.HTTPException) as error:
                reason = reason_of(error)
                # Without any answer so far, the network is most likely missing, and not interrupted.
                silent = unreachable(error) and not options["answered"]
                attempts = min(options["attempts"], UNREACHABLE_ATTEMPTS) if silent else options["attempts"]
                if permanent(error) or attempt >= attempts:
                    if not os.fstat(part.fileno()).st_size:
                        os.unlink(path + ".part")
                    return say("failed", number, reason)
                say("dropped", number, reason)
                time.sleep(min(0.2 * 2**attempt, 10))
        if known and digest.hexdigest() != known:
            os.unlink(path + ".part")
            return say("mismatch", number, digest.hexdigest())
        # Not synced: after a power failure the file's hash is checked before it is used.
        part.flush()
        os.rename(path + ".part", path)
    say("done", number, job["received"])


def check(connections, number, address, options):
    """Reports whether a URL answers. Some servers refuse HEAD but not GET."""
    try:
        answer, _ = connections.request("HEAD", address, options["check_timeout"])
        answer.read()
        say("answers", number, answer.headers.get("Content-Length", -1))
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, Refused) and error.status in (403, 405, 501):
            return say("answers", number, -1)
        options["silent"] = True
        say("silent", number, reason_of(error))


def warm(connections, address, options):
    """Opens a connection while other threads check URLs; errors are reported when the file is downloaded."""
    try:
        connection, _ = connections.connect(urlsplit(address), options["check_timeout"])
        connection.connect()
    except (OSError, http.client.HTTPException):
        connections.kept.clear()


def each(jobs, connections, options, act):
    """Runs `act` on jobs until the queue is empty; returns how many this thread ran."""
    count = 0
    while True:
        try:
            number, job = jobs.get_nowait()
        except queue.Empty:
            return count
        count += 1
        try:
            act(connections, number, job, options)
        except Exception as error:
            options["silent"] |= act is check
            say("silent" if act is check else "failed", number, reason_of(error))


def work(number, addresses, files, ready, options):
    connections = Connections(options["bearer"])
    if not each(addresses, connections, options, check) and options["check"] and number < len(options["files"]):
        warm(connections, options["files"][number]["url"], options)
    ready.wait()
    if not options["silent"]:
        each(files, connections, options, fetch)


def waiting(numbered):
    jobs = queue.Queue()
    for job in numbered:
        jobs.put(job)
    return jobs


def main():
    parent = os.getppid()
    threading.Thread(target=end_with_parent, args=(parent,), daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        options = {**json.load(file), "silent": False, "answered": False}
    count = min(options["threads"], max(len(options["check"]), len(options["files"])))
    # Large files start first.
    largest_first = sorted(enumerate(options["files"]), key=lambda numbered: -(numbered[1]["bytes"] or 0))
    addresses, files = waiting(enumerate(options["check"])), waiting(largest_first)
    ready = threading.Barrier(count)
    workers = [
        threading.Thread(target=work, args=(number, addresses, files, ready, options)) for number in range(count)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


main()
