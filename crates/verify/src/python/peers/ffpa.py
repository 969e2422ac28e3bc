"""FFPA's two forward kernels. For some lengths and head dims it calls scaled_dot_product_attention instead without a message;
the names of the kernels that ran show it."""


def backend(name):
    @peer("ffpa." + name, "ffpa_attn")
    def prepare(case):
        attention = package("ffpa_attn").ffpa_attn_func
        case.refuse(
            cu_seqlens="ffpa_attn_func takes no packed sequences",
            cache_seqlens="ffpa_attn_func takes no length per sequence",
            softcap="ffpa_attn_func has no soft cap",
            value_width="ffpa_attn_func takes values as a separate tensor",
            window_left="ffpa_attn_func has no window",
            window_right="ffpa_attn_func has no window",
        )
        q, k, v = (case.tensor(name).transpose(1, 2).contiguous() for name in "qkv")
        # A single query sees all keys, with either alignment of the mask.
        causal = case.flag("causal") and q.shape[2] != 1
        if causal and q.shape[2] != k.shape[2]:
            raise NotApplicable("is_causal is aligned top-left, and this call is no square")
        more = {"is_causal": causal, "scale": case.number("scale"), "backend": name}
        if q.shape[1] != k.shape[1]:
            more["enable_gqa"] = True
        return lambda: attention(q, k, v, **more), lambda o: {"o": o.transpose(1, 2)}


backend("triton")
backend("cutedsl")
