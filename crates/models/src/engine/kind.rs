//! The engines by backend: what each supports, how much a step of it best has, and how it is opened.

use super::{Engine, Model, Storage};
use crate::{Architecture, ModelError, cpu, cuda};
use architectures::{Capacity, Footprint, Holding, LargestStep, StateType};
use device::Device;
use facts::BackendKind;
use std::time::Duration;

/// Loads a model onto a device.
type Open = fn(Model, Device, Storage, Capacity) -> Result<Box<dyn Engine>, ModelError>;

/// An engine, by its backend.
#[derive(Debug)]
pub struct EngineKind {
    /// The backend it is for.
    pub backend: BackendKind,
    /// Tokens of prompts that are best read in one step.
    pub chunk: usize,
    /// The same where sequences decode in the same step, which wait for it.
    pub beside: usize,
    /// How long prompts may be read in such a step.
    pub patience: Duration,
    /// What its weights may be stored in.
    pub storages: &'static [Storage],
    /// What the states of Mamba-2's scan may be held in.
    pub states: &'static [StateType],
    /// Decoding steps that are best in flight: 1 where the device waits for the host after each.
    pub ahead: usize,
    /// Bytes beside weights, states, caches and activations: what ranks of a split model hand to one another, and keys brought together.
    pub(crate) extra: fn(&Architecture, Capacity) -> u64,
    /// Bytes of recorded steps at most.
    pub(crate) recorded: u64,
    pub(crate) open: Open,
}

impl EngineKind {
    /// Whether it has weights in this storage type, and a model's states as they are to be held.
    ///
    /// # Errors
    /// [`ModelError::Storage`] or [`ModelError::StatesOn`] where it has not.
    pub fn check(&self, storage: Storage, of: &Architecture) -> Result<(), ModelError> {
        let (backend, states) = (self.backend, of.scan_states);
        if !self.storages.contains(&storage) {
            return Err(ModelError::Storage { backend, storage });
        }
        if !self.states.contains(&states) {
            return Err(ModelError::StatesOn { backend, states });
        }
        Ok(())
    }

    /// What it takes for a model, or for a rank's part of one.
    pub fn footprint(
        &self,
        of: &Architecture,
        holding: Holding,
        capacity: Capacity,
        step: LargestStep,
    ) -> Footprint {
        let footprint = Footprint::new(of, holding, capacity, step);
        footprint.with_extra((self.extra)(of, capacity)).with_recorded(self.recorded)
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
/// [`ModelError::Backend`] when there is no engine for the device, and whatever is wrong with the weights' values.
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
        return Err(ModelError::fault("a part of a model is opened with the other ranks"));
    }
    (engine.open)(model, device, storage, capacity)
}
