use super::{Backend, Device, Unavailable};
use crate::{Capabilities, Isa};
use facts::BackendKind;

/// The processor; always there.
pub(super) struct Cpu;

impl Backend for Cpu {
    fn kind(&self) -> BackendKind {
        BackendKind::Cpu
    }

    fn open(&self) -> Result<Device, Unavailable> {
        let isas = Isa::ALL.into_iter().filter(|isa| isa.is_here()).collect();
        Ok(Device::new(Capabilities {
            backend: BackendKind::Cpu,
            isas,
            threads: rayon::current_num_threads(),
            cuda: None,
        }))
    }
}
