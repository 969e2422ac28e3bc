# Peers and requests.

# The peers: name -> (function from a case to (run, collect), package of the kernels). `run` calls the library with arguments
# that are already in its layout, and is what is timed; `collect` returns the outputs by name from its result.
PEERS = {}


def peer(name, package):
    def register(prepare):
        PEERS[name] = (prepare, package)
        return prepare

    return register


def adapter(folder, name):
    """Executes an adapter's file once."""
    path = os.path.join(folder, name + ".py")
    spec = importlib.util.spec_from_file_location("firstlight_peer_" + name, path)
    if spec.name in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    for word in ("NotApplicable", "package", "peer", "torch", "version"):
        setattr(module, word, globals()[word])
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def own_function(where):
    """A user's function: takes tensors and settings by name, and returns outputs by name or only `o`."""
    module, _, name = where.partition(":")
    function = package(module)
    for part in name.split("."):
        if not hasattr(function, part):
            raise Broken("module `%s` has no `%s`" % (module, name))
        function = getattr(function, part)

    def prepare(case):
        tensors = {name: case.tensor(name) for name in case.files}
        settings = dict(case.settings)

        def collect(result):
            return result if isinstance(result, dict) else {"o": result}

        if "new_tokens" in settings:
            # A generating function passes the ids of each step, one per sequence, to a callback as soon as they are sampled.
            return lambda put=ignore_ids: function(tensors, dict(case.settings), put), collect
        return lambda: function(tensors, settings), collect

    return prepare


class NoCase:
    """Stands for a call while an adapter imports its package: every access raises NotApplicable."""

    def __getattr__(self, name):
        raise NotApplicable("there is no call yet")


class Harness:
    def __init__(self, adapters):
        self.adapters, self.case, self.prepared = adapters, None, {}
        self.models, self.models_of = {}, None

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
            "installed": [module for module in request["modules"] if is_installed(module)],
            "pid": os.getpid(),
        }

    def tune(self, request):
        return {"tuned": tune(request["warmup"], request["rep"], request["share"])}

    def ready(self, request):
        """Imports the packages of these peers, so that the first call does not include it."""
        for adapter_of, name in request["peers"]:
            try:
                adapter(self.adapters, adapter_of)
                PEERS[name][0](NoCase())
            except BaseException:
                # The peer's call will report the error.
                continue
        return {}

    def load(self, request):
        self.drop(request)
        # A loaded model is reused until another one is requested.
        models_of = (request["settings"].get("folder"), request["dtype"], request["device"])
        if models_of != self.models_of:
            self.models, self.models_of = {}, models_of
        self.case = Case(request, self.models)
        return {}

    def drop(self, request):
        self.case, self.prepared = None, {}
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {}

    def run(self, request):
        """Runs a peer on other values first, then the judged run: on the real inputs, profiled, with NaN in freed memory."""
        case, name = self.case, request["peer"]
        case.said = []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                prepare, by = self.wanted(request)
                # The first call compiles and tunes. It has halved inputs, so a result cached from it is wrong.
                case.scale(0.5)
                call, collect = prepare(case)
                start = clock()
                first = call()
                synchronize(case.device)
                first_millis = (clock() - start) * 1e3
                first = self.gathered(collect(first), case, request["gives"])
                poison(case, first.values())
                del call, collect, first
                case.scale(1.0)
                call, collect = prepare(case)
                start = clock()
                result, evidence = profiled(case, call)
                millis = (clock() - start) * 1e3
            except NotInstalled as error:
                return {"outcome": "not installed", "reason": str(error)}
            except NotApplicable as error:
                reasons = [str(error)] + [reason for reason in map(reason_of_warning, said) if reason]
                # Warnings have the library's reasons, possibly repeated.
                return {"outcome": "not applicable", "reason": "; ".join(dict.fromkeys(reasons))[:600]}
            except Exception as error:
                # On the CPU, GPU kernels that fail without a driver are not applicable either.
                if case.device == "cpu" and lacks_driver(error):
                    return {"outcome": "not applicable", "reason": "it needs a GPU: %s" % first_line(error)}
                if isinstance(error, Broken):
                    return {"outcome": "raised", "reason": str(error)}
                # Some packages import optional dependencies in the first call.
                if isinstance(error, ModuleNotFoundError):
                    return {"outcome": "not installed", "reason": reason_of(error)}
                raise
        outputs = self.gathered(collect(result), case, request["gives"])
        write_tensors(request["into"], {name: (case.outputs[name], tensor) for name, tensor in outputs.items()})
        self.prepared[name] = Prepared(case, call)
        return {
            "outcome": "ran",
            "evidence": evidence,
            "millis": millis,
            "first_millis": first_millis,
            "package": version(by),
            "said": "; ".join(dict.fromkeys(case.said))[:600],
        }

    def wanted(self, request):
        """The peer's function and its distribution."""
        if request.get("function"):
            return own_function(request["function"]), request["function"].partition(":")[0]
        adapter(self.adapters, request["adapter"])
        return PEERS[request["peer"]]

    def gathered(self, outputs, case, wanted):
        """The requested outputs, in the contract's storage types."""
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
                raise TypeError("output `%s` has format %s, expected %s" % (name, memoryview(tensor).format, FORMATS[case.outputs[name]]))
            else:
                tensor = memoryview(tensor)
            gathered[name] = tensor
        return gathered

    def time(self, request):
        prepared = self.prepared[request["peer"]]
        samples, replays = prepared.time(request["millis"], request["fewest"], request["most"], request["replays"])
        return {"samples": samples, "replays": replays}

    def generate(self, request):
        """Times runs of a prepared generation with the requested number of tokens."""
        prepared = self.prepared[request["peer"]]
        settings = prepared.case.settings
        judged = settings["new_tokens"]
        settings["new_tokens"] = str(request["new_tokens"])
        try:
            return {"runs": [timed_generation(prepared) for _ in range(request["runs"])]}
        finally:
            settings["new_tokens"] = judged

    def watch(self, request):
        """Profiles the call after the timing, because a library may have switched kernels."""
        prepared = self.prepared[request["peer"]]
        _, evidence = profiled(prepared.case, prepared.run)
        return {"evidence": evidence}


def add_sites(folders):
    """Adds folders as site folders, with their `.pth` files, before all others."""
    import site

    known = list(sys.path)
    for folder in folders:
        site.addsitedir(folder)
    sys.path[:] = [path for path in sys.path if path not in known] + known


# Error messages of torch, Triton and the dynamic loader without an NVIDIA driver.
NO_DRIVER = (
    "found no nvidia driver",
    "no cuda gpus are available",
    "torch not compiled with cuda enabled",
    "0 active drivers",
    "libcuda.so",
)


def lacks_driver(error):
    """Whether an error or one of its causes is due to a missing driver."""
    while error is not None:
        if any(words in str(error).lower() for words in NO_DRIVER):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome_of(error):
    kind = type(error).__name__
    # unittest.SkipTest and pytest's Skipped.
    if "skip" in kind.lower():
        return {"outcome": "skipped", "reason": "the peer skipped itself: %s" % first_line(error)}
    return {"outcome": "raised", "reason": reason_of(error)}


def main():
    adapters, *paths = sys.argv[1:]
    add_sites(paths)
    find_torch()
    harness = Harness(adapters)
    # Kernels are checked without gradients.
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
