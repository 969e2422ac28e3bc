"""Tests the ops inside the wrappers of training scripts: ``python training.py``, one process on the CPU.

DDP, FSDP2, autocast, checkpointing, threads, and an exported program in another process. It prints a line for each case and ends with 1 if
one fails.
"""

import os
import subprocess
import sys
import tempfile
import threading

import cases
import torch
from cases import case
from torch.utils.checkpoint import checkpoint

from firstlight import ops


class Block(torch.nn.Module):
    """Attention between two linear layers and a norm, by firstlight's ops or by torch's functions."""

    def __init__(self, with_ops):
        super().__init__()
        torch.manual_seed(0)
        self.with_ops = with_ops
        self.qkv, self.out = torch.nn.Linear(32, 96, bias=False), torch.nn.Linear(32, 32, bias=False)
        self.norm = torch.nn.Parameter(torch.ones(32))

    def forward(self, x):
        if self.with_ops:
            q, k, v = (one.unflatten(-1, (4, 8)) for one in self.qkv(ops.rms_norm(x, self.norm)).chunk(3, -1))
            return x + self.out(ops.attention(q, k, v, causal=True).flatten(-2))
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.norm
        q, k, v = (one.unflatten(-1, (4, 8)).transpose(1, 2) for one in self.qkv(normed).chunk(3, -1))
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(o.transpose(1, 2).flatten(-2))


def trained(model, steps=3, run=None):
    """The losses of a few steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator, losses = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        x = torch.randn(2, 17, 32, generator=generator)
        loss = (run or model)(x).float().sin().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return torch.tensor(losses)


def near(found, wanted, limit=1e-5):
    return bool((found - wanted).norm() <= limit * wanted.norm()), (found - wanted).abs().max().item()


WANTED = trained(Block(False))


@case
def plain_training():
    return near(trained(Block(True)), WANTED)


@case
def ddp_on_one_rank():
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    return near(trained(torch.nn.parallel.DistributedDataParallel(Block(True))), WANTED)


@case
def fsdp2_on_one_rank():
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        return True, "this torch has no fully_shard"
    from torch.distributed.device_mesh import init_device_mesh

    model = Block(True)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return near(trained(model), WANTED)


@case
def checkpointing_of_both_kinds():
    found = []
    for reentrant in (True, False):
        model = Block(True)

        def run(x, model=model, reentrant=reentrant):
            return checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)

        found.append(near(trained(model, run=run), WANTED))
    return all(fine for fine, _ in found), found


@case
def autocast_to_bfloat16():
    def losses(with_ops):
        with torch.autocast("cpu", torch.bfloat16):
            return trained(Block(with_ops))

    return near(losses(True), losses(False), 2e-2)


@case
def autocast_leaves_the_types_of_the_ops():
    q = torch.randn(1, 5, 2, 16)
    with torch.autocast("cpu", torch.bfloat16):
        return ops.attention(q, q, q).dtype == torch.float32 and ops.rms_norm(q.bfloat16()).dtype == torch.bfloat16


@case
def eight_threads_train_at_once():
    found = {}

    def work(at):
        found[at] = trained(models[at])

    models = [Block(True) for _ in range(8)]
    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return all(near(losses, WANTED)[0] for losses in found.values()) and len(found) == 8


@case
def an_exported_program_runs_in_another_process():
    model, x = Block(True).eval(), torch.randn(2, 17, 32)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        program = torch.export.export(model, (x,), dynamic_shapes=({1: torch.export.Dim("tokens", min=2, max=4096)},))
        nodes = {str(node.target) for node in program.graph.nodes if "firstlight" in str(node.target)}
        path, other = os.path.join(folder, "block.pt2"), torch.randn(2, 33, 32)
        torch.export.save(program, path)
        torch.save((other, model(other)), os.path.join(folder, "values.pt"))
        script = f"""
import torch
import firstlight._torch
program = torch.export.load({path!r}).module()
x, wanted = torch.load({os.path.join(folder, "values.pt")!r})
with torch.no_grad():
    assert torch.allclose(program(x), wanted, atol=1e-6)
"""
        ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        return ran.returncode == 0 and len(nodes) == 2, (nodes, ran.stderr[-300:])


def main():
    return cases.end()


if __name__ == "__main__":
    sys.exit(main())
