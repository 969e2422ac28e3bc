//! Arguments of a kernel, in the order of its parameters.

use super::context::Context;
use super::memory::bytes_of;
use super::{Buffer, CudaError, TensorMap};
use std::ffi::c_void;
use std::sync::Arc;

/// One cache line: every argument starts at one, which satisfies any alignment a parameter can have.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// An argument's bytes.
#[derive(Debug, Clone)]
struct Argument {
    lines: Vec<Line>,
    bytes: usize,
}

/// Arguments of a kernel, in the order of its parameters.
#[derive(Debug, Clone, Default)]
pub struct Args {
    arguments: Vec<Argument>,
    /// The device whose memory they point to.
    device: Option<Arc<Context>>,
    mixed: bool,
}

impl Args {
    /// No arguments yet.
    pub fn new() -> Self {
        Self::default()
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; 8]); bytes.len().div_ceil(size_of::<Line>()).max(1)];
        let words = lines.iter_mut().flat_map(|line| line.0.iter_mut());
        for (word, part) in words.zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..part.len()].copy_from_slice(part);
            *word = u64::from_ne_bytes(whole);
        }
        self.arguments.push(Argument { lines, bytes: bytes.len() });
        self
    }

    /// A pointer to the start of a buffer.
    #[must_use]
    pub fn buffer(self, buffer: &Buffer) -> Self {
        self.buffer_at(buffer, 0)
    }

    /// A pointer into a buffer, `offset` bytes from its start.
    #[must_use]
    pub fn buffer_at(mut self, buffer: &Buffer, offset: usize) -> Self {
        match &self.device {
            None => self.device = Some(Arc::clone(buffer.context())),
            Some(device) => self.mixed |= !Arc::ptr_eq(device, buffer.context()),
        }
        self.push(&(buffer.address() + offset as u64).to_ne_bytes())
    }

    /// A pointer, or null.
    #[must_use]
    pub fn maybe(self, buffer: Option<&Buffer>) -> Self {
        match buffer {
            Some(buffer) => self.buffer(buffer),
            None => self.push(&0u64.to_ne_bytes()),
        }
    }

    /// A 32-bit integer.
    #[must_use]
    pub fn i32(self, value: i32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// A 64-bit integer.
    #[must_use]
    pub fn i64(self, value: i64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// A float32.
    #[must_use]
    pub fn f32(self, value: f32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// A float64.
    #[must_use]
    pub fn f64(self, value: f64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// A descriptor for the copy engine.
    #[must_use]
    pub fn map(self, map: &TensorMap) -> Self {
        self.push(bytes_of(&map.0.0))
    }

    /// Sizes of the arguments, bytes.
    pub(super) fn sizes(&self) -> Vec<usize> {
        self.arguments.iter().map(|argument| argument.bytes).collect()
    }

    /// Pointers to the arguments, as the driver takes them.
    pub(super) fn pointers(&self) -> Vec<*const c_void> {
        self.arguments.iter().map(|argument| argument.lines.as_ptr().cast()).collect()
    }

    /// Refuses buffers of another device than the one the launch goes to.
    pub(super) fn check_device(&self, context: &Arc<Context>) -> Result<(), CudaError> {
        let other = self.device.as_ref().is_some_and(|device| !Arc::ptr_eq(device, context));
        if self.mixed || other {
            return Err(CudaError::refused(
                "a kernel's arguments point to buffers of more than one device",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::driver::RawTensorMap;

    #[test]
    fn arguments_keep_their_bytes_sizes_and_alignment() {
        let map = TensorMap(RawTensorMap(std::array::from_fn(|i| i as u64)));
        let args = Args::new().i32(-2).f32(1.5).map(&map).i64(-3).maybe(None);
        assert_eq!(args.sizes(), [4, 4, 128, 8, 8]);
        assert!(args.pointers().iter().all(|pointer| pointer.addr().is_multiple_of(64)));
        let words: Vec<u64> =
            args.arguments[2].lines.iter().flat_map(|line| line.0.iter().copied()).collect();
        assert_eq!(words, (0..16).collect::<Vec<u64>>());
        assert_eq!(args.arguments[0].lines[0].0[0] as u32 as i32, -2);
        assert_eq!(f32::from_bits(args.arguments[1].lines[0].0[0] as u32), 1.5);
        assert_eq!(args.arguments[3].lines[0].0[0] as i64, -3);
        assert_eq!(args.arguments[4].lines[0].0[0], 0);
    }
}
