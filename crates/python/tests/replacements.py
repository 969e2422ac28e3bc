"""Compares the functions of ``firstlight.compat`` with float64 formulas of the packages that they replace: ``python replacements.py [cuda]``.

It prints a line for each case and ends with 1 if one fails. Signatures are compared in ``alone.py``.
"""

import sys

import cases
import torch
import torch.nn.functional as F
from cases import refused

from firstlight import _mixers
from firstlight.compat import fla, flash_attn, flash_attn_interface, mamba_ssm
from firstlight.compat.causal_conv1d import causal_conv1d_fn, causal_conv1d_varlen_states

DEVICE = "cuda" if "cuda" in sys.argv[1:] else "cpu"
TYPES = (torch.bfloat16,) if DEVICE == "cuda" else (torch.float32, torch.bfloat16)
ALLOWED = {torch.float32: 3e-5, torch.bfloat16: 1.2e-2}


def check(name, found, wanted, dtype, factor=1):
    cases.near(f"{str(dtype)[6:]:9}{name}", found, wanted, factor * ALLOWED[dtype])


def softmax(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0.0):
    """Attention of q ``[B, Tq, H, D]`` in float64, aligned to the bottom right; and the log-sum-exp ``[B, H, Tq]``."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1], device=q.device)
    left, right = window
    seen = (key <= at) if causal else torch.ones_like(key <= at)
    seen = seen & (key >= at - left if left >= 0 else True) & (key <= at + right if right >= 0 else True)
    scores = scores.masked_fill(~seen, -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1).nan_to_num(), v), scores.logsumexp(-1)


def draw(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


def offsets(*lengths):
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


def packed_attention(dtype):
    settings = {"causal": True, "window_size": (5, 0), "softmax_scale": 0.3, "softcap": 4.0}
    formula = {"causal": True, "window": (5, 0), "scale": 0.3, "softcap": 4.0}
    qkv, q, kv = draw(2, 11, 3, 4, 32, dtype=dtype), draw(2, 7, 4, 32, dtype=dtype), draw(2, 13, 2, 2, 32, dtype=dtype)
    for name, given, wanted in (("plain", {}, {}), ("causal, window, scale, softcap", settings, formula)):
        check(f"flash_attn_qkvpacked_func, {name}", flash_attn.flash_attn_qkvpacked_func(qkv, **given), softmax(*qkv.unbind(2), **wanted)[0], dtype)
        check(f"flash_attn_kvpacked_func, {name}", flash_attn.flash_attn_kvpacked_func(q, kv, **given), softmax(q, *kv.unbind(2), **wanted)[0], dtype)
    o, lse, none = flash_attn.flash_attn_qkvpacked_func(qkv, return_attn_probs=True)
    check("  its log-sum-exp", lse, softmax(*qkv.unbind(2))[1], dtype)
    assert none is None
    lengths, lengths_k = (3, 1, 7), (4, 9, 2)
    flat = draw(11, 3, 4, 32, dtype=dtype)
    found = flash_attn.flash_attn_varlen_qkvpacked_func(flat, offsets(*lengths), 7, causal=True)
    wanted = [softmax(*(x[None] for x in part.unbind(1)), causal=True)[0][0] for part in flat.split(lengths)]
    check("flash_attn_varlen_qkvpacked_func", found, torch.cat(wanted), dtype)
    q, kv = draw(11, 4, 32, dtype=dtype), draw(15, 2, 2, 32, dtype=dtype)
    found = flash_attn.flash_attn_varlen_kvpacked_func(q, kv, offsets(*lengths), offsets(*lengths_k), 7, 9)
    wanted = torch.cat([softmax(a[None], b[None, :, 0], b[None, :, 1])[0][0] for a, b in zip(q.split(lengths), kv.split(lengths_k))])
    check("flash_attn_varlen_kvpacked_func", found, wanted, dtype)
    check("flash_attn_interface.flash_attn_varlen_func",
          flash_attn_interface.flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], offsets(*lengths), offsets(*lengths_k), 7, 9), wanted, dtype)
    # The same keys in pages of four tokens.
    pages, table = draw(12, 4, 2, 2, 32, dtype=dtype), torch.randperm(12, device=DEVICE)[:9].int().reshape(3, 3)
    rows = [pages[table[at].long()].reshape(12, 2, 2, 32)[:length] for at, length in enumerate(lengths_k)]
    found = flash_attn.flash_attn_varlen_func(
        q, pages[:, :, 0], pages[:, :, 1], offsets(*lengths), offsets(*lengths_k), 7, 9, causal=True, block_table=table
    )
    wanted = torch.cat([softmax(a[None], b[None, :, 0], b[None, :, 1], causal=True)[0][0] for a, b in zip(q.split(lengths), rows)])
    check("flash_attn_varlen_func with pages", found, wanted, dtype)


def third_interface(dtype):
    q, k, v = draw(2, 7, 4, 32, dtype=dtype), draw(2, 13, 2, 32, dtype=dtype), draw(2, 13, 2, 32, dtype=dtype)
    theirs = flash_attn_interface
    check("flash_attn_interface.flash_attn_func", theirs.flash_attn_func(q, k, v, 0.2, True, window_size=(6, 0)), softmax(q, k, v, True, (6, 0), 0.2)[0], dtype)
    o, lse = theirs.flash_attn_func(q, k, v, return_attn_probs=True, num_splits=3, pack_gqa=True, deterministic=True)
    check("  its log-sum-exp", lse, softmax(q, k, v)[1], dtype)
    qkv = draw(2, 9, 8, 32, dtype=dtype)
    found = theirs.flash_attn_qkvpacked_func(qkv, num_heads_q=4, causal=True)
    check("flash_attn_interface.flash_attn_qkvpacked_func, grouped heads", found, softmax(*qkv.split([4, 2, 2], 2), causal=True)[0], dtype)
    five = draw(2, 9, 3, 4, 32, dtype=dtype)
    check("flash_attn_interface.flash_attn_qkvpacked_func", theirs.flash_attn_qkvpacked_func(five), softmax(*five.unbind(2))[0], dtype)
    one = torch.ones(2, 2, device=DEVICE)
    refused("flash_attn_interface with `qv`", lambda: theirs.flash_attn_func(q, k, v, qv=q), "`qv`")
    refused("flash_attn_interface with scales", lambda: theirs.flash_attn_func(q, k, v, k_descale=one), "`k_descale`")
    refused("flash_attn_interface with chunks", lambda: theirs.flash_attn_func(q, k, v, attention_chunk=4), "`attention_chunk`")
    ends = offsets(3, 4)
    refused("flash_attn_interface with `seqused_k`", lambda: theirs.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 4, 4, seqused_k=ends), "`seqused_k`")
    refused("flash_attn_interface with `cache_leftpad`", lambda: theirs.flash_attn_with_kvcache(q, k, v, cache_leftpad=ends), "`cache_leftpad`")
    refused("new keys without lengths", lambda: theirs.flash_attn_with_kvcache(q, k, v, k=k[:, :1], v=v[:, :1]), "cache_seqlens")


def rotated(x, cos, sin, positions, interleaved):
    """Rotary embedding in float64, one channel pair at a time."""
    found, half = x.double().clone(), cos.shape[1]
    for at in range(half):
        one, other = (2 * at, 2 * at + 1) if interleaved else (at, at + half)
        c, s = (table.double()[positions, at][:, :, None] for table in (cos, sin))
        found[..., one] = x[..., one].double() * c - x[..., other].double() * s
        found[..., other] = x[..., one].double() * s + x[..., other].double() * c
    return found


def caches(dtype):
    q, new_k, new_v = draw(3, 2, 4, 32, dtype=dtype), draw(3, 2, 2, 32, dtype=dtype), draw(3, 2, 2, 32, dtype=dtype)
    lengths = torch.tensor([5, 0, 9], device=DEVICE, dtype=torch.int32)
    cos, sin = torch.cos(torch.rand(40, 8, device=DEVICE)), torch.sin(torch.rand(40, 8, device=DEVICE))
    cases = [("no rotation", None, True, True), ("neighbours", (cos, sin), True, True), ("halves", (cos, sin), False, True), ("not causal", (cos, sin), True, False)]
    for module in (flash_attn, flash_attn_interface):
        table_name = "block_table" if module is flash_attn else "page_table"
        for name, rotary, interleaved, causal in cases:
            for kind in ("rows", "pages", "other rows"):
                k, v = draw(5, 16, 2, 32, dtype=dtype), draw(5, 16, 2, 32, dtype=dtype)
                index = torch.tensor([4, 1, 2], device=DEVICE, dtype=torch.int32)
                given = {}
                if kind == "pages":
                    table = torch.randperm(20, device=DEVICE)[:12].int().reshape(3, 4)
                    pages_k, pages_v = draw(20, 4, 2, 32, dtype=dtype), draw(20, 4, 2, 32, dtype=dtype)
                    k, v = (pages[table.long()].reshape(3, 16, 2, 32).clone() for pages in (pages_k, pages_v))
                    given = {table_name: table}
                elif kind == "rows":
                    k, v = k[:3].clone(), v[:3].clone()
                else:
                    given = {"cache_batch_idx": index}
                caches = (pages_k, pages_v) if kind == "pages" else (k.clone(), v.clone())
                if rotary:
                    given.update(rotary_cos=rotary[0], rotary_sin=rotary[1], rotary_interleaved=interleaved)
                found = module.flash_attn_with_kvcache(q, *caches, k=new_k, v=new_v, cache_seqlens=lengths, causal=causal, **given)
                wanted = []
                for at in range(3):
                    row, used = (int(index[at]) if kind == "other rows" else at), int(lengths[at])
                    positions = torch.arange(used, used + 2, device=DEVICE)[None]
                    here, there = q[at : at + 1].double(), new_k[at : at + 1].double()
                    if rotary:
                        here = rotated(here, *rotary, positions if causal else torch.full_like(positions, used), interleaved)
                        there = rotated(there, *rotary, positions, interleaved)
                    keys = torch.cat((k[row : row + 1, :used].double(), there), 1)
                    values = torch.cat((v[row : row + 1, :used], new_v[at : at + 1]), 1)
                    wanted.append(softmax(here, keys, values, causal)[0])
                    if kind != "pages":
                        assert torch.equal(caches[1][row, used : used + 2], new_v[at]), "the cache has the new values"
                check(f"{module.__name__.rpartition('.')[2]}.flash_attn_with_kvcache, {name}, {kind}", found, torch.cat(wanted), dtype)
    k, v = draw(5, 16, 2, 32, dtype=dtype), draw(5, 16, 2, 32, dtype=dtype)
    found = flash_attn.flash_attn_with_kvcache(q, k, v, cache_batch_idx=index, cache_seqlens=lengths + 3)
    wanted = [softmax(q[at : at + 1], k[row : row + 1, : used + 3], v[row : row + 1, : used + 3])[0] for at, (row, used) in enumerate(zip(index.tolist(), lengths.tolist()))]
    check("flash_attn_with_kvcache over other rows", found, torch.cat(wanted), dtype)
    refused("rotation without new keys", lambda: flash_attn.flash_attn_with_kvcache(q, k[:3], v[:3], rotary_cos=cos, rotary_sin=sin), "rotary_cos")


def delta_rule(q, k, v, g, beta, state, scale):
    """The recurrence over tokens in float64; heads of q and k are repeated."""
    q, k, v, g, beta = (x.double() for x in (q, k, v, g, beta))
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    found = torch.zeros_like(v)
    state = state.double().clone()
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        change = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], change * beta[:, t][..., None])
        found[:, t] = torch.einsum("bhkv,bhk->bhv", state, q[:, t] * scale)
    return found, state


def gated_delta(dtype):
    for tokens in (1, 19, 70):
        q, k, v = draw(2, tokens, 2, 32, dtype=dtype), F.normalize(draw(2, tokens, 2, 32), dim=-1).to(dtype), draw(2, tokens, 4, 16, dtype=dtype)
        g, beta = F.logsigmoid(draw(2, tokens, 4)), draw(2, tokens, 4).sigmoid().to(dtype)
        state = draw(2, 4, 32, 16)
        wanted, after = delta_rule(q, k, v, g, beta, state, 0.2)
        for function in (fla.chunk_gated_delta_rule, fla.fused_recurrent_gated_delta_rule):
            name = f"{function.__name__}, {tokens} tokens"
            o, final = function(q, k, v, g=g, beta=beta, scale=0.2, initial_state=state, output_final_state=True)
            check(name, o, wanted, dtype)
            check("  its state", final, after, dtype)
            o, final = function(q, k, v, g=g, beta=beta, scale=0.2, initial_state=state.transpose(-1, -2), output_final_state=True, state_v_first=True)
            check("  its state with values first", final, after.transpose(-1, -2), dtype)
            assert function(q, k, v, g=g, beta=beta)[1] is None
        A_log, bias = draw(4), draw(4)
        logits, raw = draw(2, tokens, 4), draw(2, tokens, 4, dtype=dtype)
        decays = -A_log.double().exp() * F.softplus(logits.double() + bias.double())
        for negative in (False, True):
            wanted, _ = delta_rule(q, k, v, decays, raw.double().sigmoid() * (2 if negative else 1), torch.zeros_like(state), 32**-0.5)
            gates = {"use_gate_in_kernel": True, "A_log": A_log, "dt_bias": bias, "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": negative}
            check(f"  its gates, negative eigenvalues {negative}", fla.chunk_gated_delta_rule(q, k, v, logits, raw, **gates)[0], wanted, dtype)
    unit = q / q.double().square().sum(-1, keepdim=True).add(1e-6).sqrt()
    wanted, _ = delta_rule(unit, k / k.double().square().sum(-1, keepdim=True).add(1e-6).sqrt(), v, g, beta, torch.zeros_like(state), 32**-0.5)
    check("chunk_gated_delta_rule with normalised q and k", fla.chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0], wanted, dtype)
    parts, ends = (3, 17, 50), offsets(3, 17, 50)
    row = [x[:1] for x in (q, k, v, g, beta)]
    o, final = fla.chunk_gated_delta_rule(*row, cu_seqlens=ends.long(), cu_seqlens_cpu=ends.cpu(), output_final_state=True)
    pieces = [delta_rule(*piece, torch.zeros_like(state[:1]), 32**-0.5) for piece in zip(*(x.split(parts, 1) for x in row))]
    check("chunk_gated_delta_rule over packed sequences", o, torch.cat([one for one, _ in pieces], 1), dtype)
    check("  its states", final, torch.cat([one for _, one in pieces]), dtype)
    channels = g[..., None].expand(*g.shape, 32).contiguous()
    o, final = fla.chunk_kda(*row[:3], channels[:1], row[4], cu_seqlens=ends.long(), output_final_state=True)
    check("chunk_kda over packed sequences", o, torch.cat([one for one, _ in pieces], 1), dtype)
    check("  its states", final, torch.cat([one for _, one in pieces]), dtype)
    o, final = _mixers.gated_delta_rule(*row, cu_seqlens=ends, output_final_state=True)
    check("transformers' gated delta rule over packed sequences", o, torch.cat([one for one, _ in pieces], 1), dtype)
    wanted, _ = delta_rule(q, k, v, torch.zeros_like(g), torch.ones_like(beta), torch.zeros_like(state), 32**-0.5)
    check("fused_recurrent_gated_delta_rule without g and beta", fla.fused_recurrent_gated_delta_rule(q, k, v)[0], wanted, dtype)
    refused("an unknown keyword", lambda: fla.chunk_gated_delta_rule(q, k, v, g, beta, typo=1), "typo")
    refused("decays of channels", lambda: fla.fused_recurrent_gated_delta_rule(q, k, v, gk=g), "`gk`")
    refused("negative eigenvalues without logits", lambda: fla.chunk_gated_delta_rule(q, k, v, g, beta, allow_neg_eigval=True), "use_beta_sigmoid_in_kernel")


def sparse(q, k, v, gates, indices, counts, size, window, scale):
    """Native sparse attention of one sequence, q ``[Tq, HQ, K]``, in float64 with fla's block selection: o and the selected blocks."""
    q, k, v = (x.double() for x in (q, k, v))
    queries, tokens, heads, group = q.shape[0], k.shape[0], k.shape[1], q.shape[1] // k.shape[1]
    whole = tokens // size
    means = [x[: whole * size].reshape(whole, size, *x.shape[1:]).mean(1) for x in (k, v)]
    o, chosen = torch.zeros(queries, q.shape[1], v.shape[-1], dtype=torch.float64, device=q.device), []
    for t in range(queries):
        at, own = t + tokens - queries, (t + tokens - queries) // size
        rows = []
        for head in range(heads):
            here = slice(head * group, (head + 1) * group)
            visible = (at + 1) // size
            shares = (scale * q[t, here] @ means[0][:visible, head].T).softmax(-1)
            if gates[0] is not None and visible:
                o[t, here] += gates[0][t, here, None].double() * (shares @ means[1][:visible, head])
            if indices is None:
                scores = torch.zeros(own + 1, dtype=torch.float64, device=q.device)
                scores[: shares.shape[1]] = shares.mean(0)
                scores[[0, max(own - 1, 0), own]] = 1.0
                blocks = scores.topk(min(counts, own + 1)).indices.tolist()
            else:
                count = counts if isinstance(counts, int) else int(counts[t, head])
                blocks = indices[t, head, :count].tolist()
            rows.append(sorted(blocks))
            spans = [(size * block, min(size * block + size, at + 1)) for block in {one for one in blocks if 0 <= one <= own}]
            spans = [(spans, gates[1])] + ([([(max(at - window + 1, 0), at + 1)], gates[2])] if window else [])
            for parts, gate in spans:
                seen = torch.tensor([one for start, end in parts for one in range(start, end)], dtype=torch.long, device=q.device)
                shares = (scale * q[t, here] @ k[seen, head].T).softmax(-1)
                o[t, here] += (1.0 if gate is None else gate[t, here, None].double()) * (shares @ v[seen, head])
        chosen.append(rows)
    return o, chosen


def native_sparse(dtype):
    size, heads, queries = 16, 2, 32
    for tokens, counts, window, gated in ((150, 4, 0, True), (150, 16, 40, True), (37, 4, 16, False), (1, 4, 8, True)):
        q, k, v = draw(2, tokens, queries, 32, dtype=dtype), draw(2, tokens, heads, 32, dtype=dtype), draw(2, tokens, heads, 24, dtype=dtype)
        gates = [draw(2, tokens, queries).sigmoid().to(dtype) for _ in range(3)]
        gates[1] = gates[1] if gated else None
        found = fla.parallel_nsa(q, k, v, *gates, block_counts=counts, block_size=size, window_size=window, scale=0.3)
        wanted = torch.stack([sparse(q[at], k[at], v[at], [None if one is None else one[at] for one in gates], None, counts, size, window, 0.3)[0] for at in range(2)])
        check(f"parallel_nsa, {tokens} tokens, {counts} blocks, window {window}, gate of the selected {gated}", found, wanted, dtype)
    q, k, v = draw(2, 70, queries, 32, dtype=dtype), draw(2, 150, heads, 32, dtype=dtype), draw(2, 150, heads, 24, dtype=dtype)
    gate = draw(2, 70, queries).sigmoid().to(dtype)
    found = fla.parallel_nsa(q, k, v, gate, gate, block_counts=4, block_size=size)
    wanted = torch.stack([sparse(q[at], k[at], v[at], [gate[at], gate[at], None], None, 4, size, 0, 32**-0.5)[0] for at in range(2)])
    check("  the last 70 of 150 tokens", found, wanted, dtype)
    indices = torch.stack([torch.randperm(10, device=DEVICE)[:4] for _ in range(2 * 70 * heads)]).reshape(2, 70, heads, 4)
    indices[..., 0] = 0
    for counts in (4, torch.randint(1, 5, (2, 70, heads), device=DEVICE)):
        each = [counts if isinstance(counts, int) else counts[at] for at in range(2)]
        found = fla.parallel_nsa(q, k, v, block_indices=indices, block_counts=counts, block_size=size)
        wanted = torch.stack([sparse(q[at], k[at], v[at], [None] * 3, indices[at], each[at], size, 0, 32**-0.5)[0] for at in range(2)])
        check(f"parallel_nsa over given blocks, as many {'for all' if isinstance(counts, int) else 'as each query has'}", found, wanted, dtype)
    parts, ends = (3, 17, 50), offsets(3, 17, 50)
    row = [q[:1], k[:1, :70], v[:1, :70], gate[:1], gate[:1], gate[:1]]
    found = fla.parallel_nsa(*row, block_counts=4, block_size=size, window_size=20, cu_seqlens=ends.long())
    pieces = list(zip(*(one[0].split(parts) for one in row)))
    wanted = [sparse(*one[:3], one[3:], None, 4, size, 20, 32**-0.5)[0] for one in pieces]
    check("parallel_nsa over packed sequences", found, torch.cat(wanted)[None], dtype)
    inside = indices[:1] % 4
    found = fla.parallel_nsa(*row[:3], block_indices=inside, block_counts=4, block_size=size, cu_seqlens=(ends.long(), ends.long()))
    wanted = [sparse(*one[:3], [None] * 3, some, 4, size, 0, 32**-0.5)[0] for one, some in zip(pieces, inside[0].split(parts))]
    check("  and given blocks", found, torch.cat(wanted)[None], dtype)
    refused("parallel_nsa without blocks", lambda: fla.parallel_nsa(q, k, v), "`block_indices`, or `g_cmp`")
    refused("a window without its gate", lambda: fla.parallel_nsa(q, k, v, gate, window_size=8), "`g_swa`")
    refused("blocks of each query", lambda: fla.parallel_nsa(q, k, v, gate, block_counts=indices[..., 0]), "`block_counts`")
    refused("two blocks, of which fla defines no order", lambda: fla.parallel_nsa(q, k, v, gate, block_counts=2), "below 3")


def norms(dtype):
    x, z, weight = draw(2, 5, 96, dtype=dtype), draw(2, 5, 96, dtype=dtype), draw(96, dtype=dtype)
    for group in (None, 32, 96):
        for first in (True, False):
            for gate in (z, None):
                one = x.double() if gate is None or first else x.double() * F.silu(z.double())
                grouped = one.reshape(2, 5, -1, group or 96)
                wanted = (grouped * (grouped.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).reshape(x.shape) * weight.double()
                if gate is not None and first:
                    wanted = wanted * F.silu(z.double())
                for function, more in ((mamba_ssm.rmsnorm_fn, {}), (mamba_ssm.layernorm_fn, {"is_rms_norm": True})):
                    found = function(x, weight, None, gate, 1e-5, group, first, **more)
                    check(f"{function.__name__}, groups of {group}, norm before gate {first}, gate {gate is not None}", found, wanted, dtype)
    refused("rmsnorm_fn with a bias", lambda: mamba_ssm.rmsnorm_fn(x, weight, weight), "`bias`")
    refused("layernorm_fn with a mean", lambda: mamba_ssm.layernorm_fn(x, weight, None), "layer_norm_with_a_mean")
    refused("groups that do not divide", lambda: mamba_ssm.rmsnorm_fn(x, weight, None, group_size=36), "group_size")


def varlen_states(dtype):
    x, lengths = draw(13, 6, dtype=dtype), (1, 5, 2, 5)
    ends = offsets(*lengths)
    found = causal_conv1d_varlen_states(x, ends, 4)
    wanted = torch.zeros(4, 6, 4, device=DEVICE, dtype=torch.float64)
    for at, part in enumerate(x.split(lengths)):
        part = part[-4:].double()
        wanted[at, :, 4 - part.shape[0] :] = part.T
    check("causal_conv1d_varlen_states", found, wanted, dtype)
    assert torch.equal(found.double(), wanted)
    heads, width, groups, states = 4, 16, 2, 32
    x, dt = draw(1, 13, heads, width, dtype=dtype), draw(1, 13, heads, dtype=dtype)
    A, B, C = -draw(heads).exp(), draw(1, 13, groups, states, dtype=dtype), draw(1, 13, groups, states, dtype=dtype)
    sequence = torch.repeat_interleave(torch.arange(4, device=DEVICE), torch.tensor(lengths, device=DEVICE))[None].int()
    given = {"dt_softplus": True, "return_final_states": True}
    y, final, each = mamba_ssm.mamba_chunk_scan_combined(x, dt, A, B, C, 64, seq_idx=sequence, cu_seqlens=ends, return_varlen_states=True, **given)
    alone = [mamba_ssm.mamba_chunk_scan_combined(*(one for one in part[:2]), A, *part[2:], 64, **given) for part in zip(*(one.split(lengths, 1) for one in (x, dt, B, C)))]
    check("mamba_chunk_scan_combined with states of each sequence", y, torch.cat([one for one, _ in alone], 1), dtype)
    check("  these states", each, torch.cat([one for _, one in alone]), dtype)
    check("  the last state", final, alone[-1][1], dtype)
    y, each = mamba_ssm.mamba_chunk_scan_combined(x, dt, A, B, C, 64, seq_idx=sequence, cu_seqlens=ends, return_varlen_states=True, dt_softplus=True)
    check("  alone", each, torch.cat([one for _, one in alone]), dtype)
    assert each.dtype == dtype and final.dtype == torch.float32
    each = mamba_ssm.mamba_chunk_scan_combined(x, dt, A, B, C, 64, seq_idx=sequence, cu_seqlens=ends, return_varlen_states=True, state_dtype=torch.float16)[1]
    assert each.dtype == torch.float16
    scan = mamba_ssm.mamba_chunk_scan_combined
    refused("states of sequences without their numbers", lambda: scan(x, dt, A, B, C, 64, cu_seqlens=ends, return_varlen_states=True), "seq_idx")
    refused("states of sequences without offsets", lambda: scan(x, dt, A, B, C, 64, seq_idx=sequence, return_varlen_states=True), "cu_seqlens")


def split_layer(dtype):
    heads, width, groups, states = 4, 16, 2, 32
    inner, channels = heads * width, heads * width + 2 * groups * states
    zxbcdt = draw(2, 9, inner + channels + heads, dtype=dtype)
    weight, bias, norm = draw(channels, 4, dtype=dtype), draw(channels, dtype=dtype), draw(inner, dtype=dtype)
    dt_bias, A, D, out = draw(heads), -draw(heads).exp(), draw(heads), draw(24, inner, dtype=dtype)
    z, xbc, dt = (one.double() for one in zxbcdt.split([inner, channels, heads], -1))
    padded = F.pad(xbc.transpose(1, 2), (3, 0))
    xbc = F.silu(F.conv1d(padded, weight.double()[:, None], bias.double(), groups=channels)).transpose(1, 2)
    x, b, c = xbc.split([inner, groups * states, groups * states], -1)
    x, b, c = x.unflatten(-1, (heads, width)), *(one.unflatten(-1, (groups, states)).repeat_interleave(heads // groups, 2) for one in (b, c))
    dt = F.softplus(dt + dt_bias.double())
    state, y = torch.zeros(2, heads, width, states, dtype=torch.float64, device=DEVICE), torch.zeros_like(x)
    for t in range(9):
        state = state * (dt[:, t] * A.double()).exp()[..., None, None] + torch.einsum("bh,bhp,bhn->bhpn", dt[:, t], x[:, t], b[:, t])
        y[:, t] = torch.einsum("bhpn,bhn->bhp", state, c[:, t]) + D.double()[:, None] * x[:, t]
    y = y.flatten(-2)
    grouped = y.unflatten(-1, (groups, -1))
    normed = (grouped * (grouped.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).flatten(-2) * norm.double()
    given = {"headdim": width, "ngroups": groups, "return_final_states": True}
    layer = mamba_ssm.mamba_split_conv1d_scan_combined
    found, final = layer(zxbcdt, weight, bias, dt_bias, A, D, 64, state_dtype=torch.bfloat16, **given)
    check("mamba_split_conv1d_scan_combined", found, y * F.silu(z), dtype, 2)
    check("  its state", final, state, dtype)
    assert final.dtype == torch.float32
    found, final = layer(zxbcdt, weight, bias, dt_bias, A, D, 64, rmsnorm_weight=norm, rmsnorm_eps=1e-5, outproj_weight=out, **given)
    check("  with a norm and a projection", found, (normed * F.silu(z)) @ out.double().T, dtype, 2)
    assert causal_conv1d_fn is not None and final.dtype == torch.float32


@torch.no_grad()
def main():
    for dtype in TYPES:
        torch.manual_seed(5)
        for part in (packed_attention, third_interface, caches, gated_delta, native_sparse, norms, varlen_states, split_layer):
            try:
                part(dtype)
            except Exception as error:  # an unexpected exception fails the part
                cases.check(part.__name__, False, f"{type(error).__name__}: {error}")
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
