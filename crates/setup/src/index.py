"""Reads a package index: file lists (PEP 691), and with range requests the METADATA and CUDA libraries of wheels.

firstlight runs it with any Python, isolated. The argument is a JSON file: {"threads": 16, "timeout": 20, "pages":
[{"url": .., "path": ..}], "wheels": [{"url": .., "bytes": .., "folder": .., "libraries": true}]}. A page is written to its path
as JSON. A wheel's METADATA is written to its folder; with "libraries" also each library that names a CUDA library, under its
path in the wheel. Jobs are numbered, pages first. One line per job on standard output, with fields separated by tabs:

    done       N  -        it is written
    failed     N  reason   it could not be read
"""

import io
import zipfile

JSON = {"Accept": "application/vnd.pypi.simple.v1+json"}
# A wheel's central directory and its METADATA are at its end; one request usually has both.
TAIL = 1 << 18
BLOCK = 1 << 22
# The names of needed libraries (.dynstr) are near the start of a file.
PREFIX = 1 << 22
CUDA_NAMES = (b"libcuda.so", b"libcudart.so", b"libnvrtc.so", b"libc10_cuda.so", b"libtorch_cuda.so", b"libcublas")


class RemoteFile(io.RawIOBase):
    """A file of a server that answers range requests, read in blocks."""

    def __init__(self, connections, url, size, timeout):
        self.connections, self.url, self.size, self.timeout = connections, url, size, timeout
        self.at = 0
        start = max(0, size - TAIL)
        self.block = (start, self.fetch(start, size))

    def fetch(self, start, end):
        wanted = {"Range": f"bytes={start}-{end - 1}"}
        for attempt in range(3):
            try:
                answer, url = self.connections.request("GET", self.url, self.timeout, more=wanted)
                if answer.status != 206 and (start, end) != (0, self.size):
                    self.connections.drop(url)
                    raise Refused(501, "the server does not answer range requests")
                return answer.read()
            except Refused:
                raise
            except (OSError, http.client.HTTPException):
                if attempt == 2:
                    raise

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=0):
        self.at = offset + {0: 0, 1: self.at, 2: self.size}[whence]
        return self.at

    def readinto(self, target):
        start, block = self.block
        if not start <= self.at < start + len(block):
            if self.at >= self.size:
                return 0
            start, block = self.at, self.fetch(self.at, min(self.size, self.at + BLOCK))
            self.block = (start, block)
        piece = block[self.at - start : self.at - start + len(target)]
        target[: len(piece)] = piece
        self.at += len(piece)
        return len(piece)


def is_library(name):
    last = name.rsplit("/", 1)[-1]
    return last.endswith(".so") or ".so." in last


def write(folder, name, chunks):
    path = os.path.normpath(os.path.join(folder, name))
    if not path.startswith(os.path.normpath(folder) + os.sep):
        raise ValueError(f"the wheel has a file outside of its folder: {name}")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Renamed when complete, because another process may read the file.
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
    os.replace(part, path)


def rest(first, member):
    yield first
    while chunk := member.read(BLOCK):
        yield chunk


def read_wheel(connections, job, options):
    remote = RemoteFile(connections, job["url"], job["bytes"], options["timeout"])
    with zipfile.ZipFile(remote) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        write(job["folder"], "METADATA", [wheel.read(names[0])])
        if not job["libraries"]:
            return
        for name in filter(is_library, wheel.namelist()):
            with wheel.open(name) as member:
                prefix = member.read(PREFIX)
                if any(cuda in prefix for cuda in CUDA_NAMES):
                    write(job["folder"], "libraries/" + name, rest(prefix, member))


def read_page(connections, job, options):
    answer, _ = connections.request("GET", job["url"], options["timeout"], more=JSON)
    write(os.path.dirname(job["path"]), os.path.basename(job["path"]), [answer.read()])


def read_jobs(jobs, options):
    connections = Connections()
    while True:
        try:
            number, read, job = jobs.get_nowait()
        except queue.Empty:
            return
        try:
            read(connections, job, options)
            say("done", number, "-")
        except Exception as error:
            connections.kept.clear()
            say("failed", number, f"{type(error).__name__}: {error}")


def main():
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        options = json.load(file)
    jobs = queue.Queue()
    readers = [(read_page, job) for job in options["pages"]] + [(read_wheel, job) for job in options["wheels"]]
    for number, (read, job) in enumerate(readers):
        jobs.put((number, read, job))
    workers = [
        threading.Thread(target=read_jobs, args=(jobs, options)) for _ in range(min(options["threads"], len(readers)))
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


main()
