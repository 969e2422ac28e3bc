"""The package flash-attn: causal masks are aligned bottom-right, as in the contract, and a window of -1 is unlimited."""


def arguments(case):
    case.refuse(
        block_table="this entry takes no pages",
        cache_seqlens="this entry takes no length per sequence",
        value_width="this entry takes values as a separate tensor",
    )
    window = (case.count("window_left", -1), case.count("window_right", -1))
    return {
        "softmax_scale": case.number("scale"),
        "causal": case.flag("causal"),
        "window_size": window,
        "softcap": case.number("softcap", 0.0),
    }


@peer("flash_attn.dense", "flash_attn")
def dense(case):
    attention = package("flash_attn").flash_attn_func
    case.refuse(cu_seqlens="flash_attn_func takes no packed sequences")
    more = arguments(case)
    q, k, v = (case.tensor(name) for name in "qkv")
    return lambda: attention(q, k, v, **more), lambda o: {"o": o}


@peer("flash_attn.varlen", "flash_attn")
def varlen(case):
    attention = package("flash_attn").flash_attn_varlen_func
    if not case.has("cu_seqlens"):
        raise NotApplicable("flash_attn_varlen_func takes packed sequences")
    more = arguments(case)
    q, k, v = (case.tensor(name) for name in "qkv")
    queries = case.tensor("cu_seqlens")
    keys = case.get("cu_seqlens_k")
    keys = queries if keys is None else keys
    longest = lambda offsets: int((offsets[1:] - offsets[:-1]).max()) if len(offsets) > 1 else 0
    most = (longest(queries), longest(keys))
    return lambda: attention(q, k, v, queries, keys, *most, **more), lambda o: {"o": o}
