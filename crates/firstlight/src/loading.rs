//! Loads a model onto its device, after checking that it fits.

use crate::failure::Failure;
use crate::rank_processes::RankProcesses;
use crate::transfer::Transfer;
use device::Device;
use facts::{BackendKind, Fact};
use models::{
    Architecture, Capacity, Engine, Footprint, LargestStep, Model, ModelError, ModelSource,
    OpenRequest, Storage,
};
use probe::Source;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A model on its device.
pub(crate) struct Loaded {
    pub(crate) engine: Box<dyn Engine>,
    /// Predicted peak of the device's memory, before the weights were read: of this process on the processor, of
    /// buffers on a GPU. None if the system does not report the memory in use.
    pub(crate) predicted_bytes: Option<u64>,
    /// The part of it that is the model's: weights, states, caches and workspace.
    pub(crate) model_bytes: u64,
    /// Bytes of weights that were read or generated.
    pub(crate) read_bytes: u64,
}

/// Loads a model; one that does not fit is refused with its sizes before the weights are read.
pub(crate) fn open(
    model: Model,
    device: Device,
    storage: Storage,
    capacity: Capacity,
    step: LargestStep,
) -> anyhow::Result<Loaded> {
    open_with(model, device, storage, (capacity, step), models::open)
}

/// As [`open`], with all ranks of a split model, of which `model` is this rank's part; without other ranks, the whole
/// model.
pub(crate) fn open_on(
    (other_ranks, folder): (Option<&RankProcesses>, &Path),
    model: Model,
    device: Device,
    storage: Storage,
    (capacity, step): (Capacity, LargestStep),
) -> anyhow::Result<Loaded> {
    let Some(other_ranks) = other_ranks else {
        return open(model, device, storage, capacity, step);
    };
    let source = ModelSource::Folder(folder.to_owned());
    let layers = model.architecture.stage.ranks > 1;
    open_with(model, device, storage, (capacity, step), |model, device, storage, capacity| {
        let backend = device.capabilities().backend;
        let opening = OpenRequest::new(&source, backend, storage, (capacity, step));
        let opening = if layers { opening.by_layers() } else { opening };
        other_ranks.ranks.open(model, device, &opening)
    })
}

fn open_with(
    model: Model,
    device: Device,
    storage: Storage,
    (capacity, step): (Capacity, LargestStep),
    open: impl FnOnce(Model, Device, Storage, Capacity) -> Result<Box<dyn Engine>, ModelError>,
) -> anyhow::Result<Loaded> {
    let footprint = fit(&model.architecture, &device, storage, (capacity, step))?;
    let before = match device.capabilities().backend {
        BackendKind::Cpu => own("VmRSS"),
        BackendKind::Cuda | BackendKind::Metal => Some(0),
    };
    let read = model.checkpoint.bytes_read();
    let showing = Transfer::watch("weights", model.bytes_to_load(&device), Arc::clone(&read));
    let engine = open(model, device, storage, capacity)?;
    drop(showing);
    let read_bytes = read.load(Ordering::Relaxed);
    let model_bytes = footprint.peak();
    let predicted_bytes = before.map(|before| before + model_bytes);
    Ok(Loaded { engine, predicted_bytes, model_bytes, read_bytes })
}

/// The model's footprint on a device; an error if it exceeds the free memory, or if the device has no engine for such
/// weights.
pub(crate) fn fit(
    architecture: &Architecture,
    device: &Device,
    storage: Storage,
    (capacity, step): (Capacity, LargestStep),
) -> anyhow::Result<Footprint> {
    let kind = models::engine_kind(device)?;
    kind.check(storage, architecture)?;
    if architecture.stage.ranks > 1 && device.capabilities().backend != BackendKind::Cpu {
        let what = "pipeline parallelism over GPUs is not supported yet, only over processors";
        return Err(Failure::hinted(what.to_owned(), "use --backend cpu, or --tp instead of --pp"));
    }
    let holding = models::holding(device, storage);
    let footprint = kind.footprint(architecture, holding, capacity, step);
    if let Some(free) = free(device, architecture) {
        footprint.check_fits(&free)?;
    }
    Ok(footprint)
}

/// Free memory for a rank's part of a model; none if the system does not report it.
pub(crate) fn free(device: &Device, architecture: &Architecture) -> Option<Fact<u64>> {
    match device.capabilities().backend {
        // All ranks of a host share its memory.
        BackendKind::Cpu => {
            let free = probe::memory(&Source::live()).available_bytes?;
            Some(Fact { value: free.value / architecture.place.ranks as u64, ..free })
        }
        BackendKind::Cuda => Some(Fact::new(ops_cuda::free_bytes(device)?, "cuMemGetInfo")),
        BackendKind::Metal => None,
    }
}

/// Peak memory of a device, as counted by [`Loaded::predicted_bytes`].
pub(crate) fn highest(device: &Device) -> Option<u64> {
    match device.capabilities().backend {
        BackendKind::Cpu => own("VmHWM"),
        BackendKind::Cuda => ops_cuda::peak_bytes(device),
        BackendKind::Metal => None,
    }
}

/// A line of /proc/self/status in bytes. The kernel's `kB` are 1024 bytes.
fn own(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
