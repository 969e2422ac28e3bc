//! Copies of recurrent states between slots, all layers in one launch. The contract is in `states.cu`.
#![allow(unsafe_code)] // Launches.

use super::{NAME, THREADS, gpu};
use crate::{BUNDLE, arguments, source};
use device::Device;
use device::cuda::{
    Buffer, DeviceError, GpuArch, Kernel, KernelSource, Launch, SourcePart, Stream,
};
use ops::{OpError, Tensor};
use std::sync::Arc;

const PARTS: &[SourcePart] = &[source!("states.cu")];

/// Blocks per pool: the pools of about ten layers fill a GPU.
const BLOCKS: u32 = 32;

pub(super) fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_copy_states", PARTS, arch)
}

arguments! { CopyStates: decoder_copy_states { pools: Pointer, from: i32, to: i32 } }

/// The recurrent state pools `[slots, ..]` of a model's layers.
#[derive(Debug)]
pub struct StatePools {
    kernel: Kernel,
    /// For each pool its address and the bytes per slot, 64 bits each.
    table: Buffer,
    /// Number of pools.
    count: usize,
    slots: usize,
    _pools: Vec<Arc<Buffer>>,
}

impl StatePools {
    /// The table of these pools; `None` without pools. Slots up to the smallest pool's number are valid.
    ///
    /// # Errors
    /// [`OpError::Device`] when a pool is not on the GPU, a slot's state has an odd number of bytes, or the kernel cannot be loaded.
    pub fn new<'a>(
        device: &Device,
        stream: &Stream,
        pools: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<Option<Self>, OpError> {
        let (mut table, mut held, mut slots) = (Vec::new(), Vec::new(), usize::MAX);
        for pool in pools {
            let buffer = pool.on()?;
            let rows = pool.shape()[0];
            let row_bytes = pool.len() / rows.max(1) * pool.dtype().bytes();
            if !row_bytes.is_multiple_of(2) {
                return Err(refused(format!("a state of {row_bytes} bytes cannot be copied")));
            }
            table.extend(buffer.address().to_ne_bytes());
            table.extend((row_bytes as u64).to_ne_bytes());
            slots = slots.min(rows);
            held.push(Arc::clone(buffer));
        }
        if held.is_empty() {
            return Ok(None);
        }
        let made = || {
            let (cuda, arch, _) = gpu(device)?;
            Ok((cuda.kernel(&source(arch), &BUNDLE)?, stream.upload(&table)?))
        };
        let (kernel, table) = made().map_err(error)?;
        Ok(Some(Self { kernel, table, count: held.len(), slots, _pools: held }))
    }

    /// Copies the states of slot `from` to slot `to`.
    ///
    /// # Errors
    /// [`OpError::Device`] when a slot does not exist, both are the same, or the driver refuses the launch.
    pub fn copy(&self, stream: &Stream, from: usize, to: usize) -> Result<(), OpError> {
        if from >= self.slots || from == to {
            let what = format!("states of slot {from} cannot be copied to slot {to}");
            return Err(refused(what));
        }
        self.launch(stream, from as i32, to)
    }

    /// Sets the states of a slot to zero.
    ///
    /// # Errors
    /// As [`StatePools::copy`].
    pub fn clear(&self, stream: &Stream, slot: usize) -> Result<(), OpError> {
        self.launch(stream, -1, slot)
    }

    fn launch(&self, stream: &Stream, from: i32, to: usize) -> Result<(), OpError> {
        if to >= self.slots {
            return Err(refused(format!("slot {to} of {} does not exist", self.slots)));
        }
        let args = CopyStates { pools: &self.table, from, to: to as i32 };
        let shape = Launch::new([BLOCKS, self.count as u32, 1], THREADS, 0);
        // SAFETY: the pools are held, both slots exist, and the stream orders the launch after the work on them so far.
        unsafe { stream.launch(NAME, &self.kernel, &shape, &args.into()) }.map_err(error)
    }
}

fn error(error: DeviceError) -> OpError {
    OpError::Device { op: NAME, error }
}

fn refused(what: String) -> OpError {
    error(DeviceError::Refused { what })
}
