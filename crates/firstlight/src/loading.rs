//! A model onto its device, once it is known to fit there.

use crate::crew::Crew;
use crate::failure::Failure;
use crate::transfer::Transfer;
use device::Device;
use device::cuda::Cuda;
use facts::{BackendKind, Fact};
use models::{
    Architecture, Capacity, Engine, Footprint, LargestStep, Model, ModelError, ModelSource,
    Opening, Storage,
};
use probe::Source;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A model on its device.
pub(crate) struct Loaded {
    pub(crate) engine: Box<dyn Engine>,
    /// The most memory of the device that was predicted to be taken, before the weights were read: by this process on the
    /// processor, by buffers on a GPU. None where the system does not tell what the process took by then.
    pub(crate) predicted_bytes: Option<u64>,
    /// Bytes of weights that were read, or drawn.
    pub(crate) read_bytes: u64,
}

/// Loads a model where it fits; where it does not, it is refused with numbers before a weight is read.
pub(crate) fn open(
    model: Model,
    device: Device,
    storage: Storage,
    capacity: Capacity,
    step: LargestStep,
) -> anyhow::Result<Loaded> {
    open_with(model, device, storage, (capacity, step), models::open)
}

/// The same with all ranks of a model that is split, of which `model` is this one's part; without others, as it is.
pub(crate) fn open_on(
    (crew, folder): (Option<&Crew>, &Path),
    model: Model,
    device: Device,
    storage: Storage,
    (capacity, step): (Capacity, LargestStep),
) -> anyhow::Result<Loaded> {
    let Some(crew) = crew else { return open(model, device, storage, capacity, step) };
    let source = ModelSource::Folder(folder.to_owned());
    let layers = model.architecture.stage.ranks > 1;
    open_with(model, device, storage, (capacity, step), |model, device, storage, capacity| {
        let backend = device.capabilities().backend;
        let opening = Opening::new(&source, backend, storage, (capacity, step));
        let opening = if layers { opening.by_layers() } else { opening };
        crew.ranks.open(model, device, &opening)
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
    let predicted_bytes = before.map(|before| before + footprint.peak());
    Ok(Loaded { engine, predicted_bytes, read_bytes })
}

/// What a model takes of a device; where that is more than is free, or the device has no engine for such weights, it is
/// refused.
pub(crate) fn fit(
    architecture: &Architecture,
    device: &Device,
    storage: Storage,
    (capacity, step): (Capacity, LargestStep),
) -> anyhow::Result<Footprint> {
    let kind = models::engine_kind(device)?;
    kind.check(storage, architecture)?;
    if architecture.stage.ranks > 1 && device.capabilities().backend != BackendKind::Cpu {
        let what = "layers are shared out over processors alone so far, not over GPUs";
        return Err(Failure::hinted(
            what.to_owned(),
            "give --backend cpu, or --tp in place of --pp",
        ));
    }
    let holding = models::holding(device, storage);
    let footprint = kind.footprint(architecture, holding, capacity, step);
    if let Some(free) = free(device, architecture) {
        footprint.hold_against(&free)?;
    }
    Ok(footprint)
}

/// What is free for a rank's part of a model where its weights lie; none where nothing tells.
pub(crate) fn free(device: &Device, architecture: &Architecture) -> Option<Fact<u64>> {
    match device.capabilities().backend {
        // All ranks of a host have its memory together.
        BackendKind::Cpu => {
            let free = probe::memory(&Source::live()).available_bytes?;
            Some(Fact { value: free.value / architecture.place.ranks as u64, ..free })
        }
        BackendKind::Cuda => {
            let free = device.cuda().map(Cuda::free_bytes).filter(|free| *free > 0)?;
            Some(Fact::new(free, "cuMemGetInfo"))
        }
        BackendKind::Metal => None,
    }
}

/// The most memory of a device that was taken at once, as [`Loaded::predicted_bytes`] counts it.
pub(crate) fn highest(device: &Device) -> Option<u64> {
    match device.capabilities().backend {
        BackendKind::Cpu => own("VmHWM"),
        BackendKind::Cuda => device.cuda().map(|cuda| cuda.memory_use().high_water),
        BackendKind::Metal => None,
    }
}

/// A line of /proc/self/status in bytes. The kernel writes `kB` and means 1024 bytes.
fn own(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
