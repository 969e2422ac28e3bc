//! The processor as a backend.

use device::{Device, DeviceOwnership, Unavailable};
use facts::BackendKind;
use ops::{Backend, Implementations};

/// The processor; always there.
pub struct Cpu;

/// The CPU implementations of each op.
static TABLES: [(&str, &dyn Implementations); 17] = [
    ("attention", &crate::attention::CPU),
    ("kda", &crate::kda::CPU),
    ("gated_delta", &crate::gated_delta::CPU),
    ("ssd", &crate::ssd::CPU),
    ("selective_scan", &crate::selective_scan::CPU),
    ("conv1d", &crate::conv1d::CPU),
    ("nsa", &crate::nsa::CPU),
    ("rmsnorm", &crate::rmsnorm::CPU),
    ("linear", &crate::linear::CPU),
    ("moe", &crate::moe::CPU),
    ("sampling", &crate::sampling::CPU),
    ("attention_backward", &crate::attention::BACKWARD),
    ("kda_backward", &crate::kda::BACKWARD),
    ("gated_delta_backward", &crate::gated_delta::BACKWARD),
    ("ssd_backward", &crate::ssd::BACKWARD),
    ("conv1d_backward", &crate::conv1d::BACKWARD),
    ("rmsnorm_backward", &crate::rmsnorm::BACKWARD),
];

impl Backend for Cpu {
    fn kind(&self) -> BackendKind {
        BackendKind::Cpu
    }

    fn open(&self, ordinal: u32, _tenure: DeviceOwnership) -> Result<Device, Unavailable> {
        match ordinal {
            0 => Ok(Device::processor()),
            _ => {
                let reason = format!("there is no processor {ordinal}, all cores are device 0");
                Err(Unavailable { backend: BackendKind::Cpu, reason })
            }
        }
    }

    fn op(&self, op: &str) -> Option<&'static dyn Implementations> {
        TABLES.iter().find(|(name, _)| *name == op).map(|(_, table)| *table)
    }
}
