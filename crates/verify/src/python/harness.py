"""firstlight's harness: runs kernels of an installed Python stack and says what ran.

Started as `python -I -B harness.py ADAPTERS [DIR]...`: ADAPTERS is the folder with the adapters, each DIR is searched for
packages before the environment's own. Requests are JSON lines on standard input, answers JSON lines on what was standard
output. Both are taken before anything else is imported; whatever a library prints goes to standard error.

Needs Python 3.8 and nothing else. Tensors are torch's where torch can be imported, and memoryviews otherwise.
"""

import json
import os
import sys
import time

# Kept before a package could replace them.
clock = time.perf_counter
requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
nothing = os.open(os.devnull, os.O_RDONLY)
os.dup2(nothing, 0)
os.dup2(2, 1)
sys.stdout = sys.stderr

import importlib
import importlib.util
import mmap
import struct
import warnings


class NotApplicable(Exception):
    """This peer cannot run this call, for the reason given: no failure of its kernel."""


def absent(error):
    """The reason of a package that is not here or cannot be imported."""
    return NotApplicable("%s: %s" % (type(error).__name__, first_line(error)))


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else "no message")[:300]


def said_why(warning):
    """A warning's reason, without where torch's source raised it and without what it says of the backends not asked for."""
    text = first_line(warning.message).partition(" (Triggered internally")[0].strip()
    return None if "runtime disabled" in text or text.endswith("because:") else text


def package(name):
    """A module of the environment under test."""
    try:
        return importlib.import_module(name)
    except NotApplicable:
        raise
    except BaseException as error:
        # A package may break in any way while it is imported, SystemExit included.
        if isinstance(error, (KeyboardInterrupt, MemoryError)):
            raise
        raise absent(error)


def version(name):
    """What the environment says of a distribution's version."""
    from importlib import metadata

    try:
        return "%s %s" % (name, metadata.version(name))
    except metadata.PackageNotFoundError:
        found = getattr(sys.modules.get(name), "__version__", None)
        return "%s %s" % (name, found) if found else name


torch, no_torch = None, ""


def find_torch():
    global torch, no_torch
    try:
        torch = importlib.import_module("torch")
    except BaseException as error:
        no_torch = "torch cannot be imported: %s: %s" % (type(error).__name__, first_line(error))


WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I32": 4}
# A memoryview has no 16-bit floats: their bits are given as unsigned integers.
FORMATS = {"F64": "d", "F32": "f", "BF16": "H", "F16": "H", "I32": "i"}


def torch_type(dtype):
    return {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "I32": torch.int32}[dtype]


def product(shape):
    size = 1
    for side in shape:
        size *= side
    return size


def read_tensors(path):
    """{name: (dtype, shape, bytes)} of a safetensors file: 8 bytes of header length, a JSON header, the tensors."""
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], data[8 + length + begin : 8 + length + end])
    return tensors


def write_tensors(path, tensors):
    """The same the other way: {name: (dtype, tensor)} of torch tensors or buffers."""
    header, sizes, at = {}, [], 0
    for name, (dtype, tensor) in tensors.items():
        shape = list(tensor.shape)
        size = product(shape) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        sizes.append((name, dtype, tensor, at, size))
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "w+b") as file:
        file.truncate(8 + len(text) + at)
        data = memoryview(mmap.mmap(file.fileno(), 8 + len(text) + at))
        data[: 8 + len(text)] = struct.pack("<Q", len(text)) + text
        for name, dtype, tensor, begin, size in sizes:
            if size == 0:
                continue
            part = data[8 + len(text) + begin :][:size]
            if torch is not None and isinstance(tensor, torch.Tensor):
                into = torch.frombuffer(part, dtype=torch_type(dtype)).view(tensor.shape)
                into.copy_(tensor.detach())
            else:
                part[:] = memoryview(tensor).cast("B")


class Case:
    """One call of an op: its tensors by name, its settings as text, and where it runs."""

    def __init__(self, request):
        self.op, self.dtype, self.device = request["op"], request["dtype"], request["device"]
        self.settings, self.outputs = request["settings"], request["outputs"]
        self.files = read_tensors(request["inputs"])
        # How the inputs of the first call differ from those of the judged one.
        self.factor = 1.0
        self.kept = {}

    def has(self, name):
        return name in self.files

    def shape(self, name):
        return self.files[name][1]

    def flag(self, name, default=False):
        return self.settings.get(name, str(default)).lower() == "true"

    def number(self, name, default=None):
        return float(self.settings[name]) if name in self.settings else default

    def count(self, name, default=None):
        return int(self.settings[name]) if name in self.settings else default

    def word(self, name, default=None):
        return self.settings.get(name, default)

    def refuse(self, **unless):
        """Refuses inputs and settings that the peer has no argument for."""
        for name, reason in unless.items():
            if name in self.files or name in self.settings:
                raise NotApplicable("%s: %s" % (name, reason))

    def get(self, name):
        """A tensor, or None where the call has none."""
        return self.tensor(name) if name in self.files else None

    def tensor(self, name):
        """A tensor on the device; the same object as long as the factor stays, so that it is copied there once."""
        if name not in self.kept:
            self.kept[name] = self.made(name)
        return self.kept[name]

    def made(self, name):
        dtype, shape, data = self.files[name]
        scaled = self.factor != 1.0 and dtype != "I32"
        if torch is None:
            if scaled and dtype in ("F32", "F64"):
                from array import array

                data = memoryview(array(FORMATS[dtype], [x * self.factor for x in data.cast(FORMATS[dtype])])).cast("B")
            if product(shape) == 0:
                raise NotApplicable("a memoryview cannot be empty, and `%s` is" % name)
            # A copy: a peer may write into its inputs, and the next one reads them too.
            return memoryview(bytearray(data)).cast(FORMATS[dtype], shape)
        if product(shape) == 0:
            return torch.empty(shape, dtype=torch_type(dtype), device=self.device)
        tensor = torch.frombuffer(data, dtype=torch_type(dtype)).view(shape)
        # A copy even on the processor: a peer may write into its inputs.
        tensor = tensor.to(self.device) if self.device != "cpu" else tensor.clone()
        return tensor.mul_(self.factor) if scaled else tensor

    def scale(self, factor):
        self.kept, self.factor = {}, factor


# What a peer can be asked for: name -> (function from a case to (run, collect), where its kernels come from). `run` is the
# library's own call, with its arguments ready in the layout the library wants, and is what is timed; `collect` gives outputs
# by name from its result.
PEERS = {}


def peer(name, package):
    def register(prepare):
        PEERS[name] = (prepare, package)
        return prepare

    return register


def adapter(folder, name):
    """Runs an adapter's file, once."""
    path = os.path.join(folder, name + ".py")
    spec = importlib.util.spec_from_file_location("firstlight_peer_" + name, path)
    if spec.name in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    for word in ("Case", "NotApplicable", "package", "peer", "torch", "version"):
        setattr(module, word, globals()[word])
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def own_function(where):
    """A user's function: takes the tensors and settings by name, gives outputs by name (or `o` alone)."""
    module, _, name = where.partition(":")
    function = package(module)
    for part in name.split("."):
        if not hasattr(function, part):
            raise NotApplicable("module `%s` has no `%s`" % (module, name))
        function = getattr(function, part)

    def prepare(case):
        tensors = {name: case.tensor(name) for name in case.files}
        settings = dict(case.settings)

        def collect(result):
            return result if isinstance(result, dict) else {"o": result}

        return lambda: function(tensors, settings), collect

    return prepare


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def watched(case, run):
    """Runs it once and gives (result, what ran): kernels on a GPU, operators of torch or functions elsewhere."""
    if torch is None:
        return watched_functions(run)
    from torch.profiler import ProfilerActivity, profile

    on_gpu = case.device == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as seen:
        result = run()
        synchronize(case.device)
    counts = {}
    for event in seen.events():
        if on_gpu and "CUDA" not in str(event.device_type):
            continue
        counts[event.name] = counts.get(event.name, 0) + 1
    return result, [{"name": name, "count": count} for name, count in counts.items()]


def watched_functions(run):
    counts = {}

    def see(frame, event, argument):
        if event == "call":
            name = "%s.%s" % (frame.f_globals.get("__name__", "?"), frame.f_code.co_name)
        elif event == "c_call":
            name = "%s.%s" % (getattr(argument, "__module__", None) or "builtins", argument.__name__)
        else:
            return
        # Generators and the like have no name of their own, and len() is no evidence.
        if "<" not in name and not name.startswith("builtins."):
            counts[name] = counts.get(name, 0) + 1

    sys.setprofile(see)
    try:
        result = run()
    finally:
        sys.setprofile(None)
    own = __name__ + "."
    return result, [{"name": name, "count": count} for name, count in counts.items() if not name.startswith(own) and name != "sys.setprofile"]


def poison(case, outputs):
    """Leaves NaN in freed memory of the outputs' sizes, where a library's next empty tensor is likely to be."""
    if torch is None:
        return
    filled = [torch.full_like(tensor, float("nan")) for tensor in outputs if tensor.is_floating_point()]
    synchronize(case.device)
    del filled


class Prepared:
    """A peer's call that was judged, as it is timed."""

    def __init__(self, case, run):
        self.case, self.run, self.graphs = case, run, {}
        self.flush, self.writes = None, 1

    def time(self, millis, fewest, most, replays):
        """Milliseconds of single runs, by the device's own clock; means of `replays` runs from a recorded graph."""
        timed = self.on_cpu if self.case.device == "cpu" else self.on_gpu
        if replays and self.case.device != "cpu":
            graph = self.graph(replays)
            one = lambda: timed(graph.replay) / replays
        else:
            replays, one = 1, lambda: timed(self.run)
        one()
        samples, begin = [], clock()
        while len(samples) < fewest or (len(samples) < most and (clock() - begin) * 1e3 < millis):
            samples.append(one())
        return samples, replays

    def graph(self, replays):
        if replays not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            self.run()
            synchronize("cuda")
            with torch.cuda.graph(graph):
                for _ in range(replays):
                    self.run()
            self.graphs[replays] = graph
        return self.graphs[replays]

    def on_cpu(self, run):
        begin = clock()
        run()
        return (clock() - begin) * 1e3

    def on_gpu(self, run):
        if self.flush is None:
            # Larger than the L2 cache: written before each run, so that none finds its inputs there.
            cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 << 20
            self.flush = torch.empty(2 * cache, dtype=torch.uint8, device="cuda")
            self.writes = self.writes_that_hide(run)
        for _ in range(self.writes):
            self.flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def writes_that_hide(self, run):
        """How often the flush is written, so that the host has given the GPU every launch before the first one starts:
        a library's own time on the host is not measured, as firstlight's is not."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        begin.record()
        self.flush.zero_()
        end.record()
        end.synchronize()
        synchronize("cuda")
        start = clock()
        run()
        host = (clock() - start) * 1e3
        synchronize("cuda")
        return 1 + min(200, int(1.5 * host / max(begin.elapsed_time(end), 1e-3)))


class Harness:
    def __init__(self, adapters):
        self.adapters, self.case, self.prepared = adapters, None, {}

    def hello(self, request):
        cuda, why = False, ""
        if torch is None:
            why = no_torch
        else:
            try:
                cuda = torch.cuda.is_available()
                why = "" if cuda else "torch %s sees no GPU" % torch.__version__
                if cuda:
                    torch.zeros(1, device="cuda").item()
            except Exception as error:
                cuda, why = False, "torch %s cannot use the GPU: %s" % (torch.__version__, first_line(error))
        return {
            "python": sys.version.split()[0],
            "torch": None if torch is None else torch.__version__,
            "cuda": cuda,
            "why_no_cuda": why,
            "pid": os.getpid(),
        }

    def load(self, request):
        self.drop(request)
        self.case = Case(request)
        return {}

    def drop(self, request):
        self.case, self.prepared = None, {}
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {}

    def run(self, request):
        """Runs a peer on other values first, then once as it is judged: on its real inputs, watched, over poison."""
        case, name = self.case, request["peer"]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                prepare, by = self.wanted(request)
                # The first call compiles and tunes. Half the values give other outputs: a cached result is a wrong one.
                case.scale(0.5)
                call, collect = prepare(case)
                first = self.gathered(collect(call()), case, request["gives"])
                synchronize(case.device)
                poison(case, first.values())
                del call, collect, first
                case.scale(1.0)
                call, collect = prepare(case)
                start = clock()
                result, evidence = watched(case, call)
                millis = (clock() - start) * 1e3
            except ImportError as error:
                # Some packages import their parts when they are first called.
                return {"outcome": "not applicable", "reason": "%s: %s" % (type(error).__name__, first_line(error))}
            except NotApplicable as error:
                reasons = [str(error)] + [reason for reason in map(said_why, said) if reason]
                # Warnings name what the library refused; the same one may come twice.
                return {"outcome": "not applicable", "reason": "; ".join(dict.fromkeys(reasons))[:600]}
        outputs = self.gathered(collect(result), case, request["gives"])
        write_tensors(request["into"], {name: (case.outputs[name], tensor) for name, tensor in outputs.items()})
        self.prepared[name] = Prepared(case, call)
        return {"outcome": "ran", "evidence": evidence, "millis": millis, "package": version(by)}

    def wanted(self, request):
        """The peer's function and the distribution it is of."""
        if request.get("function"):
            return own_function(request["function"]), request["function"].partition(":")[0]
        adapter(self.adapters, request["adapter"])
        return PEERS[request["peer"]]

    def gathered(self, outputs, case, wanted):
        """The outputs asked for, in the contract's storage types."""
        if not isinstance(outputs, dict):
            raise TypeError("gave %s instead of outputs by name" % type(outputs).__name__)
        gathered = {}
        for name in wanted or [name for name in case.outputs if outputs.get(name) is not None]:
            tensor = outputs.get(name)
            if tensor is None:
                raise LookupError("gave no output `%s`" % name)
            if torch is not None:
                if not isinstance(tensor, torch.Tensor):
                    raise TypeError("output `%s` is %s and no tensor" % (name, type(tensor).__name__))
                tensor = tensor.detach().to(torch_type(case.outputs[name]))
            elif memoryview(tensor).format != FORMATS[case.outputs[name]]:
                raise TypeError("output `%s` has format %s, wanted %s" % (name, memoryview(tensor).format, FORMATS[case.outputs[name]]))
            else:
                tensor = memoryview(tensor)
            gathered[name] = tensor
        return gathered

    def time(self, request):
        prepared = self.prepared[request["peer"]]
        samples, replays = prepared.time(request["millis"], request["fewest"], request["most"], request["replays"])
        return {"samples": samples, "replays": replays}

    def watch(self, request):
        """What runs now, after the timing: a library may have changed its mind."""
        prepared = self.prepared[request["peer"]]
        _, evidence = watched(prepared.case, prepared.run)
        return {"evidence": evidence}


def add_sites(folders):
    """Makes them site folders, `.pth` files included, and the first ones."""
    import site

    known = list(sys.path)
    for folder in folders:
        site.addsitedir(folder)
    sys.path[:] = [path for path in sys.path if path not in known] + known


def outcome_of(error):
    kind = type(error).__name__
    # unittest's SkipTest and pytest's Skipped say so in their names.
    if "skip" in kind.lower():
        return {"outcome": "skipped", "reason": "the peer skipped itself: %s" % first_line(error)}
    return {"outcome": "raised", "reason": "%s: %s" % (kind, first_line(error))}


def main():
    adapters, *paths = sys.argv[1:]
    add_sites(paths)
    find_torch()
    harness = Harness(adapters)
    # Gradients are nobody's business here.
    guard = torch.no_grad() if torch is not None else None
    if guard is not None:
        guard.__enter__()
    for line in requests:
        request = json.loads(line)
        try:
            answer = getattr(harness, request["do"])(request)
        except BaseException as error:
            answer = outcome_of(error)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
