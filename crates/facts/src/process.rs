use crate::{Fact, Finding, SCHEMA};
use serde::{Deserialize, Serialize};

/// A process that uses GPU memory according to the driver, with the system's data about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id in this system's namespace.
    pub pid: u32,
    /// Its use of each GPU.
    pub uses: Vec<GpuUse>,
    /// The kernel's short name, which a program may set: `python`, `VLLM::EngineCor`.
    pub name: Option<Fact<String>>,
    /// Command line, arguments separated by spaces.
    pub command: Option<Fact<String>>,
    /// Its program: interpreter and script or module, without other arguments.
    pub program: Option<String>,
    /// The owner's user id.
    pub uid: Option<Fact<u32>>,
    /// The parent process, with its name.
    pub parent: Option<Fact<(u32, String)>>,
    /// Age in seconds.
    pub age_seconds: Option<Fact<u64>>,
    /// The kernel's state letter: `R`, `S`, `D` (uninterruptible), `Z` (zombie).
    pub state: Option<Fact<String>>,
    /// The kernel function it waits in, if readable: `uvm_va_space_mm_shutdown`.
    pub waits_in: Option<Fact<String>>,
    /// Container manager and id: `docker 4f0c9a1b2c3d`.
    pub container: Option<Fact<String>>,
    /// The service or session that started it: `ollama.service`.
    pub unit: Option<Fact<String>>,
}

/// A process's use of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    /// The driver's index of the GPU.
    pub gpu: u32,
    /// Bytes of its memory; `None` if the driver does not report them.
    pub bytes: Option<u64>,
    /// `compute` or `graphics`.
    pub kind: String,
}

impl GpuProcess {
    /// Bytes over all GPUs, if the driver reports them.
    pub fn bytes(&self) -> Option<u64> {
        self.uses.iter().map(|it| it.bytes).sum()
    }
}

/// The report of `firstlight ps --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Always [`SCHEMA`].
    pub schema: u32,
    /// Each GPU's memory.
    pub gpus: Vec<GpuMemory>,
    /// Every process that uses GPU memory.
    pub processes: Vec<GpuProcess>,
    /// Duplicate and orphaned processes.
    pub findings: Vec<Finding>,
    /// Facts that could not be read, with the reason.
    pub notes: Vec<String>,
}

/// Memory of one GPU, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    /// The driver's index.
    pub gpu: u32,
    /// Product name.
    pub name: String,
    /// Total memory.
    pub total_bytes: Option<u64>,
    /// Used memory.
    pub used_bytes: Option<u64>,
    /// Memory not used by any visible process; `None` if a process's use is unknown.
    pub unseen_bytes: Option<u64>,
}

impl ProcessReport {
    /// The report of a machine's GPUs and processes.
    pub fn new(machine: &crate::Machine, findings: Vec<Finding>) -> Self {
        let memory = |gpu: &crate::Gpu| {
            let used = gpu.memory_used_bytes.as_ref().map(|fact| fact.value);
            let of_gpu = machine.gpu_processes.iter().flat_map(|process| &process.uses);
            let of_gpu = of_gpu.filter(|it| it.gpu == gpu.index);
            let seen: Option<u64> = of_gpu.map(|it| it.bytes).sum();
            GpuMemory {
                gpu: gpu.index,
                name: gpu.name.value.clone(),
                total_bytes: gpu.memory_total_bytes.as_ref().map(|fact| fact.value),
                used_bytes: used,
                unseen_bytes: used.zip(seen).map(|(used, seen)| used.saturating_sub(seen)),
            }
        };
        Self {
            schema: SCHEMA,
            gpus: machine.gpus.iter().map(memory).collect(),
            processes: machine.gpu_processes.clone(),
            findings,
            // A machine's other notes do not concern GPU processes.
            notes: machine.notes.iter().filter(|note| note.contains("GPU")).cloned().collect(),
        }
    }
}
