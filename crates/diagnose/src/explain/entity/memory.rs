//! Memory that ran out: a GPU's, the host's, a Jetson's shared memory, or the KV cache of an engine.

use super::super::cause::Cause;
use super::{Entity, Form, form};
use crate::host;
use crate::rules::PastedError;
use facts::MachineKind;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("NvMapMemAllocInternalTagged: * error {code}", jetson),
        form("NvMapMemAlloc*error {code}", jetson),
        form("NvMapMemHandleAlloc: error", jetson),
        form("NvRmMem*error 12", jetson),
        form("KV cache is needed, which is larger than the available KV cache memory", kv_cache),
        form("To serve at least one request with the model*max seq len", kv_cache),
        form(
            "is larger than the maximum number of tokens that can be stored in KV cache",
            kv_cache,
        ),
        form("No available memory for the cache blocks", kv_cache),
        form("Not enough memory. Please try to increase --mem-fraction-static", kv_cache),
        form("is less than desired GPU memory utilization", other_process),
        form("Error in memory profiling. Initial free memory", other_process),
        form("NVML_SUCCESS == * INTERNAL ASSERT FAILED", nvml_assert),
        form("CUDA out of memory", cuda),
        form("CUDA error: out of memory", cuda),
        form("CUDA_ERROR_OUT_OF_MEMORY", cuda),
        form("cudaErrorMemoryAllocation", cuda),
        form("CUBLAS_STATUS_ALLOC_FAILED", cuda),
        form("CUDNN_STATUS_ALLOC_FAILED", cuda),
        form("RESOURCE_EXHAUSTED: Out of memory", cuda),
        form("cudaMalloc failed: out of memory", cuda),
        form("Failed to allocate memory*on device", cuda),
        form("torch.OutOfMemoryError", cuda),
        form("^OutOfMemoryError$", cuda),
        form("^Killed$", killed),
        form("Cannot allocate memory", host),
        form("Unable to allocate {size} GiB for an array with shape", host),
        form("oom-kill:constraint=", host),
        form("Out of memory: Killed process", host),
        form("was killed due to memory pressure", host),
        form("A worker process managed by the executor was unexpectedly terminated", host),
        form("DataLoader worker (pid*) is killed by signal: Killed", host),
        form("exited with exit code -9", host),
        form("Out of memory (oom)", host),
        form("OOMKilled", host),
    ]
}

/// The shell's word for a process that signal 9 ended; in the log of a build it is about a compiler.
fn killed(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let text = seen.text.to_ascii_lowercase();
    let build =
        ["ninja", "nvcc", "cicc", "cc1plus", "building wheel", "cmake", "setup.py", "make["];
    (!build.iter().any(|word| text.contains(word))).then_some(())?;
    let jobs = host::build_jobs(seen.machine()).unwrap_or(1);
    Some(
        Entity::new("out-of-memory", "Killed")
            .meaning(
                "Signal 9 ended the process: it could write no message, and the shell printed this word. The kernel's log tells whether memory was the reason.",
            )
            .causes([
                Cause::new("The host's memory, or the limit of the container or job, ran out, and the kernel killed the process: a model that is loaded into memory, offloading, data loader workers.")
                    .check([
                        "sudo dmesg | grep -iE 'out of memory|oom-kill|killed process' | tail",
                        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.events 2>/dev/null; free -h",
                    ])
                    .fix(["# fewer workers and processes, no offloading to the CPU, weights as safetensors (low_cpu_mem_usage), a smaller model; or more memory or swap"]),
                Cause::new("It was a build: the compilers together took the memory (about 5 GB for each nvcc).")
                    .check(["# the lines above: nvcc, ninja, `Building wheel`"])
                    .fix([format!("export MAX_JOBS={jobs} NVCC_THREADS=1"), "firstlight plan PACKAGE  # a combination that has a wheel".to_owned()]),
                Cause::new("A scheduler, a time limit or a user ended it.")
                    .check(["sacct -j JOB --format=JobID,State,ExitCode,MaxRSS,ReqMem,Elapsed,Timelimit  # Slurm"]),
            ])
            .rank(4),
    )
}

fn jetson(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let here = seen.machine().kind == MachineKind::Jetson;
    let mut entity = Entity::new("out-of-memory", "Jetson memory (NvMap)")
        .meaning(
            "NvMap is the allocator of a Jetson, whose GPU shares the memory of the system; error 12 is ENOMEM. The memory of the \
             device ran out. An assertion about NVML that follows is a consequence: PyTorch asks NVML for its error message, and a \
             Jetson does not implement that part of NVML. It has nothing to do with MIG.",
        )
        .fix([
            "free -h  # the GPU takes from this memory",
            "sudo systemctl isolate multi-user.target  # without the desktop, where there is one",
            "# a smaller batch, a shorter context or a quantized model; swap helps the CPU's share alone:",
            "sudo fallocate -l 16G /swapfile && sudo chmod 600 /swapfile && sudo mkswap /swapfile && sudo swapon /swapfile",
        ])
        .excludes(&["mig-device"])
        .rank(5);
    if here && let Some(free) = &seen.machine().memory.available_bytes {
        entity =
            entity.evidence(format!("{} MiB available", free.value >> 20), free.source.clone());
    }
    Some(entity)
}

/// PyTorch's allocator queries NVML for the processes on the GPU while it writes its out-of-memory message.
fn nvml_assert(seen: &PastedError, _: &'static str) -> Option<Entity> {
    if seen.text.contains("NvMap") || seen.machine().kind == MachineKind::Jetson {
        return jetson(seen, "");
    }
    Some(
        Entity::new("out-of-memory", "GPU memory (NVML assertion)")
            .meaning(
                "PyTorch's allocator ran out of GPU memory and failed while it wrote the message, because NVML did not answer: in a \
                 MIG partition, in a container without the utility capability, on a Jetson, or with a driver in trouble.",
            )
            .fix([
                "firstlight ps",
                "nvidia-smi -L  # whether the GPU is split into MIG partitions",
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False",
            ])
            .rank(1),
    )
}

fn kv_cache(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("out-of-memory", "KV cache")
            .meaning(
                "The memory that is left after the weights and the activations does not hold the KV cache of one request of the \
                 configured length. The engine is right and nothing is broken: shorten the context, raise the engine's share of the \
                 GPU, quantize the KV cache or the weights, or spread the model over more GPUs. `firstlight fit MODEL` computes the sizes.",
            )
            .fix([
                "vllm serve MODEL --max-model-len 8192  # sglang: --context-length 8192",
                "vllm serve MODEL --gpu-memory-utilization 0.95  # sglang: --mem-fraction-static 0.9",
                "vllm serve MODEL --kv-cache-dtype fp8",
                "vllm serve MODEL --tensor-parallel-size 2  # sglang: --tp 2",
                "firstlight fit MODEL",
            ])
            .rank(5),
    )
}

fn other_process(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("out-of-memory", "GPU memory in use")
            .meaning(
                "The engine found less free GPU memory at its start than its configured share: another process, often an \
                 engine of an earlier run, uses the rest.",
            )
            .fix([
                "firstlight ps",
                "firstlight ps --stop PID  # an engine of an earlier run",
                "vllm serve MODEL --gpu-memory-utilization 0.7  # a share that is free",
            ])
            .rank(5),
    )
}

fn cuda(seen: &PastedError, _: &'static str) -> Option<Entity> {
    // A message in quotes only quotes the error.
    if seen.text.contains("'CUDA out of memory'") {
        return None;
    }
    Some(
        Entity::new("out-of-memory", "GPU memory")
            .rule("out-of-memory")
            .meaning(
                "An allocation on the GPU did not fit. See which processes hold the memory first; then use a smaller batch, a shorter \
                 context, a smaller data type, or more GPUs.",
            )
            .fix([
                "firstlight ps",
                "# an engine: a smaller share (vLLM --gpu-memory-utilization 0.7, SGLang --mem-fraction-static 0.7) where a trainer or another engine uses the GPU too",
                "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            ])
            .rank(3),
    )
}

fn host(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let memory = &seen.machine().memory;
    let mut entity = Entity::new("out-of-memory", "host memory")
        .meaning(
            "The memory of the host, or of the container's limit, ran out; the kernel ended the process or refused the allocation.",
        )
        .fix([
            "free -h",
            "sudo dmesg | grep -iE 'oom|killed process'",
            "# fewer workers or build jobs, weights loaded by mmap (safetensors), or a larger limit for the container",
        ])
        .rank(2);
    for (name, fact) in [("available", &memory.available_bytes), ("limit", &memory.limit_bytes)] {
        if let Some(fact) = fact {
            entity =
                entity.evidence(format!("{name}: {} MiB", fact.value >> 20), fact.source.clone());
        }
    }
    Some(entity)
}
