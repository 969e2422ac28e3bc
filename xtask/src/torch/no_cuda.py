"""Stand-ins for the libraries of CUDA that a torch names, 3 GB that a machine without a GPU never calls: ``no_cuda.py SITE``.

The wheel of torch itself, its runtime of CUDA and CUPTI are the real ones. Each function of the others that torch could call says its name
and ends the process, so that nothing can pass by them.
"""

import pathlib
import re
import subprocess
import sys

FAMILIES = "cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvshmem|cufile"


def said(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


lib = pathlib.Path(sys.argv[1]) / "torch" / "lib"
libraries = [str(path) for path in sorted(lib.glob("lib*.so"))]
names = sorted(set(re.findall(rf"^ +U ((?:{FAMILIES})\w+)", said("nm", "-D", "-u", *libraries), re.I | re.M)))
needed = sorted(set(re.findall(rf"NEEDED.*\[(lib(?:{FAMILIES})\w*\.so.*)\]", said("readelf", "-dW", *libraries), re.I)))
assert names and needed, "this torch names no library of CUDA"
source = ["#include <stdio.h>", "#include <stdlib.h>"]
source += [f'void {name}(void) {{ fputs("{name} was called, and there is no CUDA here\\n", stderr); abort(); }}' for name in names]
(lib / "no_cuda.c").write_text("\n".join(source) + "\n")
subprocess.run(["cc", "-shared", "-fPIC", "-o", lib / "libno_cuda.so", lib / "no_cuda.c"], check=True)
for name in needed:
    (lib / name).symlink_to("libno_cuda.so")
