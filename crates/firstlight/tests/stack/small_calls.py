"""The installed stand-in packages. Each accepts only small attention calls, which pure Python computes quickly.

Other calls are skipped, which is neither a failure nor a pass.
"""

import cheats
import fake_flash_attn
import right
from unittest import SkipTest


def small(function):
    def call(tensors, settings):
        q, k = tensors["q"], tensors["k"]
        if set(tensors) != {"q", "k", "v"} or set(settings) - {"causal"} or q.format != "f":
            raise SkipTest("this stand-in takes plain calls in float32")
        if q.shape[1] * k.shape[1] * q.shape[2] * q.shape[3] > 600000:
            raise SkipTest("this stand-in takes small calls")
        return function(tensors, settings)

    return call


attention = small(right.attention)
flash_attn_func = small(fake_flash_attn.flash_attn_func)
falls_back_below_512 = small(fake_flash_attn.falls_back_below_512)
flash_fwd = small(fake_flash_attn.flash_fwd_kernel)
cached = small(cheats.cached)
for_seed_0 = small(cheats.for_seed_0)
unvisited_tiles = small(cheats.unvisited_tiles)
top_left = small(cheats.top_left)
nan_rows = small(cheats.nan_rows)
says_pass = small(cheats.says_pass)
skips = small(cheats.skips)
crashes = small(cheats.crashes)


@small
def sees_nothing(tensors, settings):
    # After this late import, the observer in this process sees no kernels.
    import blind

    return blind.attention(tensors, settings)
