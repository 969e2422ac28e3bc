"""What torch reaches between two GPUs, beside what `firstlight bench fabric` says of them, in one call.

    python benchmarks/clients/fabric_torch.py target/release/firstlight

The interpreter has torch with NCCL, and firstlight takes the NCCL of the same environment. Copies are torch's own from one device to
the other; collectives are those of torch.distributed, a process a GPU. Every result is compared with what it has to be. Rates are
medians of five stretches by events, as firstlight's are, of as many runs each.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

os.environ["NCCL_NVLS_ENABLE"] = "0"
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

MIB = 1 << 20
SIZES = [4096, 64 << 10, MIB, 16 * MIB, 256 * MIB]
SAMPLES, RANKS = 5, 2


def runs(size):
    return max(4, min(100, (1 << 28) // size))


def millis(size, work, stream):
    """Of one run: the median of stretches."""
    for _ in range(2):
        work()
    stretches = []
    for _ in range(SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        for _ in range(runs(size)):
            work()
        end.record(stream)
        stretches.append((begin, end))
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) / runs(size) for begin, end in stretches]


def copies():
    """GB/s of 256 MiB each way, alone and both at once."""
    out, size = {}, 256 * MIB
    of = [torch.arange(size // 4, dtype=torch.int32, device=f"cuda:{gpu}") + gpu for gpu in range(RANKS)]
    to = [torch.full_like(of[gpu], -1) for gpu in range(RANKS)]
    for source in range(RANKS):
        target = 1 - source
        with torch.cuda.device(source):
            stream = torch.cuda.current_stream()
            took = statistics.median(millis(size, lambda: to[target].copy_(of[source], non_blocking=True), stream))
        torch.cuda.synchronize(target)
        assert torch.equal(to[target].cpu(), of[source].cpu()), "torch copied wrongly"
        out[f"copy {source} to {target}"] = size / took / 1e6
    return out


def collectives(rank, file, out):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=RANKS, init_method=f"file://{file}", device_id=torch.device("cuda", rank))
    rows = {}
    for size in SIZES:
        count = size // 4
        row = count // RANKS
        mine = (torch.arange(count, device="cuda") % 4093 + 1).float() * (rank + 1)
        total = sum(range(1, RANKS + 1))
        part = torch.full((row,), float("nan"), device="cuda")
        whole = torch.full((count,), float("nan"), device="cuda")
        # In place: what it holds grows from run to run, so that it is checked apart from the timing.
        work = torch.zeros(count, device="cuda")
        calls = {
            "all-reduce": lambda: dist.all_reduce(work),
            "all-gather": lambda: dist.all_gather_into_tensor(whole, mine[:row]),
            "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, mine),
            "all-to-all": lambda: dist.all_to_all_single(whole, mine),
        }
        for name, call in calls.items():
            whole.fill_(float("nan"))
            took = torch.tensor(millis(size, call, torch.cuda.current_stream()), device="cuda")
            # The slowest rank's.
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            base = (torch.arange(count, device="cuda") % 4093 + 1).float()
            if name == "all-reduce":
                work.copy_(mine)
                call()
                right = torch.equal(work, base * total)
                work.zero_()
            elif name == "all-gather":
                right = all(torch.equal(whole[r * row:(r + 1) * row], base[:row] * (r + 1)) for r in range(RANKS))
            elif name == "reduce-scatter":
                right = torch.equal(part, base[rank * row:(rank + 1) * row] * total)
            else:
                right = all(torch.equal(whole[r * row:(r + 1) * row], base[rank * row:(rank + 1) * row] * (r + 1)) for r in range(RANKS))
            assert right, f"torch's {name} of {size} bytes is wrong on rank {rank}"
            factor = (RANKS - 1) / RANKS * (2 if name == "all-reduce" else 1)
            rows[f"{name} {size}"] = size / took.median().item() / 1e6 * factor
    if rank == 0:
        with open(out, "w") as file:
            json.dump(rows, file)
    dist.destroy_process_group()


def torchs():
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows")
        multiprocessing.spawn(collectives, (os.path.join(folder, "meet"), out), nprocs=RANKS)
        with open(out) as file:
            return json.load(file) | copies()


def firstlights(program):
    environment = dict(os.environ, VIRTUAL_ENV=sys.prefix)
    done = subprocess.run([program, "bench", "fabric", "--gpu", "0,1", "--json"], env=environment, stdout=subprocess.PIPE)
    report = json.loads(done.stdout)
    fabric = report["fabric"]
    rows = {f"copy {copy['from']} to {copy['to']}": copy["gbps"] for copy in fabric["copies"]}
    rows |= {f"{one['kind']} {one['bytes']}": one["bus_gbps"] for one in fabric["collectives"]}
    for finding in report["findings"]:
        print("finding:", finding["title"])
    for one in fabric["recorded"]:
        print(f"{one['bytes']} bytes in a recorded graph by {one['by']}: {one['micros']} us, {one['wrong']} wrong")
    print("firstlight by", fabric["nccl"], "links:", (fabric.get("links") or {}).get("words"))
    return rows


if __name__ == "__main__":
    ours, theirs = firstlights(sys.argv[1]), torchs()
    print("torch", torch.__version__, "by NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    print(f"{'GB/s (bus)':24} {'firstlight':>10} {'torch':>10}  of torch's")
    for name, rate in theirs.items():
        own = ours.get(name)
        shown = f"{own:10.2f} {rate:10.2f}  {100 * own / rate:.1f} %" if own else f"{'none':>10} {rate:10.2f}"
        print(f"{name:24} {shown}")
