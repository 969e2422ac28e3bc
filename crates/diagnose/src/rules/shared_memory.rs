use super::{Also, Context, Need, Rule, Text};
use crate::{access, gpu, host};
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "shared-memory",
    title: "/dev/shm is too small",
    about: "\
NCCL, PyTorch's data loaders and vLLM's workers share memory through /dev/shm. A container gets 64 MB of it by default,
which one batch or one NCCL channel fills; programs then fail at the first exchange or are ended by a bus error. On a
host, leftover files of crashed jobs can fill it.

It shows as one of
  NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888)
  RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error.

Detected by the size that /dev/shm was mounted with.

Give the container a larger /dev/shm, or the host's; on a host, remove unused files.",
    links: &[
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
        "https://github.com/NVIDIA/nccl/issues/290",
        "https://github.com/pytorch/pytorch/issues/5040",
    ],
    texts: &[
        Text::new("NCCL WARN Error while creating shared memory segment", "misc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device (28)"),
        Text::new("NCCL WARN Error: failed to extend /dev/shm/nccl-*", "misc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)"),
        Text::new("NCCL WARN Call to posix_fallocate failed : No space left on device", "include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"),
        Text::new("is killed by signal: Bus error", "RuntimeError: DataLoader worker (pid 46794) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."),
        Text::new("bus error encountered in worker. This might be caused by insufficient shared memory", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."),
        Text::new("unable to write to file </torch_*No space left on device", "RuntimeError: unable to write to file </torch_1231_2342>: No space left on device (28)"),
    ],
    also: &[
        Also {
            cause: "A mapped file was truncated or replaced while it was read: a full disk or a network file system.",
            check: &["df -h; df -h /dev/shm; sudo dmesg | tail"],
        },
    ],
    remedy: |seen| host::enlarge_shared_memory(seen.machine()),
    needs: &[Need::Container],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The size that NVIDIA's container images recommend (docker run --shm-size=1g).
const ENOUGH: u64 = 1 << 30;

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let Some(shared) = &machine.access.shared_memory_bytes else { return Vec::new() };
    let Some(name) = host::container(machine).filter(|name| *name != "wsl") else {
        return Vec::new();
    };
    if shared.value >= ENOUGH || access::cuda_torch(context).next().is_none() {
        return Vec::new();
    }
    let gpus = gpu::nvidia(machine).count();
    // With one GPU there is no NCCL traffic, and only data loaders use /dev/shm.
    let severity = if gpus > 1 { Severity::Warning } else { Severity::Info };
    let mib = shared.value >> 20;
    let title = format!("/dev/shm of this {name} container has {mib} MiB");
    vec![
        RULE.finding(severity, Confidence::Likely, title)
            .evidence(format!("{mib} MiB of shared memory"), shared.source.clone())
            .evidence(format!("{gpus} NVIDIA GPUs"), "the driver")
            .cause("NCCL and data loaders exchange data through it, and fail when it is full.")
            .fix(host::enlarge_shared_memory(machine))
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Fact, Machine, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = || vec![env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        let shm = |mut machine: Machine, mib: u64| {
            let source = "/proc/self/mounts /dev/shm";
            machine.access.shared_memory_bytes = Some(Fact::new(mib << 20, source));
            machine
        };
        let mut two = machines::in_container(machines::a10());
        two.gpus.push(two.gpus[0].clone());
        vec![
            Case::new("Docker's own size", shm(two.clone(), 64), torch()).finds(
                Warning,
                Likely,
                &["has 64 MiB", "[/proc/self/mounts /dev/shm]", "--shm-size=16g"],
            ),
            Case::new("one GPU", shm(machines::within(machines::a10(), "kubernetes"), 64), torch())
                .finds(Info, Likely, &["medium: Memory"]),
            Case::new("enough", shm(two.clone(), 16 << 10), torch()),
            Case::new("no torch", shm(two.clone(), 64), vec![]),
            Case::new("no limit", two, torch()),
            Case::new("a host", shm(machines::a10(), 64), torch()),
        ]
    }
}
