"""torch.nn.functional.scaled_dot_product_attention, one peer per backend.

The contract's causal mask is aligned bottom-right and torch's `is_causal` top-left: they agree only if there are as many queries as keys. A single
query sees every key; every other causal call and every window needs an explicit mask, which the flash backend does not support.
"""


def mask(case, queries, keys):
    """(mask, is_causal) for the call."""
    causal = case.flag("causal")
    left, right = case.count("window_left"), case.count("window_right")
    if left is None and right is None:
        if not causal or (queries == 1 and keys > 0):
            return None, False
        if queries == keys:
            return None, True
    # The key at the query's own position is i + Tk - Tq.
    own = torch.arange(queries, device=case.device)[:, None] + (keys - queries)
    key = torch.arange(keys, device=case.device)[None, :]
    seen = torch.ones(queries, keys, dtype=torch.bool, device=case.device)
    if causal:
        seen &= key <= own
    if left is not None:
        seen &= key >= own - left
    if right is not None:
        seen &= key <= own + right
    return seen, False


def backend(name, word):
    @peer("torch.sdpa." + name, "torch")
    def prepare(case):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        case.refuse(
            cu_seqlens="scaled_dot_product_attention takes no packed sequences",
            cache_seqlens="scaled_dot_product_attention takes no length per sequence",
            softcap="scaled_dot_product_attention has no soft cap",
            value_width="scaled_dot_product_attention takes values as a separate tensor",
        )
        if 0 in case.shape("q")[:2] + case.shape("k")[:2]:
            raise NotApplicable("torch launches no kernel without queries or keys")
        q, k, v = (case.tensor(name).transpose(1, 2).contiguous() for name in "qkv")
        seen, causal = mask(case, q.shape[2], k.shape[2])
        chosen, scale, shared = getattr(SDPBackend, word), case.number("scale"), q.shape[1] != k.shape[1]
        attention = torch.nn.functional.scaled_dot_product_attention
        more = {"enable_gqa": True} if shared else {}

        def run():
            with sdpa_kernel(chosen):
                return attention(q, k, v, attn_mask=seen, is_causal=causal, scale=scale, **more)

        def refusing():
            # torch warns why each backend cannot run, then raises this.
            try:
                return run()
            except RuntimeError as error:
                if "No available kernel" in str(error) or "No viable backend" in str(error):
                    raise NotApplicable("torch has no %s kernel for this call" % name)
                raise

        return refusing, lambda o: {"o": o.transpose(1, 2)}


backend("math", "MATH")
backend("efficient", "EFFICIENT_ATTENTION")
backend("flash", "FLASH_ATTENTION")
backend("cudnn", "CUDNN_ATTENTION")
