"""A package named like flash_attn whose function calls another one, as found on one machine."""

import right


def flash_attn_func(tensors, settings):
    return right.attention(tensors, settings)


def falls_back_below_512(tensors, settings):
    if tensors["q"].shape[1] < 512:
        return right.attention(tensors, settings)
    return flash_fwd_kernel(tensors, settings)


def flash_fwd_kernel(tensors, settings):
    return right.attention(tensors, settings)
