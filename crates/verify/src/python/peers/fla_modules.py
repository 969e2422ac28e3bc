"""Modules of flash-linear-attention in Triton: the short convolution, whose states have W tokens, and the gated RMSNorm, which
normalizes before the gate."""


@peer("fla.causal_conv1d", "flash-linear-attention")
def convolution(case):
    function = package("fla.modules.causal_conv1d").causal_conv1d
    case.refuse(
        cu_seqlens="causal_conv1d is not tested with packed sequences",
        state_indices="it takes one state per sequence, not a pool",
        state_positions="it has no ring of states",
    )
    if case.word("layout") == "channel_first":
        raise NotApplicable("causal_conv1d takes tokens before channels")
    weight, state = case.tensor("weight"), case.get("initial_state")
    if state is not None:
        if state.shape[2] != weight.shape[1] - 1:
            raise NotApplicable("its states hold %d tokens, and these %d" % (weight.shape[1], state.shape[2]))
        # The oldest of its W tokens is not read.
        state = torch.nn.functional.pad(state, (1, 0))
    word = case.word("activation", "none")
    more = {
        "weight": weight,
        "bias": case.get("bias"),
        "initial_state": state,
        "output_final_state": True,
        "activation": None if word == "none" else word,
    }
    x = case.tensor("x")
    return lambda: function(x, **more), lambda result: {"o": result[0], "final_state": result[1][..., 1:]}


@peer("fla.rms_norm_gated", "flash-linear-attention")
def norm(case):
    function = package("fla.modules.norm.fused_norm_gate").rms_norm_gated
    if not case.has("gate") or not case.flag("norm_before_gate"):
        raise NotApplicable("rms_norm_gated normalises before it gates")
    weight = case.get("weight")
    if weight is not None and weight.dim() == 2:
        raise NotApplicable("rms_norm_gated has one weight for all groups")
    word = case.word("activation", "silu")
    call = [case.tensor("x"), case.tensor("gate"), weight, None, "swish" if word == "silu" else word]
    eps = case.number("eps", 1e-5)
    return lambda: function(*call, eps=eps), lambda o: {"o": o}
