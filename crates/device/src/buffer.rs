//! Buffers in the memory of a device other than the processor, independent of the backend.

use crate::DeviceError;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// An allocation, which buffers point into. A backend implements it; dropping its last buffer frees it.
pub trait Memory: Any + Debug + Send + Sync {
    /// Whether it is from a stream's transient reserve: it then stays allocated when its last buffer is dropped.
    fn is_transient(&self) -> bool;
}

/// A buffer in the memory of a device, with undefined content. It is aligned to 512 bytes if the backend allocated it;
/// memory of another library, and parts of buffers, may have any alignment.
#[derive(Debug)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    address: u64,
    bytes: usize,
    /// The operand number in a plan, while the plan is made.
    operand: Option<u8>,
}

impl Buffer {
    /// All `bytes` of an allocation, which starts at `address`.
    pub fn new(memory: Arc<dyn Memory>, address: u64, bytes: usize) -> Self {
        Self { memory, address, bytes, operand: None }
    }

    /// The allocation that it points into.
    pub fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// Whether its memory stays allocated when it is dropped, for other transient buffers of the same stream. A graph
    /// that writes to it before reading needs no reference to it, because the graph runs in stream order.
    pub fn is_transient(&self) -> bool {
        self.memory.is_transient()
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The `bytes` bytes from `start`, in the same memory.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] if the buffer is shorter.
    pub fn part(&self, start: usize, bytes: usize) -> Result<Self, DeviceError> {
        if start.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let what = format!("bytes {start} to {start} + {bytes} of a buffer of {}", self.bytes);
            return Err(DeviceError::refused(what));
        }
        let (memory, address) = (Arc::clone(&self.memory), self.address + start as u64);
        Ok(Self { memory, address, bytes, operand: self.operand })
    }

    /// The same memory as an operand of a plan: arguments that point into it record this number, so that the plan can
    /// be launched again with the operand at another address.
    #[must_use]
    pub fn as_operand(&self, operand: u8) -> Self {
        let Self { address, bytes, .. } = *self;
        Self { memory: Arc::clone(&self.memory), address, bytes, operand: Some(operand) }
    }

    pub(crate) fn operand(&self) -> Option<u8> {
        self.operand
    }
}
