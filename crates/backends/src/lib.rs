//! The list of backends, and functions that open their devices.

use device::{Device, DeviceOwnership, Unavailable};
use facts::BackendKind;
use ops::{Backends, ChoiceTable};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Every backend that firstlight was built with, preferred first.
pub static BACKENDS: Backends = Backends::new(&[&ops_cuda::NvidiaGpus, &ops_cpu::Cpu]);

/// Opens the first device of the backend of this kind.
///
/// # Errors
/// [`Unavailable`] when this build has no such backend or the machine lacks what it needs.
pub fn open(kind: BackendKind) -> Result<Device, Unavailable> {
    open_at(kind, 0)
}

/// Opens the device of this number, for work on several devices.
///
/// # Errors
/// As [`open`], and when there is no such device.
pub fn open_at(kind: BackendKind, ordinal: u32) -> Result<Device, Unavailable> {
    BACKENDS.open(kind, ordinal, DeviceOwnership::Owned)
}

/// The device of this number in a process where another library uses the GPU too ([`DeviceOwnership::Borrowed`]). It is
/// opened once: calls with the same number return the same device.
///
/// # Errors
/// As [`open_at`].
pub fn borrow(kind: BackendKind, ordinal: u32) -> Result<&'static Device, Unavailable> {
    static BORROWED: Mutex<BTreeMap<(BackendKind, u32), &'static Device>> =
        Mutex::new(BTreeMap::new());
    let mut borrowed = BORROWED.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (kind, ordinal);
    if let Some(device) = borrowed.get(&key) {
        return Ok(device);
    }
    let device = BACKENDS.open(kind, ordinal, DeviceOwnership::Borrowed)?;
    let device: &'static Device = Box::leak(Box::new(device));
    borrowed.insert(key, device);
    Ok(device)
}

/// Names and backends of an op's variants, GPUs first.
pub fn variants(op: &str) -> Vec<(&'static str, BackendKind)> {
    BACKENDS.variants(op)
}

/// The choice tables of an op's variants; empty if selection takes the first variant that can run.
pub fn choice_tables(op: &str) -> Vec<ChoiceTable> {
    BACKENDS.choice_tables(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::OPS;

    #[test]
    fn missing_backend_error_names_the_available_ones() {
        let error = open(BackendKind::Metal).unwrap_err();
        assert_eq!(
            error.to_string(),
            "backend metal is not available: this build has only cuda, cpu"
        );
        let error = open_at(BackendKind::Cpu, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "backend cpu is not available: there is no processor 1, all cores are device 0"
        );
    }

    /// The names of an op's variants are unique over all backends.
    #[test]
    fn every_backend_implements_every_op_with_distinct_names() {
        for op in OPS.iter().map(|op| op.spec().name) {
            let variants = variants(op);
            for kind in BACKENDS.kinds() {
                assert!(variants.iter().any(|(_, of)| *of == kind), "{op} on {kind}");
            }
            let mut names: Vec<_> = variants.iter().map(|(name, _)| *name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), variants.len(), "{op}");
        }
    }

    #[test]
    fn a_borrowed_device_is_opened_once() {
        let [first, second] = [(); 2].map(|()| borrow(BackendKind::Cpu, 0).unwrap());
        assert!(std::ptr::eq(first, second));
    }
}
