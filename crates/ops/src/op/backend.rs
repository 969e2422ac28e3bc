//! Backends and their variants of each op.

use super::selection::Preference;
use super::{ChoiceTable, Execution, Problem};
use crate::{Inputs, OpError, TensorMap};
use device::{Device, DeviceOwnership, Unavailable};
use facts::BackendKind;

/// A way to run ops on one kind of device. Adding a backend takes a crate that implements this trait and one line in the list of
/// backends.
pub trait Backend: Sync {
    /// Its name.
    fn kind(&self) -> BackendKind;
    /// Opens the device of this number.
    ///
    /// # Errors
    /// [`Unavailable`] when the machine lacks what the backend needs.
    fn open(&self, ordinal: u32, ownership: DeviceOwnership) -> Result<Device, Unavailable>;
    /// Its variants of the op of this name; `None` without any.
    fn op(&self, op: &str) -> Option<&'static dyn Implementations>;
}

/// The variants that one backend has of one op, numbered from the best on. Problems are of the op's own type.
pub trait Implementations: Sync {
    /// How many variants there are.
    fn count(&self) -> usize;
    /// The name of a variant, unique within the op on all backends: `tiled.avx512`.
    fn name(&self, variant: usize) -> &'static str;
    /// Why a variant cannot run this problem on this device; `None` when it can.
    fn why_not(&self, variant: usize, problem: &dyn Problem, device: &Device) -> Option<String>;
    /// The variants that the op's choice table names for this problem, most preferred first, each with its rule. Selection takes the
    /// first that can run; if none can, the first of all variants that can.
    fn preferred(&self, problem: &dyn Problem, device: &Device) -> Vec<Preference> {
        let _ = (problem, device);
        Vec::new()
    }
    /// The tables that [`Implementations::preferred`] uses.
    fn choice_tables(&self) -> Vec<ChoiceTable> {
        Vec::new()
    }
    /// Makes an execution of a variant that selection chose, with poisoned outputs.
    ///
    /// # Errors
    /// [`OpError::Device`] if the device is out of memory or a kernel cannot be compiled or loaded.
    fn prepare<'b>(
        &self,
        variant: usize,
        problem: &'b dyn Problem,
        inputs: Inputs<'b>,
        device: &'b Device,
    ) -> Result<Box<dyn Execution + 'b>, OpError>;
    /// Runs a variant that selection chose once over host memory. Tensors in `outputs` that have the shape and type of an output
    /// are overwritten; the others are allocated.
    ///
    /// # Errors
    /// [`OpError::Refused`] if the backend's variants run only in device memory.
    fn run(
        &self,
        variant: usize,
        problem: &dyn Problem,
        inputs: Inputs<'_>,
        device: &Device,
        outputs: &mut TensorMap,
    ) -> Result<(), OpError> {
        let _ = (problem, device, outputs);
        let reason = "only variants over host memory run into tensors of the caller".to_owned();
        let variant = self.name(variant).to_owned();
        Err(OpError::Refused { op: inputs.op(), variant, reason })
    }
}

/// Backends in order of preference.
#[derive(Clone, Copy)]
pub struct Backends(&'static [&'static dyn Backend]);

/// The device extension that records the backends it was opened by.
#[derive(Debug)]
struct OpenedBy {
    all: Backends,
    own: &'static dyn Backend,
}

impl Backends {
    /// A list of backends, the preferred one first.
    pub const fn new(list: &'static [&'static dyn Backend]) -> Self {
        Self(list)
    }

    /// Their names, preferred first.
    pub fn kinds(self) -> impl Iterator<Item = BackendKind> {
        self.0.iter().map(|backend| backend.kind())
    }

    /// Opens a device of the backend of this kind.
    ///
    /// # Errors
    /// [`Unavailable`] when there is no such backend, or the machine lacks what it needs.
    pub fn open(
        self,
        kind: BackendKind,
        ordinal: u32,
        ownership: DeviceOwnership,
    ) -> Result<Device, Unavailable> {
        let Some(own) = self.0.iter().copied().find(|backend| backend.kind() == kind) else {
            let built: Vec<&str> = self.kinds().map(BackendKind::as_str).collect();
            let reason = format!("this build has only {}", built.join(", "));
            return Err(Unavailable { backend: kind, reason });
        };
        Ok(own.open(ordinal, ownership)?.with_extension(OpenedBy { all: self, own }))
    }

    /// Names and backends of an op's variants, those of the preferred backend first.
    pub fn variants(self, op: &str) -> Vec<(&'static str, BackendKind)> {
        let of = |backend: &&dyn Backend| {
            let (kind, own) = (backend.kind(), backend.op(op));
            own.into_iter()
                .flat_map(move |own| (0..own.count()).map(move |at| (own.name(at), kind)))
        };
        self.0.iter().flat_map(of).collect()
    }

    /// The choice tables of an op's variants; empty if selection takes the first variant that can run.
    pub fn choice_tables(self, op: &str) -> Vec<ChoiceTable> {
        let own = self.0.iter().filter_map(|backend| backend.op(op));
        own.flat_map(Implementations::choice_tables).collect()
    }

    /// The backends that a device was opened by; empty for a device that was created directly.
    pub(super) fn of(device: &Device) -> Self {
        device.extension::<OpenedBy>().map_or(Self(&[]), |by| by.all)
    }

    /// The variants of an op on a device's backend.
    pub(super) fn own(device: &Device, op: &str) -> Option<&'static dyn Implementations> {
        device.extension::<OpenedBy>()?.own.op(op)
    }
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}

impl std::fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Backend({})", self.kind())
    }
}
