use crate::{Fact, Finding, SCHEMA};
use serde::{Deserialize, Serialize};

/// One process that has memory of a GPU, by the driver's word, with what the system tells of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// Process id, as this system numbers its processes.
    pub pid: u32,
    /// What it has of each GPU.
    pub uses: Vec<GpuUse>,
    /// Short name the kernel keeps, which a program may set: `python`, `VLLM::EngineCor`.
    pub name: Option<Fact<String>>,
    /// Command line, arguments separated by spaces.
    pub command: Option<Fact<String>>,
    /// What it is a copy of: interpreter and script or module, without the other arguments.
    pub program: Option<String>,
    /// Owner's number.
    pub uid: Option<Fact<u32>>,
    /// The process that started it or took it over, with its name.
    pub parent: Option<Fact<(u32, String)>>,
    /// Age in seconds.
    pub age_seconds: Option<Fact<u64>>,
    /// The kernel's letter: `R`, `S`, `D` (cannot be interrupted), `Z` (ended, not collected by its parent).
    pub state: Option<Fact<String>>,
    /// The kernel function it waits in, where that can be read: `uvm_va_space_mm_shutdown`.
    pub waits_in: Option<Fact<String>>,
    /// Container manager and id: `docker 4f0c9a1b2c3d`.
    pub container: Option<Fact<String>>,
    /// Service or session that started it: `ollama.service`.
    pub unit: Option<Fact<String>>,
}

/// What one process has of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuUse {
    /// The driver's index of the GPU.
    pub gpu: u32,
    /// Bytes of its memory; `None` where the driver does not count them.
    pub bytes: Option<u64>,
    /// `compute` or `graphics`.
    pub kind: String,
}

impl GpuProcess {
    /// Bytes over all GPUs, where the driver counts them.
    pub fn bytes(&self) -> Option<u64> {
        self.uses.iter().map(|it| it.bytes).sum()
    }
}

/// What `firstlight ps --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Always [`SCHEMA`].
    pub schema: u32,
    /// Each GPU's memory.
    pub gpus: Vec<GpuMemory>,
    /// Every process that has memory of one.
    pub processes: Vec<GpuProcess>,
    /// Duplicates and processes left behind.
    pub findings: Vec<Finding>,
    /// What could not be read and why.
    pub notes: Vec<String>,
}

/// Memory of one GPU, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    /// The driver's index.
    pub gpu: u32,
    /// Product name.
    pub name: String,
    /// All of it.
    pub total_bytes: Option<u64>,
    /// What is in use.
    pub used_bytes: Option<u64>,
    /// What is in use by no process that can be seen here; `None` where one of them is not counted.
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
            // A machine's other notes say nothing about who has its GPUs.
            notes: machine.notes.iter().filter(|note| note.contains("GPU")).cloned().collect(),
        }
    }
}
