# Tensors in safetensors files, and the call that they belong to.

WIDTHS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1}
# memoryview has no 16-bit and 8-bit floats: their bits are unsigned integers.
FORMATS = {"F64": "d", "F32": "f", "BF16": "H", "F16": "H", "I32": "i", "F8_E4M3": "B", "I8": "b", "U8": "B"}

# Maximum elements without torch, for which Python takes a second.
LARGEST_WITHOUT_TORCH = 1 << 21


def torch_type(dtype):
    if dtype == "F8_E4M3":
        return torch.float8_e4m3fn
    words = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16", "I32": "int32", "I8": "int8", "U8": "uint8"}
    return getattr(torch, words[dtype])


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
    """Writes a safetensors file from {name: (dtype, tensor)} of torch tensors or buffers."""
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
    """One call of an op: its tensors by name, its settings as text, and its device."""

    def __init__(self, request, models=None):
        # Models that an adapter loaded from this case's folder, reused by later cases.
        self.models = {} if models is None else models
        # Messages of the package about missing fast paths.
        self.said = []
        self.op, self.dtype, self.device = request["op"], request["dtype"], request["device"]
        self.settings, self.outputs = request["settings"], request["outputs"]
        self.files = read_tensors(request["inputs"])
        # Factor of the inputs: not 1 in the first call, which is not judged.
        self.factor = 1.0
        self.kept, self.copied = {}, {}

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
        """Rejects inputs and settings that the peer has no argument for."""
        for name, reason in unless.items():
            if name in self.files or name in self.settings:
                raise NotApplicable("%s: %s" % (name, reason))

    def get(self, name):
        """A tensor, or None if the call has none."""
        return self.tensor(name) if name in self.files else None

    def tensor(self, name):
        """A tensor on the device; the same object until the factor changes."""
        if name not in self.kept:
            self.kept[name] = self.made(name)
        return self.kept[name]

    def made(self, name):
        dtype, shape, data = self.files[name]
        # float8 and integer weights are not scaled, because torch cannot multiply them; the activations change anyway.
        scaled = self.factor != 1.0 and dtype not in ("I32", "F8_E4M3", "I8", "U8")
        # Token ids cannot be halved, so a model's first call has the reversed prompt.
        backwards = self.factor != 1.0 and self.op == "model"
        if torch is None:
            if product(shape) == 0:
                raise NotApplicable("a memoryview cannot be empty, and `%s` is" % name)
            if product(shape) > LARGEST_WITHOUT_TORCH:
                raise NotApplicable("without torch `%s` is too large, with its %d elements" % (name, product(shape)))
            if scaled and dtype in ("F32", "F64"):
                from array import array

                data = memoryview(array(FORMATS[dtype], [x * self.factor for x in data.cast(FORMATS[dtype])])).cast("B")
            if backwards:
                from array import array

                data = memoryview(array(FORMATS[dtype], reversed(data.cast(FORMATS[dtype]).tolist()))).cast("B")
            # A copy, because a peer may overwrite its inputs, which other peers read.
            return memoryview(bytearray(data)).cast(FORMATS[dtype], shape)
        if product(shape) == 0:
            return torch.empty(shape, dtype=torch_type(dtype), device=self.device)
        if name not in self.copied:
            # Copied to the GPU once for all peers.
            tensor = torch.frombuffer(data, dtype=torch_type(dtype)).view(shape)
            self.copied[name] = tensor.to(self.device)
        # A copy, because a peer may overwrite its inputs.
        whole = self.copied[name].flip(-1) if backwards else self.copied[name].clone()
        return self.copied[name] * self.factor if scaled else whole

    def scale(self, factor):
        self.kept, self.factor = {}, factor


