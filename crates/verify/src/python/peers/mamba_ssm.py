"""mamba_ssm's kernels: the chunked scan of Mamba-2, the selective scan of Mamba ([B, E, T]), and the one-token update of both, which
writes the state in place."""


def steps(case):
    return (case.number("dt_min", 0.0), case.number("dt_max", float("inf")))


@peer("mamba_ssm.chunk_scan", "mamba_ssm")
def scan(case):
    function = package("mamba_ssm.ops.triton.ssd_combined").mamba_chunk_scan_combined
    case.refuse(
        cu_seqlens="mamba_chunk_scan_combined has no initial state for each packed sequence",
        state_indices="it takes one state per sequence, not a pool",
        state_dtype="its final states are float32",
    )
    tensors = [case.tensor(name) for name in ("x", "dt", "A", "B", "C")]
    more = {
        "D": case.get("D"),
        "z": case.get("z"),
        "dt_bias": case.get("dt_bias"),
        "initial_states": case.get("initial_state"),
        "dt_softplus": case.flag("dt_softplus", True),
        "dt_limit": steps(case),
        "return_final_states": True,
    }
    chunk = case.count("chunk_size", 256)
    return lambda: function(*tensors, chunk, **more), lambda result: {"o": result[0], "final_state": result[1]}


@peer("mamba_ssm.state_update", "mamba_ssm")
def update(case):
    function = package("mamba_ssm.ops.triton.selective_state_update").selective_state_update
    case.refuse(
        cu_seqlens="selective_state_update takes a token for each sequence",
        state_indices="states of padding are not left alone",
    )
    batch, tokens, heads, channels = case.shape("x")
    if tokens != 1:
        raise NotApplicable("selective_state_update takes a token for each sequence, and there are %d" % tokens)
    if steps(case) != (0.0, float("inf")):
        raise NotApplicable("selective_state_update has no limit of the step sizes")
    width = case.shape("B")[3]
    wide = lambda tensor: None if tensor is None else tensor[..., None].expand(*tensor.shape, channels)
    state = case.get("initial_state")
    state = torch.zeros(batch, heads, channels, width, device=case.device) if state is None else state.clone()
    x, b, c = (case.tensor(name)[:, 0] for name in ("x", "B", "C"))
    skip, gate = case.get("D"), case.get("z")
    more = {
        "D": wide(skip) if skip is not None and skip.dim() == 1 else skip,
        "z": None if gate is None else gate[:, 0],
        "dt_bias": wide(case.get("dt_bias")),
        "dt_softplus": case.flag("dt_softplus", True),
    }
    rates = case.tensor("A").float()[:, None, None].expand(heads, channels, width)
    dt = wide(case.tensor("dt")[:, 0])
    return lambda: function(state, x, dt, rates, b, c, **more), lambda o: {"o": o.unsqueeze(1), "final_state": state}


@peer("mamba_ssm.selective_scan", "mamba_ssm")
def selective_scan(case):
    function = package("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
    case.refuse(
        cu_seqlens="selective_scan_fn takes sequences of one length",
        initial_state="selective_scan_fn begins with no state",
    )
    if case.tensor("delta").dtype != case.tensor("u").dtype:
        raise NotApplicable("selective_scan_fn takes step sizes in the type of u")
    first = lambda name: None if case.get(name) is None else case.tensor(name).transpose(1, 2).contiguous()
    each = lambda name: case.tensor(name).permute(0, 2, 3, 1).contiguous()
    wide = lambda name: None if case.get(name) is None else case.tensor(name).float()
    tensors = [first("u"), first("delta"), wide("A"), each("B"), each("C"), wide("D"), first("z"), wide("delta_bias")]
    softplus = case.flag("delta_softplus", True)
    return lambda: function(*tensors, softplus, True), lambda found: {"o": found[0].transpose(1, 2), "final_state": found[1]}


@peer("mamba_ssm.selective_update", "mamba_ssm")
def selective_update(case):
    function = package("mamba_ssm.ops.triton.selective_state_update").selective_state_update
    case.refuse(
        cu_seqlens="selective_state_update takes a token for each sequence",
        state_indices="states of padding are not left alone",
    )
    batch, tokens, channels = case.shape("u")
    groups, width = case.shape("B")[2:]
    if tokens != 1 or groups != 1:
        raise NotApplicable("without heads it takes a token for each sequence and one group, got %d and %d" % (tokens, groups))
    state = case.get("initial_state")
    state = torch.zeros(batch, channels, width, device=case.device) if state is None else state.clone()
    u, delta, b, c = (case.tensor(name)[:, 0] for name in ("u", "delta", "B", "C"))
    gate = case.get("z")
    more = {"D": case.get("D"), "z": None if gate is None else gate[:, 0], "dt_bias": case.get("delta_bias")}
    more["dt_softplus"] = case.flag("delta_softplus", True)
    tensors = (state, u, delta, case.tensor("A"), b[:, 0], c[:, 0])
    return lambda: function(*tensors, **more), lambda o: {"o": o.unsqueeze(1), "final_state": state}
