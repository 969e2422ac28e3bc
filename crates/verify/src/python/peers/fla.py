"""flash-linear-attention's KDA: chunked for prefill, recurrent for single tokens. Its log decay has the contract's sign (zero
or below) and its states are [K, V], as the contract's."""

import os

# If FlashKDA can be imported, chunk_kda runs it instead without a message.
os.environ["FLA_FLASH_KDA"] = "0"


def arguments(case):
    case.refuse(state_indices="it takes one state per sequence, not a pool")
    packed = case.has("cu_seqlens")
    batched = lambda tensor: tensor.unsqueeze(0) if packed else tensor
    tensors = [batched(case.tensor(name)) for name in ("q", "k", "v", "g", "beta")]
    state = case.get("initial_state")
    more = {
        "scale": case.number("scale"),
        "output_final_state": True,
        "use_qk_l2norm_in_kernel": case.flag("l2norm"),
        "initial_state": None if state is None else state.float(),
    }
    if packed:
        more["cu_seqlens"] = case.tensor("cu_seqlens").long()
    if case.has("A_log"):
        bias = case.get("dt_bias")
        more.update(
            use_gate_in_kernel=True,
            use_beta_sigmoid_in_kernel=True,
            A_log=case.tensor("A_log").float(),
            dt_bias=None if bias is None else bias.reshape(-1).float(),
            allow_neg_eigval=case.flag("allow_neg_eigval"),
        )
        if case.word("gate") == "safe":
            more["lower_bound"] = case.number("lower_bound", -5.0)
    unbatched = lambda o: o.squeeze(0) if packed else o
    return tensors, more, lambda result: {"o": unbatched(result[0]), "final_state": result[1]}


@peer("fla.chunk_kda", "flash-linear-attention")
def chunk(case):
    function = package("fla.ops.kda").chunk_kda
    tensors, more, collect = arguments(case)
    if "lower_bound" in more:
        more["safe_gate"] = True
    return lambda: function(*tensors, **more), collect


@peer("fla.fused_recurrent_kda", "flash-linear-attention")
def recurrent(case):
    function = package("fla.ops.kda").fused_recurrent_kda
    tensors, more, collect = arguments(case)
    return lambda: function(*tensors, **more), collect


@peer("fla.parallel_nsa", "flash-linear-attention")
def nsa(case):
    module = package("fla.ops.nsa.parallel")
    wanted = {"compress_block": 32, "compress_stride": 16, "select_block": 64}
    sizes = {case.count(name, size) for name, size in wanted.items()}
    # If compressed and selected blocks are equal, a block's importance is its own compressed score.
    if len(sizes) != 1:
        raise NotApplicable("parallel_nsa has one block size for all branches")
    if case.word("pooling", "mean") != "mean" or case.word("gate", "given") != "given":
        raise NotApplicable("parallel_nsa pools by the mean and takes gates as they are")
    if (case.count("initial_blocks", 1), case.count("local_blocks", 2)) != (1, 2):
        raise NotApplicable("parallel_nsa always selects the first block and the last two")
    case.refuse(
        cu_seqlens="parallel_nsa is not tested with packed sequences",
        k_cmp="parallel_nsa compresses keys itself",
        v_cmp="parallel_nsa compresses values itself",
    )
    chosen = case.get("block_indices")
    if not case.has("g_slc") or (chosen is None and not case.has("g_cmp")):
        raise NotApplicable("parallel_nsa has no call without its selected branch, and selects by its compressed one")
    if case.has("g_swa") and getattr(module, "flash_attn_func", None) is None:
        raise NotApplicable("parallel_nsa leaves its window to flash_attn, which it could not import")
    (size,) = sizes
    count = case.count("select_count", 16 if chosen is None else chosen.shape[-1])
    q, k, v = (case.tensor(name) for name in "qkv")
    group = q.shape[2] // k.shape[2]
    if group < 16 or group & (group - 1):
        raise NotApplicable("parallel_nsa needs 16, 32, .. query heads for each key head, got %d" % group)
    window = case.count("window", 512) if case.has("g_swa") else 0
    more = {"block_counts": count, "block_size": size, "window_size": window, "scale": case.number("scale")}
    gates = [case.get(name) for name in ("g_cmp", "g_slc", "g_swa")]

    def collect(o):
        blocks = chosen
        if blocks is None:
            # parallel_nsa does not return its selection; the same functions compute it again.
            scale = more["scale"] or k.shape[-1] ** -0.5
            pooled = module.mean_pooling(k, size, None), module.mean_pooling(v, size, None)
            _, sums = module.parallel_nsa_compression(
                q=q, k=pooled[0], v=pooled[1], TK=k.shape[1], block_size=size, scale=scale, cu_seqlens=None
            )
            blocks = module.parallel_nsa_topk(
                q=q, k=pooled[0], lse=sums, TK=k.shape[1], block_counts=count, block_size=size, scale=scale, cu_seqlens=None
            )
        # In the contract's order: ascending, padded with -1.
        last = torch.iinfo(torch.int32).max
        ordered = blocks.int().masked_fill(blocks < 0, last).sort(-1).values[..., :count]
        return {"o": o, "indices": ordered.masked_fill(ordered == last, -1)}

    return lambda: module.parallel_nsa(q, k, v, *gates, block_indices=chosen, **more), collect
