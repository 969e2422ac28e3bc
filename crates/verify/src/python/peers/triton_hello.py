"""A minimal causal convolution in Triton. It shows that Triton can compile and launch kernels."""


def kernel():
    triton, tl = package("triton"), package("triton.language")
    globals()["tl"] = tl

    @triton.jit
    def hello_conv1d(x, weight, o, tokens, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
        token, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        within = channel < channels
        first = token // tokens * tokens
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for tap in tl.static_range(WIDTH):
            at = token - (WIDTH - 1) + tap
            value = tl.load(x + at * channels + channel, mask=within & (at >= first), other=0.0).to(tl.float32)
            total += value * tl.load(weight + channel * WIDTH + tap, mask=within, other=0.0).to(tl.float32)
        tl.store(o + token * channels + channel, total.to(o.dtype.element_ty), mask=within)

    return triton, hello_conv1d


@peer("triton.hello", "triton")
def hello(case):
    triton, launch = kernel()
    for name in ("bias", "initial_state", "cu_seqlens", "state_indices", "state_positions", "activation", "layout"):
        case.refuse(**{name: "the hello kernel takes only x and weight"})
    x, weight = case.tensor("x"), case.tensor("weight")
    batch, tokens, channels = x.shape
    if x.numel() == 0:
        raise NotApplicable("the hello kernel needs at least one token")
    o = torch.empty_like(x)
    grid = (batch * tokens, triton.cdiv(channels, 128))

    def run():
        launch[grid](x, weight, o, tokens, channels, WIDTH=weight.shape[1], BLOCK=128)
        return o

    return run, lambda o: {"o": o}
