"""Reads a package index: file lists (PEP 691, or PEP 503 if the index has no JSON), and with range requests the METADATA, CUDA libraries and module names of wheels.

firstlight runs it with any Python, isolated. The argument is a JSON file: {"threads": 16, "timeout": 20, "limit": 20.0, "pages":
[{"url": .., "path": ..}], "wheels": [{"url": .., "bytes": .., "folder": .., "libraries": true}], "names": [{"url": .., "bytes":
.., "path": .., "module": "a.b", "name": "N"}]}. A page is written to its path as JSON. A wheel's METADATA is written to its
folder; with "libraries" also each library that names a CUDA library, under its path in the wheel. To the path of a name
`true` is written if the module of the wheel has it (without a name: if the module is there), else `false`; `null` if its files do
not decide. Jobs are numbered,
pages first and names last. One line per job on standard output, with fields separated by tabs:

    done       N  -        it is written
    failed     N  reason   it could not be read
"""

import ast
import io
import zipfile

PAGES = {"Accept": "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"}
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


# One module may re-export with a star what others define; more files than these are not followed.
MOST_FILES = 60


class Undecided(Exception):
    """The files of a wheel do not show whether a module has a name."""


class WheelNames:
    """The names that the modules of a wheel define, read from their source."""

    def __init__(self, wheel):
        self.wheel = wheel
        self.files = set(wheel.namelist())
        self.read = {}

    def file_of(self, module):
        folder = module.replace(".", "/")
        return next((file for file in (f"{folder}/__init__.py", f"{folder}.py") if file in self.files), None)

    def has_module(self, module):
        folder = module.replace(".", "/")
        compiled = (file for file in self.files if file.startswith(folder + ".") and is_library(file))
        return any(file.startswith(folder + "/") for file in self.files) or bool(self.file_of(module)) or any(compiled)

    def has(self, module, name):
        if not self.has_module(module):
            return False
        if not self.file_of(module):
            raise Undecided(f"{module} is compiled or has no source")
        names, complete = self.names(module)
        if name in names or self.has_module(f"{module}.{name}"):
            return True
        if not complete:
            raise Undecided(f"{module} takes names from elsewhere")
        return False

    def names(self, module):
        """The names of a module, and whether these are all."""
        if module in self.read:
            return self.read[module]
        file = self.file_of(module)
        if len(self.read) >= MOST_FILES or not file:
            return set(), False
        self.read[module] = (set(), True)
        names, stars, complete = bound(ast.parse(self.wheel.read(file)).body)
        package = module.split(".") if file.endswith("/__init__.py") else module.split(".")[:-1]
        for level, source in stars:
            base = package[: len(package) - level + 1] if level else []
            more, whole = self.names(".".join(base + ([source] if source else [])))
            names, complete = names | more, complete and whole
        if "define_import_structure" in names:
            # transformers' lazy modules have the names of the files in their folder.
            folder = file.rsplit("/", 1)[0] + "/"
            below = [other[len(folder) : -3] for other in self.files if other.startswith(folder) and other.endswith(".py")]
            if len(below) > MOST_FILES:
                return names, False
            for stem in set(below) - {"__init__"}:
                more, whole = self.names(module + "." + stem.removesuffix("/__init__").replace("/", "."))
                names, complete = names | more, complete and whole
        self.read[module] = (names, complete)
        return self.read[module]


def bound(statements):
    """The names that statements of a module bind and do not delete, with those in the tables of lazy imports; its star
    imports; whether no function computes further names."""
    names, stars, complete = set(), [], True
    stack = list(reversed(statements))
    while stack:
        node = stack.pop()
        strings = None
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
            complete = complete and node.name != "__getattr__"
        elif isinstance(node, ast.Import):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names if alias.name != "*")
            stars += [(node.level, node.module) for alias in node.names if alias.name == "*"]
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(it.id for target in targets for it in ast.walk(target) if isinstance(it, ast.Name))
            strings = node.value
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            strings = node.value
        if strings is not None:
            values = (it.value for it in ast.walk(strings) if isinstance(it, ast.Constant))
            gone = removed(strings)
            names.update(value for value in values if isinstance(value, str) and value.isidentifier() and value not in gone)
        elif isinstance(node, ast.Delete) and node in statements:
            names.difference_update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and isinstance(node.test, (ast.Name, ast.Attribute)):
            stack += reversed(node.orelse)
            continue
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in ("body", "orelse", "handlers", "finalbody"):
                stack += reversed(getattr(node, field, None) or [])
    return names, stars, complete


def removed(table):
    """The names in a table that a module no longer has: `{"tree_map": ("jax.tree_map was removed", None)}` of JAX."""
    pairs = (pair for it in ast.walk(table) if isinstance(it, ast.Dict) for pair in zip(it.keys, it.values))
    last = ((key, value.elts[-1]) for key, value in pairs if isinstance(value, ast.Tuple) and value.elts)
    return {key.value for key, end in last if isinstance(key, ast.Constant) and isinstance(end, ast.Constant) and end.value is None}


def read_name(connections, job, options):
    remote = RemoteFile(connections, job["url"], job["bytes"], options["timeout"])
    with zipfile.ZipFile(remote) as wheel:
        names = WheelNames(wheel)
        module, name = job["module"], job["name"]
        try:
            found = names.has(module, name) if name else names.has_module(module)
        except (Undecided, SyntaxError, RecursionError):
            found = None
    write(os.path.dirname(job["path"]), os.path.basename(job["path"]), [json.dumps(found).encode()])


def links(html, page):
    """The files of a page of PEP 503, as those of PEP 691."""
    # Imported only if needed, because it is slow.
    from html.parser import HTMLParser

    files = []

    class Links(HTMLParser):
        def handle_starttag(self, tag, attributes):
            attributes = dict(attributes)
            if tag != "a" or not attributes.get("href"):
                return
            url, _, fragment = urljoin(page, attributes["href"]).partition("#")
            algorithm, _, digest = fragment.partition("=")
            files.append(
                {
                    "filename": unquote(urlsplit(url).path.rsplit("/", 1)[-1]),
                    "url": url,
                    "hashes": {algorithm: digest} if digest else {},
                    "requires-python": attributes.get("data-requires-python"),
                    "yanked": "data-yanked" in attributes,
                }
            )

    Links().feed(html)
    return files


def read_page(connections, job, options):
    answer, url = connections.request("GET", job["url"], options["timeout"], more=PAGES)
    page = answer.read()
    if "html" in (answer.headers.get("Content-Type") or ""):
        page = json.dumps({"files": links(page.decode("utf-8", "replace"), url.geturl())}).encode()
    write(os.path.dirname(job["path"]), os.path.basename(job["path"]), [page])


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
            say("failed", number, reason_of(error))


def end_after(seconds):
    """Ends this process; jobs that are not reported count as failed."""
    time.sleep(seconds)
    sys.stderr.write(f"not answered within {seconds:.0f} s\n")
    sys.stderr.flush()
    os._exit(1)


def main():
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    with open(sys.argv[1], encoding="utf-8") as file:
        options = json.load(file)
    if options["limit"] is not None:
        threading.Thread(target=end_after, args=(options["limit"],), daemon=True).start()
    jobs = queue.Queue()
    readers = [(read_page, job) for job in options["pages"]] + [(read_wheel, job) for job in options["wheels"]]
    readers += [(read_name, job) for job in options["names"]]
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
