"""Asks addresses whether they answer, and fetches files, several at once, each into its place once its SHA-256 is the one
that is wanted.

Started by firstlight with a Python that the plan uses, isolated and without its packages. The one argument is a file of
JSON: {"threads": 8, "attempts": 5, "timeout": 60, "check_timeout": 10, "check": [..], "files": [{"url": .., "path": ..,
"sha256": .., "bytes": ..}], "bearer": null}. A file has "git_blob" in place of "sha256" where git's name for it is known, and
neither where it is an answer. "bearer" names a variable with a secret, and an address on the host that it goes to. Nothing is
written before every address of "check" has answered. What happens is said on standard output, one line each, fields by
tabs: what, number of the file or address, and a value.

    answers    N  count    the address answers, and says that the file has so many bytes (-1: it does not say)
    silent     N  reason   the address does not answer
    bytes      N  count    so many more bytes came
    dropped    N  reason   the connection ended early; it is tried again, from where it ended
    done       N  count    the file is in its place; so many bytes of it came over the network
    mismatch   N  sha256   the file is another one than was wanted, and was thrown away
    failed     N  reason   it could not be fetched
"""


def digest_for(job):
    """The hash that a file is known by, of nothing so far."""
    if "git_blob" in job:
        return hashlib.sha1(b"blob %d\0" % job["bytes"])
    return hashlib.sha256()


def digest_of(part, job):
    """The hash of what is there, and the place to go on from."""
    digest = digest_for(job)
    part.seek(0)
    while chunk := part.read(CHUNK):
        digest.update(chunk)
    return digest


def stream(connections, number, job, part, timeout):
    """Reads the rest of a file behind what is there, and gives the hash of the whole."""
    digest = digest_of(part, job)
    offset = part.tell()
    try:
        answer, url = connections.request("GET", job["url"], timeout, offset)
    except Refused as error:
        if error.status == 416 and offset:
            # There is nothing behind what is there: either it is whole, or it is not this file.
            return digest
        raise
    if offset and answer.status != 206:
        # A server that cannot go on sends the whole again.
        part.seek(0)
        part.truncate()
        digest = digest_for(job)
    wanted = answer.headers.get("Content-Length")
    came = unsaid = 0
    said = time.monotonic()
    whole = False
    try:
        while chunk := answer.read(CHUNK):
            part.write(chunk)
            digest.update(chunk)
            came += len(chunk)
            unsaid += len(chunk)
            if time.monotonic() - said > QUIET:
                say("bytes", number, unsaid)
                said, unsaid = time.monotonic(), 0
        whole = wanted is None or came >= int(wanted)
    finally:
        part.flush()
        job["came"] += came
        if unsaid:
            say("bytes", number, unsaid)
        if not whole:
            connections.drop(url)
    if not whole:
        raise ConnectionError(f"the connection ended after {came} of {wanted} bytes")
    return digest


def permanent(error):
    """Whether asking again would give the same answer: a file that is not there, or one that may not be had."""
    return isinstance(error, Refused) and error.status < 500 and error.status not in (408, 425, 429)


def fetch(connections, number, job, options):
    path = job["path"]
    known = job.get("sha256") or job.get("git_blob")
    job["came"] = 0
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "a+b") as part:
        # Another apply may want the same file for another environment: it waits, and finds the file there.
        fcntl.flock(part, fcntl.LOCK_EX)
        if not known:
            # An answer is asked for anew.
            part.truncate(0)
        elif os.path.exists(path):
            with open(path, "rb") as whole:
                if digest_of(whole, job).hexdigest() == known:
                    return say("done", number, 0)
            os.unlink(path)
        for attempt in range(1, options["attempts"] + 1):
            try:
                digest = stream(connections, number, job, part, options["timeout"])
                break
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
                if permanent(error) or attempt == options["attempts"]:
                    return say("failed", number, reason)
                say("dropped", number, reason)
                time.sleep(min(0.2 * 2**attempt, 10))
        if known and digest.hexdigest() != known:
            os.unlink(path + ".part")
            return say("mismatch", number, digest.hexdigest())
        # Not synced: what a power cut leaves here is held against its hash before it is taken.
        part.flush()
        os.rename(path + ".part", path)
    say("done", number, job["came"])


def check(connections, number, address, options):
    """Whether an address answers. Some servers refuse HEAD and answer GET."""
    try:
        answer, _ = connections.request("HEAD", address, options["check_timeout"])
        answer.read()
        say("answers", number, answer.headers.get("Content-Length", -1))
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, Refused) and error.status in (403, 405, 501):
            return say("answers", number, -1)
        options["silent"] = True
        say("silent", number, f"{type(error).__name__}: {error}")


def warm(connections, address, options):
    """Makes a connection while others ask; where it cannot be made the file itself says so."""
    try:
        connection, _ = connections.connect(urlsplit(address), options["check_timeout"])
        connection.connect()
    except (OSError, http.client.HTTPException):
        connections.kept.clear()


def each(jobs, connections, options, act):
    """Acts on one job after another until there is none; the number of those that were here."""
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
            say("silent" if act is check else "failed", number, f"{type(error).__name__}: {error}")


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
        options = {**json.load(file), "silent": False}
    count = min(options["threads"], max(len(options["check"]), len(options["files"])))
    # What takes longest begins first.
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
