"""Tests the package without other packages: its imports, tables and errors, and the signatures of the functions in compat."""

import inspect
import json
import os
import sys
import time

start = time.perf_counter()
import firstlight

took = (time.perf_counter() - start) * 1e3
loaded = {"torch", "numpy", "cupy", "transformers", "ctypes"} & set(sys.modules)
assert loaded <= {"ctypes"}, loaded
assert took < 1000, f"import took {took:.0f} ms"

# The library loads: tables, handles and errors.
tables = firstlight.tables()
assert {"attention", "kda", "gated_delta", "ssd", "selective_scan", "conv1d", "nsa", "rmsnorm", "linear", "moe"} <= set(tables), tables.keys()
assert tables["ssd"]["inputs"][0]["name"] == "x" and tables["ssd"]["settings"]
assert firstlight.launches() == {}

from firstlight import _library

try:
    _library.op("conv1d").handle((("activation", "gelu"),))
    raise SystemExit("a wrong setting was taken")
except firstlight.Refused as error:
    assert "gelu" in str(error) and "silu" in str(error), error
assert _library.library().fl_call(77, None, 0, None) == 1 and "handle 77" in str(_library.refused())
try:
    firstlight.ops.rms_norm([1.0])
    raise SystemExit("a list was taken")
except (TypeError, AttributeError):
    pass

# The signatures in the packages' sources, without annotations.
recorded = json.load(open(os.path.join(os.path.dirname(__file__), "signatures.json")))
for package, functions in recorded.items():
    module = getattr(__import__(f"firstlight.compat.{package}", fromlist=["x"]), "__dict__")
    for name, signature in functions.items():
        ours = inspect.signature(module[name])
        bare = [parameter.replace(annotation=parameter.empty) for parameter in ours.parameters.values()]
        ours = str(ours.replace(parameters=bare, return_annotation=ours.empty))
        assert ours == signature, f"{package}.{name}: {ours}, recorded {signature}"
    assert set(module["__all__"]) == set(functions), package
assert not {"torch", "numpy", "transformers"} & set(sys.modules)
print(f"import {took:.1f} ms, {sum(map(len, recorded.values()))} signatures")
