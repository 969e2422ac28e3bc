use super::{Observation, PastedError, Rule, Text};
use crate::oom::{self, OutOfMemory};
use facts::Gpu;
pub(super) const RULE: Rule = Rule {
    id: "out-of-memory",
    title: "memory ran out",
    about: "\
An allocation failed. The message names the memory: an NVIDIA GPU's (CUDA), an Apple GPU's (MPS), the host's
(DefaultCPUAllocator), or cuDNN's workspace. The last is often a false alarm, because CUDNN_STATUS_NOT_SUPPORTED also
means a layout or shape that cuDNN does not support.

It shows as one of
  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
  RuntimeError: MPS backend out of memory
  RuntimeError: DefaultCPUAllocator: can't allocate memory
  RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.

First check which processes use the memory: `firstlight ps` lists the processes on each GPU, with duplicates and orphans
of a killed parent. Then use a smaller batch, a shorter context, another dtype, or more GPUs.",
    links: &[
        "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables",
    ],
    texts: &[
        Text::new("OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.71 GiB. GPU 0 has a total capacity of 22.30 GiB of which 1.52 GiB is free. Process 29153 has 248.00 MiB memory in use."),
        Text::new("RuntimeError: CUDA out of memory", "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity)"),
        Text::new("RuntimeError: CUDA error: out of memory", "RuntimeError: CUDA error: out of memory
CUDA kernel errors might be asynchronously reported at some other API call"),
        Text::new("RuntimeError: MPS backend out of memory", "RuntimeError: MPS backend out of memory (MPS allocated: 18.11 GB, other allocations: 384.00 KB, max allowed: 18.13 GB)."),
        Text::new("RuntimeError: MPS*failed to allocate", "RuntimeError: MPS: failed to allocate 4294967296 bytes"),
        Text::new("DefaultCPUAllocator: can't allocate memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"),
        Text::new("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."),
        Text::new("CUDA out of memory. Tried to allocate", "CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity; 788.51 MiB already allocated)"),
        Text::new("DefaultCPUAllocator: not enough memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 1048576000 bytes."),
    ],
    remedy: |seen| match oom::first_in(seen.text) {
        Some(OutOfMemory::Cpu) => vec!["free -h".into()],
        Some(OutOfMemory::Mps) => vec!["memory_pressure".into()],
        Some(OutOfMemory::Cudnn) => vec![
            "firstlight ps".into(),
            "# with memory free it is a false alarm: make the input contiguous, or set torch.backends.cudnn.enabled = False".into(),
        ],
        Some(OutOfMemory::Cuda) | None => vec![
            "firstlight ps".into(),
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True".into(),
        ],
    },
    observe: Some(observe),
    ..Rule::BLANK
};

/// A GPU that is nearly full now confirms the message; a free one shows only that the memory is free again.
fn observe(seen: &PastedError) -> Option<Observation> {
    if oom::first_in(seen.text) != Some(OutOfMemory::Cuda) {
        return None;
    }
    let use_of = |gpu: &Gpu| {
        let (used, total) = (gpu.memory_used_bytes.as_ref()?, gpu.memory_total_bytes.as_ref()?);
        Some((used.value, total.value.max(1), gpu.index, used.source.clone()))
    };
    let share = |(used, total, ..): &(u64, u64, u32, String)| used.saturating_mul(100) / total;
    let fullest = seen.machine().gpus.iter().filter_map(use_of).max_by_key(share)?;
    let percent = share(&fullest);
    let (used, total, index, source) = fullest;
    Some(Observation::new(
        percent >= 80,
        format!("GPU {index} has {} of {} MiB in use ({percent} %)", used >> 20, total >> 20),
        source,
    ))
}

#[cfg(test)]
mod tests {
    use crate::test_support::machines;
    use facts::Fact;

    #[test]
    fn full_gpu_confirms_the_message() {
        let explain = |text: &str, used_mib: u64| {
            let mut machine = machines::a10();
            machine.gpus[0].memory_used_bytes =
                Some(Fact::new(used_mib << 20, "NVML nvmlDeviceGetMemoryInfo"));
            crate::explain(text, &machine, &[]).remove(0)
        };
        let text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.";
        let full = explain(text, 18_973);
        assert_eq!((full.rule.id, full.confirmed_here), ("out-of-memory", Some(true)));
        assert_eq!(full.evidence[0].what, "GPU 0 has 18973 of 23028 MiB in use (82 %)");
        assert_eq!(full.fix[0], "firstlight ps");
        assert_eq!(explain(text, 300).confirmed_here, Some(false));
        let cudnn =
            explain("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error", 18_973);
        assert_eq!(cudnn.confirmed_here, None);
        assert!(cudnn.fix[1].contains("false alarm"), "{:?}", cudnn.fix);
    }
}
