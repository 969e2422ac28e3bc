//! The engines by backend: supported types, default step sizes, and the function that opens them.

use super::{Engine, Model, Storage};
use crate::{Architecture, ModelError, cpu, cuda};
use architectures::{Capacity, Footprint, LargestStep, StateType, WeightStorage};
use device::Device;
use facts::BackendKind;
use std::time::Duration;

/// Loads a model onto a device.
type Open = fn(Model, Device, Storage, Capacity) -> Result<Box<dyn Engine>, ModelError>;

/// The engine of a backend.
#[derive(Debug)]
pub struct EngineKind {
    /// The backend.
    pub backend: BackendKind,
    /// Default number of prompt tokens per step (chunked prefill).
    pub chunk: usize,
    /// Maximum tokens of a mixed step, in which some sequences decode and others prefill.
    pub max_mixed_tokens: usize,
    /// Maximum duration of a mixed step.
    pub max_mixed_step: Duration,
    /// Supported storage types of weights.
    pub storages: &'static [Storage],
    /// Supported types of the states of Mamba-2's scan.
    pub states: &'static [StateType],
    /// Default number of decode steps in flight; 1 if the device waits for the host after each.
    pub decode_steps_in_flight: usize,
    /// Device memory in addition to weights, states, caches and activations: exchange buffers of a split model, and
    /// contiguous copies of keys.
    pub(crate) extra: fn(&Architecture, Capacity) -> u64,
    /// Maximum bytes of captured CUDA graphs.
    pub(crate) graph_bytes: u64,
    /// Loads a model.
    pub(crate) open: Open,
}

impl EngineKind {
    /// Checks that it supports a storage type, and the state type and layers of a model.
    ///
    /// # Errors
    /// [`ModelError::Storage`], [`ModelError::StatesOn`] or [`ModelError::Call`].
    pub fn check(&self, storage: Storage, of: &Architecture) -> Result<(), ModelError> {
        let (backend, states) = (self.backend, of.scan_states);
        if !self.storages.contains(&storage) {
            return Err(ModelError::Storage { backend, storage });
        }
        if !self.states.contains(&states) {
            return Err(ModelError::StatesOn { backend, states });
        }
        if let Some(what) = of.cpu_only().filter(|_| backend != BackendKind::Cpu) {
            let what = format!("no kernel for GPUs {what}");
            return Err(ModelError::call(what, "the processor runs it: --backend cpu"));
        }
        Ok(())
    }

    /// The memory that it needs for a model, or for a rank's part of one.
    pub fn footprint(
        &self,
        of: &Architecture,
        weights: WeightStorage,
        capacity: Capacity,
        step: LargestStep,
    ) -> Footprint {
        let footprint = Footprint::new(of, weights, capacity, step);
        footprint.with_extra((self.extra)(of, capacity)).with_graphs(self.graph_bytes)
    }
}

/// Every engine.
pub const ENGINES: &[EngineKind] = &[cpu::ENGINE, cuda::ENGINE];

/// The engine for a device.
///
/// # Errors
/// [`ModelError::Backend`].
pub fn engine_kind(device: &Device) -> Result<&'static EngineKind, ModelError> {
    let backend = device.capabilities().backend;
    ENGINES.iter().find(|engine| engine.backend == backend).ok_or(ModelError::Backend(backend))
}

/// Loads a model onto a device.
///
/// # Errors
/// [`ModelError::Backend`] when there is no engine for the device, and any error of reading the weights.
pub fn open(
    model: Model,
    device: Device,
    storage: Storage,
    capacity: Capacity,
) -> Result<Box<dyn Engine>, ModelError> {
    let engine = engine_kind(&device)?;
    engine.check(storage, &model.architecture)?;
    let Architecture { place, stage, .. } = &model.architecture;
    if place.ranks * stage.ranks > 1 && model.ranks.is_none() {
        return Err(ModelError::fault(
            "a part of a model needs the connections to the other ranks",
        ));
    }
    (engine.open)(model, device, storage, capacity)
}
