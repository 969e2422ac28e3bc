"""Dao-AILab's causal_conv1d. Tensors are [B, C, T] and fastest if C is the contiguous dimension; states have the storage type."""


def refuse(case):
    case.refuse(
        cu_seqlens="its packed form has no states",
        state_indices="states of padding are not left alone",
    )


def activation(case):
    word = case.word("activation", "none")
    return None if word == "none" else word


def channels_first(case):
    x = case.tensor("x")
    return x if case.word("layout") == "channel_first" else x.transpose(1, 2)


@peer("causal_conv1d.fn", "causal_conv1d")
def function(case):
    call = package("causal_conv1d").causal_conv1d_fn
    refuse(case)
    case.refuse(state_positions="causal_conv1d_fn has no ring of states")
    if case.word("layout") == "channel_first" and case.has("initial_state"):
        raise NotApplicable("causal_conv1d_fn takes states where channels lie last")
    weight = case.tensor("weight")
    x, width, state = channels_first(case), weight.shape[1], case.get("initial_state")
    if state is not None:
        if state.shape[2] != width - 1:
            raise NotApplicable("its states hold %d tokens, and these %d" % (width - 1, state.shape[2]))
        # Channels are the contiguous dimension of its states too.
        state = state.to(x.dtype).transpose(1, 2).contiguous().transpose(1, 2)
    last = case.word("layout") != "channel_first"
    more = {"bias": case.get("bias"), "initial_states": state, "return_final_states": last, "activation": activation(case)}
    back = lambda o: o.transpose(1, 2) if last else o

    def collect(result):
        if last:
            return {"o": back(result[0]), "final_state": result[1]}
        # With contiguous time it returns no states, which are the last inputs.
        tail = torch.nn.functional.pad(x, (width - 1, 0))[:, :, -(width - 1) :]
        return {"o": back(result), "final_state": tail}

    return lambda: call(x, weight, **more), collect


@peer("causal_conv1d.update", "causal_conv1d")
def update(case):
    call = package("causal_conv1d").causal_conv1d_update
    refuse(case)
    x, weight = channels_first(case).contiguous(), case.tensor("weight")
    if not case.has("initial_state"):
        raise NotApplicable("causal_conv1d_update writes into a state, and there is none")
    state = case.tensor("initial_state").to(x.dtype)
    positions = case.get("state_positions")
    more = {"bias": case.get("bias"), "activation": activation(case), "cache_seqlens": positions}
    back = lambda o: o.transpose(1, 2) if case.word("layout") != "channel_first" else o
    return lambda: call(x, state, weight, **more), lambda o: {"o": back(o), "final_state": state}
