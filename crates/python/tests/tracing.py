"""Tests tracing of every op: ``torch.compile(fullgraph=True)``, fake tensors, ``opcheck`` and dispatch modes.

``python tracing.py [cpu] [cuda]``. It prints a line for each case and ends with 1 if one fails.
"""

import copy
import sys

import cases
import torch
from cases import check
from samples import fresh, samples, several
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import firstlight
from firstlight import ops

assert "firstlight._torch" not in sys.modules, "registered before anything asked for it"
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def same(found, wanted):
    """Compares sizes, strides, types and, if present, values."""
    for one, other in zip(several(found), several(wanted)):
        if (one.shape, one.stride(), one.dtype, one.device) != (other.shape, other.stride(), other.dtype, other.device):
            return f"{one.dtype}{list(one.shape)} {one.stride()}, wanted {other.dtype}{list(other.shape)} {other.stride()}"
        if not isinstance(one, FakeTensor) and not torch.equal(one, other):
            return f"differs by {(one.double() - other.double()).abs().max():.1e}"
    return "" if len(several(found)) == len(several(wanted)) else "another number of outputs"


def calls():
    return sum(firstlight.status(-1)["calls"].values()) + sum(firstlight.status(-1)["refused"].values())


def compiled(name, function, tensors, wanted):
    """Compiles to one graph that calls the op, and compares with the eager call."""
    torch._dynamo.reset()
    seen = []

    def backend(graph, inputs):
        # An op that updates a state is an argument of the node that functionalizes it.
        named = [str(one) for node in graph.graph.nodes for one in (node.target, *node.args)]
        seen.extend(one for one in named if one.startswith("firstlight."))
        return graph

    from torch._dynamo.backends.common import aot_autograd

    # Like inductor without C++ compilation: functionalizes the graph and calls its operators.
    by = "inductor" if BACKEND == "inductor" else aot_autograd(fw_compiler=backend)
    before = calls()
    with torch.no_grad():
        found = torch.compile(function, fullgraph=True, backend=by)(*fresh(tensors))
    wrong = same(found, wanted)
    if BACKEND != "inductor" and not seen:
        wrong = wrong or "no operator of firstlight in the graph"
    if calls() <= before:
        wrong = wrong or "the op did not run"
    check(f"{name}: compiled by {BACKEND}", not wrong, wrong or ", ".join(sorted(set(seen))))


def faked(name, function, tensors, wanted):
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        found = function(*[mode.from_tensor(tensor) for tensor in tensors])
    fake = all(isinstance(one, FakeTensor) for one in several(found))
    wrong = same(found, wanted) if fake else "no fake tensors"
    check(f"{name}: fake", not wrong, wrong)


class _Seen(TorchDispatchMode):
    """Records each call of a firstlight operator."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "firstlight":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


def checked(name, function, tensors, wanted):
    """Runs ``opcheck`` on the operator of the call, with the call's arguments."""
    with _Seen() as seen, torch.no_grad():
        found = function(*fresh(tensors))
    wrong = same(found, wanted)
    check(f"{name}: under a mode", seen.calls and not wrong, wrong)
    # Since torch 2.4.
    opcheck = getattr(torch.library, "opcheck", None)
    for operator, args in seen.calls if opcheck is not None else ():
        args = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
        # torch cannot compare float8 tensors, so it cannot detect writes to them.
        narrow = any(isinstance(arg, torch.Tensor) and arg.dtype == torch.float8_e4m3fn for arg in args)
        tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic") + (() if narrow else ("test_schema",))
        try:
            said = opcheck(operator, args, {}, test_utils=tests)
            fine = set(said.values()) == {"SUCCESS"}
        except Exception as error:
            said, fine = f"{type(error).__name__}: {error}", False
        check(f"{name}: opcheck {operator}", fine, "" if fine else said)


def dynamic():
    """Symbolic sizes: one graph for all sizes."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def function(q, k, v, offsets):
        o = ops.attention(q, k, v, causal=True, cu_seqlens=offsets, return_lse=True)
        return ops.rms_norm(o[0]), o[1], ops.conv1d(q.flatten(1), q.new_ones(128, 4), cu_seqlens=offsets, return_state=True)[1]

    run = torch.compile(function, fullgraph=True, backend=backend, dynamic=True)
    for total, ends in ((20, [0, 7, 20]), (33, [0, 30, 33]), (12, [0, 1, 12])):
        q, k, v = (torch.randn(total, 2, 64) for _ in range(3))
        offsets = torch.tensor(ends, dtype=torch.int32)
        with torch.no_grad():
            wrong = same(run(q, k, v, offsets), function(q, k, v, offsets))
        check(f"dynamic sizes, {total} tokens", not wrong and len(graphs) == 1, wrong or f"{len(graphs)} graphs")


def settings():
    """A setting that changes between calls leads to another graph."""
    torch._dynamo.reset()
    run = torch.compile(lambda x, eps: ops.rms_norm(x, eps=eps), fullgraph=True, backend="eager")
    x = torch.randn(3, 8)
    for eps in (1e-5, 0.25, 2.0):
        with torch.no_grad():
            wrong = same(run(x, eps), ops.rms_norm(x, eps=eps))
        check(f"a setting of {eps}", not wrong, wrong)


def refused():
    """Errors are raised in a graph too."""
    torch._dynamo.reset()
    run = torch.compile(lambda x, w: ops.rms_norm(x, w), fullgraph=True, backend="eager")
    try:
        with torch.no_grad():
            run(torch.randn(2, 5, 64), torch.randn(63))
        said = "nothing"
    except Exception as error:
        said = str(error)
    check("a wrong shape in a graph", "rmsnorm" in said and "weight" in said, said.splitlines()[0] if said else "")


def copied():
    """A compiled module can be copied and traced by make_fx."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w = torch.randn(4, 16), torch.randn(16)
    with torch.no_grad():
        graph = make_fx(lambda x, w: ops.rms_norm(x, w))(x, w)
        wrong = same(copy.deepcopy(graph)(x * 2, w), ops.rms_norm(x * 2, w))
    there = any("firstlight" in str(node.target) for node in graph.graph.nodes)
    check("make_fx", there and not wrong, wrong or "an operator in its graph")
    # Inductor writes nodes into one-line comments.
    lines = [node.format_node() or "" for node in graph.graph.nodes]
    check("a node is a line", not any("\n" in line for line in lines))


def main(arguments):
    global BACKEND
    devices = [one for one in arguments if one in ("cpu", "cuda")] or ["cpu"]
    for device in devices:
        dtypes = (torch.float32, torch.bfloat16) if device == "cpu" else (torch.bfloat16,)
        for dtype in dtypes:
            for name, function, tensors in samples(dtype, device):
                if device == "cuda" and name.startswith("gated_delta"):
                    continue
                label = f"{device} {str(dtype).removeprefix('torch.')} {name}"
                with torch.no_grad():
                    wanted = function(*fresh(tensors))
                faked(label, function, tensors, wanted)
                if dtype == torch.bfloat16 and device == "cpu":
                    continue
                checked(label, function, tensors, wanted)
                if TORCH < (2, 3) and name.endswith((", in place", ", pool")):
                    # It does not functionalize operators that modify their arguments, and reports that.
                    continue
                for BACKEND in ("aot", "inductor"):
                    compiled(label, function, tensors, wanted)
    dynamic()
    settings()
    refused()
    copied()
    return cases.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
