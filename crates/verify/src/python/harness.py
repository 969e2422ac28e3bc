# Peers and requests.

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
    for word in ("NotApplicable", "package", "peer", "torch", "version"):
        setattr(module, word, globals()[word])
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)


def own_function(where):
    """A user's function: takes the tensors and settings by name, gives outputs by name (or `o` alone)."""
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
            # One that generates hands over the ids of each new token, one a sequence, as soon as they are chosen.
            return lambda put=heard_by_nobody: function(tensors, dict(case.settings), put), collect
        return lambda: function(tensors, settings), collect

    return prepare


class Nothing:
    """A call of which nothing can be asked: an adapter imports its package first."""

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
        """Imports what these peers are made of, so that a first call is no longer than it has to be."""
        for adapter_of, name in request["peers"]:
            try:
                adapter(self.adapters, adapter_of)
                PEERS[name][0](Nothing())
            except BaseException:
                # A call says why, in its row.
                continue
        return {}

    def load(self, request):
        self.drop(request)
        # A model stays as long as it is the one that is asked for.
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
        """Runs a peer on other values first, then once as it is judged: on its real inputs, watched, over poison."""
        case, name = self.case, request["peer"]
        case.said = []
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                prepare, by = self.wanted(request)
                # The first call compiles and tunes. Half the values give other outputs: a cached result is a wrong one.
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
                result, evidence = watched(case, call)
                millis = (clock() - start) * 1e3
            except NotInstalled as error:
                return {"outcome": "not installed", "reason": str(error)}
            except NotApplicable as error:
                reasons = [str(error)] + [reason for reason in map(said_why, said) if reason]
                # Warnings name what the library refused; the same one may come twice.
                return {"outcome": "not applicable", "reason": "; ".join(dict.fromkeys(reasons))[:600]}
            except Exception as error:
                # On the processor, kernels for GPUs that look for a driver are as little asked as those that say so.
                if case.device == "cpu" and lacks_driver(error):
                    return {"outcome": "not applicable", "reason": "it needs a GPU: %s" % first_line(error)}
                if isinstance(error, Broken):
                    return {"outcome": "raised", "reason": str(error)}
                # Some packages import optional dependencies when they are first called.
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
        """Some runs of a prepared generation, of as many tokens as are asked for now."""
        prepared = self.prepared[request["peer"]]
        settings = prepared.case.settings
        judged = settings["new_tokens"]
        settings["new_tokens"] = str(request["new_tokens"])
        try:
            return {"runs": [heard(prepared) for _ in range(request["runs"])]}
        finally:
            settings["new_tokens"] = judged

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


# What torch, Triton and the dynamic loader say where there is no NVIDIA driver.
NO_DRIVER = (
    "found no nvidia driver",
    "no cuda gpus are available",
    "torch not compiled with cuda enabled",
    "0 active drivers",
    "libcuda.so",
)


def lacks_driver(error):
    """Whether an error, or one that it came from, says that there is no driver."""
    while error is not None:
        if any(words in str(error).lower() for words in NO_DRIVER):
            return True
        error = error.__cause__ or error.__context__
    return False


def outcome_of(error):
    kind = type(error).__name__
    # unittest's SkipTest and pytest's Skipped say so in their names.
    if "skip" in kind.lower():
        return {"outcome": "skipped", "reason": "the peer skipped itself: %s" % first_line(error)}
    return {"outcome": "raised", "reason": reason_of(error)}


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
