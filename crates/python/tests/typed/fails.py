"""Type checkers must report exactly the lines that end with the comment `error`."""

import numpy as np

import firstlight
import firstlight.compat.flash_attn
import firstlight.transformers
from firstlight import ops

x = np.zeros((2, 3, 4, 8), dtype=np.float32)

ops.attention("no", 3, 4, causal="maybe")  # error
ops.attention(x, x, x, causal="maybe")  # error
ops.attention(x, x, x, casual=True)  # error
ops.attention(x, x, x, window=5)  # error
ops.attention(x, x, x, return_lse=True).sum()  # error
ops.rms_norm([1.0, 2.0])  # error
ops.rms_norm(x, eps="small")  # error
ops.rms_norm(x, activation="gelu")  # error
ops.conv1d(x, x, layout="nchw")  # error
ops.kda(x, x, x, x)  # error
ops.moe(x, x, x, x)  # error
ops.moe(x, x, x, x, top_k=2, score="softmax")  # error
ops.gelu(x)  # error
ops.linear(x, None)  # error
firstlight.nothing  # error
firstlight.status()["lunches"]  # error
firstlight.status("cuda")  # error
firstlight.why(3)  # error
firstlight.patch(3)  # error
firstlight.patch().names()  # error
firstlight.compat.flash_attn.flash_attn_func(x, x, x, causal="maybe")  # error
firstlight.compat.flash_attn.flash_attn_func("no", x, x)  # error
firstlight.transformers.enable(1, 2)  # error
firstlight.transformers.enable(x).lost  # error
