"""Tests calls that must be correct or refused: ``python safety.py``. It prints a line for each case and ends with 1 if one fails.

Outputs given by the caller, forward-mode derivatives, unusual memory layouts, tensors without memory, subclasses, forks, many different
settings, and models that need more than firstlight computes.
"""

import os
import sys
import time
import warnings

import cases
import numpy as np
import torch
from cases import case

from firstlight import Refused, _library, ops

REFUSED = (Refused, NotImplementedError, TypeError, ValueError, RuntimeError)


def refuses(function):
    """Whether a call is refused, and the error."""
    try:
        found = function()
    except REFUSED as why:
        return True, str(why)[:120]
    return False, f"gave {type(found).__name__}"


def norm(x, eps=1e-5):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@case
def out_raises_the_version_of_a_saved_tensor():
    a = torch.full((2, 8), 5.0, requires_grad=True)
    saved = torch.full((2, 8), 2.0)
    product = (a * saved).sum()
    with torch.no_grad():
        ops.rms_norm(torch.randn(2, 8), out=saved)
    return refuses(lambda: product.backward())


@case
def an_output_that_no_gradient_reads_may_be_changed_in_place():
    x, weight = torch.randn(3, 8), torch.randn(8, requires_grad=True)
    found = []
    for call in (lambda: ops.rms_norm(x, weight), lambda: ops.linear(x, weight[None]), lambda: ops.conv1d(x[None], weight[:, None].expand(8, 3))):
        y = call()
        (grad,) = torch.autograd.grad((y * 2).sum(), weight)
        y = call()
        y *= 2
        found.append(torch.equal(torch.autograd.grad(y.sum(), weight)[0], grad))
    return all(found), found


@case
def state_raises_the_version_of_a_saved_tensor():
    state = torch.randn(2, 8, 3)
    product = (torch.ones(2, 8, 3, requires_grad=True) * state).sum()
    with torch.no_grad():
        ops.conv1d(torch.randn(2, 5, 8), torch.randn(8, 4), state=state)
    return refuses(lambda: product.backward())


@case
def forward_mode_derivatives_are_refused():
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(torch.randn(3, 8), torch.ones(3, 8))
        plain = torch.randn(3, 8)
        fine, found = refuses(lambda: ops.rms_norm(x))
        return fine and torch.allclose(ops.rms_norm(plain), norm(plain), atol=1e-5), found


@case
def forward_mode_derivatives_are_refused_by_every_op():
    from samples import samples

    found = {}
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        for name, function, tensors in samples(torch.float32, "cpu"):
            if not tensors[0].is_floating_point():
                continue
            dual = torch.autograd.forward_ad.make_dual(tensors[0], torch.ones_like(tensors[0]))
            found[name] = refuses(lambda function=function, dual=dual, tensors=tensors: function(dual, *tensors[1:]))
    return len(found) > 10 and all(fine and "forward-mode" in words for fine, words in found.values()), found


@case
def jvp_is_refused():
    return refuses(lambda: torch.func.jvp(ops.rms_norm, (torch.randn(3, 8),), (torch.ones(3, 8),)))


@case
def vmap_is_refused_with_its_name():
    fine, found = refuses(lambda: torch.vmap(ops.rms_norm)(torch.randn(3, 2, 8)))
    return fine and "torch.func" in found, found


@case
def grad_and_jacrev_of_torch_func_are_refused_with_their_name():
    found = [refuses(lambda: transform(lambda x: ops.rms_norm(x).sum())(torch.randn(2, 8))) for transform in (torch.func.grad, torch.func.jacrev)]
    return all(fine and "torch.func's transforms" in words for fine, words in found), found


@case
def fla_refuses_what_it_does_not_know():
    from firstlight.compat import fla

    q, beta = torch.randn(1, 5, 2, 16), torch.rand(1, 5, 2)
    wrong = [
        (TypeError, {"typo": 1}),
        (TypeError, {"typo": None}),
        (NotImplementedError, {"ssm_state_indices": torch.zeros(1, dtype=torch.int32)}),
        (ValueError, {"allow_neg_eigval": True}),
    ]
    found = []
    for function in (fla.chunk_kda, fla.fused_recurrent_kda):
        function(q, q, q, -q.abs(), beta, ssm_state_indices=None)
        for kind, given in wrong:
            try:
                function(q, q, q, -q.abs(), beta, **given)
                found.append((function.__name__, given))
            except kind:
                pass
    return not found, found


@case
def tensors_without_elements_give_empty_or_zero_results():
    wrong = []
    for batch, queries, keys in ((2, 0, 7), (2, 5, 0), (2, 0, 0), (0, 5, 7)):
        q, k, v = torch.randn(batch, queries, 4, 16), torch.randn(batch, keys, 2, 16), torch.randn(batch, keys, 2, 8)
        o, lse = ops.attention(q, k, v, return_lse=True)
        shapes = (o.shape, lse.shape) == ((batch, queries, 4, 8), (batch, 4, queries))
        values = keys > 0 or not o.any() and bool(torch.isneginf(lse).all())
        if not shapes or not values:
            wrong.append((batch, queries, keys))
    for shape in ((0, 8), (2, 0, 8), (0, 3, 2, 8)):
        if ops.rms_norm(torch.randn(shape), torch.ones(8)).shape != shape:
            wrong.append(shape)
    q, beta = torch.randn(2, 0, 2, 16), torch.rand(2, 0, 2)
    if ops.kda(q, q, q, -q.abs(), beta).shape != (2, 0, 2, 16) or ops.linear(torch.randn(0, 8), torch.randn(4, 8)).shape != (0, 4):
        wrong.append("kda, linear")
    return not wrong, wrong


@case
def numpy_of_another_byte_order_is_refused():
    return refuses(lambda: ops.rms_norm(np.ones((3, 8), ">f4")))


@case
def a_read_only_output_is_refused_and_kept():
    out = np.zeros((3, 8), "f4")
    out.flags.writeable = False
    fine, found = refuses(lambda: ops.rms_norm(np.ones((3, 8), "f4"), out=out))
    return fine and not out.any(), found


@case
def a_negated_view_keeps_its_sign():
    x = torch.randn(3, 8)
    return torch.allclose(ops.rms_norm(torch._neg_view(x)), norm(-x), atol=1e-5)


@case
def an_output_over_a_part_of_an_input_is_right():
    for kind in ("torch", "numpy"):
        memory = torch.randn(5, 64)
        wanted = norm(memory[:4])
        memory = memory if kind == "torch" else memory.numpy()
        found = ops.rms_norm(memory[:4], out=memory[1:5])
        if not torch.allclose(torch.as_tensor(found), wanted, atol=1e-5):
            return False, kind
    return True


@case
def an_output_over_the_whole_input_is_right():
    x = torch.randn(4, 8)
    wanted = norm(x)
    return torch.allclose(ops.rms_norm(x, out=x), wanted, atol=1e-5)


@case
def an_output_that_needs_a_gradient_is_not_written_unseen():
    out = torch.zeros(3, 8, requires_grad=True)
    return refuses(lambda: ops.rms_norm(torch.randn(3, 8), out=out))


@case
def a_meta_tensor_beside_others_is_refused():
    x = torch.randn(2, 7, 2, 8)
    meta = x.to("meta")
    calls = [
        lambda: ops.rms_norm(x, torch.ones(8, device="meta")),
        lambda: ops.attention(x, meta, x),
        lambda: ops.rms_norm(x, out=meta),
        lambda: ops.rms_norm(x, gate=meta),
        lambda: ops.rms_norm(meta, gate=x),
    ]
    found = [refuses(call) for call in calls]
    return all(fine for fine, _ in found), [text for _, text in found]


@case
def meta_tensors_give_shapes():
    x = torch.empty(2, 7, 2, 8, device="meta")
    found = ops.attention(x, x, x)
    return found.device.type == "meta" and found.shape == x.shape


@case
def fake_tensors_give_shapes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 7, 2, 8)
        found = ops.attention(x, x, x)
    return found.shape == x.shape and type(found).__name__ == "FakeTensor"


class Sub(torch.Tensor):
    """A subclass that has only ``__torch_function__``."""


@case
def a_subclass_with_torch_function_goes_to_the_dispatcher():
    x = torch.randn(3, 8)
    found = ops.rms_norm(x.as_subclass(Sub))
    other = ops.rms_norm(x, torch.ones(8).as_subclass(Sub))
    return torch.allclose(found.as_subclass(torch.Tensor), norm(x), atol=1e-5) and torch.allclose(other.as_subclass(torch.Tensor), norm(x), atol=1e-5)


@case
def a_subclass_has_gradients():
    x = torch.randn(3, 8).as_subclass(Sub).requires_grad_()
    y = torch.randn(3, 8, requires_grad=True)
    with torch.no_grad():
        y.copy_(x)
    ops.rms_norm(x).square().sum().backward()
    norm(y).square().sum().backward()
    return torch.allclose(x.grad.as_subclass(torch.Tensor), y.grad, atol=1e-5)


@case
def checkpointing_without_reentry_has_the_same_gradients():
    from torch.utils.checkpoint import checkpoint

    found = []
    for run in (lambda f, *t: f(*t), lambda f, *t: checkpoint(f, *t, use_reentrant=False)):
        torch.manual_seed(0)
        x, w = torch.randn(1, 9, 2, 16, requires_grad=True), torch.randn(16, requires_grad=True)

        def block(x, w):
            y = ops.rms_norm(x, w)
            y = ops.attention(y, y, y, causal=True)
            y = ops.conv1d(y.flatten(2), w.expand(32, 16)[:, :4].contiguous())
            return ops.linear(y.flatten(0, 1), torch.ones(8, 32))

        run(block, x, w).square().sum().backward()
        found.append((x.grad, w.grad))
    return all(torch.allclose(one, other, atol=1e-4) for one, other in zip(*found))


@case
def settings_of_any_number_do_not_pile_up():
    x = torch.randn(3, 8)
    for number in range(_library.MAX_HANDLES + 200):
        last = ops.rms_norm(x, eps=1e-5 + number * 1e-8)
    again = ops.rms_norm(x, eps=1e-5)
    count = len(_library.op("rmsnorm").handles)
    return count <= _library.MAX_HANDLES and torch.allclose(again, norm(x), atol=1e-5) and last.shape == x.shape, count


@case
def sinks_are_a_logit_without_a_value():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 9, 4, 16), torch.randn(2, 12, 2, 16), torch.randn(2, 12, 2, 16)
    sinks = torch.randn(4)

    def formula(q, k, v, sinks):
        k, v = (x.repeat_interleave(2, 2) for x in (k, v))
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / 4
        seen = torch.ones(9, 12, dtype=torch.bool).tril(3)
        scores = torch.cat([scores.masked_fill(~seen, -1e9), sinks[None, :, None, None].expand(2, 4, 9, 1)], -1)
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1)[..., :-1], v)

    wanted = formula(q, k, v, sinks)
    inputs = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
    others = [x.clone().requires_grad_() for x in (q, k, v, sinks)]
    weights = torch.randn_like(q)
    (ops.attention(*inputs[:3], causal=True, sinks=inputs[3]) * weights).sum().backward()
    (formula(*others) * weights).sum().backward()
    near = all(torch.allclose(one.grad, other.grad, atol=1e-4) for one, other in zip(inputs, others))
    arrays = ops.attention(q.numpy(), k.numpy(), v.numpy(), causal=True, sinks=sinks.numpy())
    plain = ops.attention(q, k, v, causal=True, sinks=sinks)
    ends = torch.tensor([0, 5, 9], dtype=torch.int32)
    one = q.flatten(0, 1)[:9]
    packed = ops.attention(one, one, one, cu_seqlens=ends, max_seqlen=5, sinks=sinks)
    alone = torch.cat([ops.attention(x[None], x[None], x[None], sinks=sinks)[0] for x in (one[:5], one[5:])])
    same = torch.allclose(plain, wanted, atol=1e-5) and torch.allclose(torch.as_tensor(arrays), wanted, atol=1e-5)
    return near and same and torch.allclose(packed, alone, atol=1e-5)


@case
def a_forward_pass_that_depends_on_the_attentions_name_is_known_beneath_decorators():
    import functools

    from firstlight import _original

    def decorated(function):
        @functools.wraps(function)
        def wrapped(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapped

    class Sparse(torch.nn.Module):
        @decorated
        def forward(self, x):
            if self.config._attn_implementation in ("eager", "sdpa"):
                x = x + 1
            return ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation](x)  # noqa: F821

    return [_original.depends_on_name(cls) for cls in (Sparse, torch.nn.Linear)] == [True, False]


class NormedExperts:
    def __init__(self):
        self.has_gate = self.has_post_expert_norm = True
        self.has_bias = False


class BiasedExperts:
    def __init__(self):
        self.has_gate = self.has_bias = True


_EXPERTS = {"has_post_expert_norm": NormedExperts, "has_bias": BiasedExperts}


@case
def flags_of_experts_that_are_not_known_are_declined():
    from firstlight._experts import _chosen

    found = []
    for flag in ("has_post_expert_norm", "has_bias"):
        try:
            _chosen(_EXPERTS[flag](), None, None, None)
        except NotImplementedError as why:
            found.append(str(why))
    return found == ["experts with `has_post_expert_norm` True", "experts with `has_bias` True"], found


@case
def a_forked_child_works_and_so_does_its_parent():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    x = torch.randn(2, 300, 4, 64)

    def work():
        with torch.no_grad():
            kda = ops.kda(x, x, x, -x.abs(), x[..., 0].sigmoid())
            conv = ops.conv1d(x.flatten(2), torch.ones(256, 4))
            return [ops.attention(x, x, x, causal=True), kda, conv, ops.linear(x.flatten(0, 2), torch.ones(64, 64))]

    wanted = work()
    child = os.fork()
    if child == 0:
        same = all(torch.equal(one, other) for one, other in zip(work(), wanted))
        os._exit(0 if same else 1)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        ended, code = os.waitpid(child, os.WNOHANG)
        if ended:
            return code == 0 and all(torch.equal(one, other) for one, other in zip(work(), wanted)), f"ended with {code}"
        time.sleep(0.05)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False, "the child hangs"


def main():
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
