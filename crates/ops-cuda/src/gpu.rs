//! Streams, memory, capabilities and libraries of NVIDIA GPUs, for programs that do more than run ops.
#![allow(unsafe_code)] // Streams and memory of another library.

use device::cuda::{Buffer, ComputeCapability, Cuda, Nccl, Nvrtc, Stream};
use device::{Device, DeviceError};

pub use device::cuda::{
    NCCL_SETTING, SWAP_STAGING_BYTES, VisibleGpu, compile_by, compile_for_another, is_partition,
    visible_gpus,
};

/// The GPU of a device.
pub(crate) fn gpu(device: &Device) -> Result<&Cuda, DeviceError> {
    let refused = || DeviceError::Refused { what: "the device is no GPU".to_owned() };
    Cuda::of(device).ok_or_else(refused)
}

/// The stream on which a GPU's work is enqueued.
///
/// # Errors
/// [`DeviceError::Refused`] when the device is not an NVIDIA GPU.
pub fn stream(device: &Device) -> Result<&Stream, DeviceError> {
    gpu(device).map(Cuda::stream)
}

/// Wraps a stream of another library, given as the driver's handle. Dropping it does not destroy it.
///
/// # Errors
/// [`DeviceError::Refused`] when the device is not an NVIDIA GPU.
///
/// # Safety
/// As of [`Cuda::borrow_stream`].
pub unsafe fn borrow_stream(device: &Device, handle: usize) -> Result<Stream, DeviceError> {
    // SAFETY: the caller's promise.
    gpu(device).map(|gpu| unsafe { gpu.borrow_stream(handle) })
}

/// Wraps device memory of another library. Dropping it does not free it.
///
/// # Errors
/// [`DeviceError::Refused`] when the device is not an NVIDIA GPU.
///
/// # Safety
/// As of [`Cuda::borrow_buffer`].
pub unsafe fn borrow_buffer(
    device: &Device,
    address: u64,
    bytes: usize,
) -> Result<Buffer, DeviceError> {
    // SAFETY: the caller's promise.
    gpu(device).map(|gpu| unsafe { gpu.borrow_buffer(address, bytes) })
}

/// The compute capability of a GPU; `None` for other devices.
pub fn compute_capability(device: &Device) -> Option<ComputeCapability> {
    Cuda::of(device).map(|gpu| gpu.capabilities().compute)
}

/// Free bytes of a GPU's memory; `None` if the driver does not report them.
pub fn free_bytes(device: &Device) -> Option<u64> {
    Cuda::of(device).map(Cuda::free_bytes).filter(|free| *free > 0)
}

/// Peak bytes of a GPU's memory in buffers; `None` for other devices.
pub fn peak_bytes(device: &Device) -> Option<u64> {
    Cuda::of(device).map(|gpu| gpu.memory_use().high_water)
}

/// Returns a function that reports the number of kernels loaded so far and the seconds it took to find or compile and load them;
/// `None` for other devices.
pub fn loaded_kernels(device: &Device) -> Option<impl Fn() -> (usize, f64) + use<>> {
    let gpu = Cuda::of(device)?.clone();
    Some(move || gpu.modules_loaded())
}

/// The NCCL library.
///
/// # Errors
/// [`DeviceError`] when no usable library is found.
pub fn nccl() -> Result<&'static Nccl, DeviceError> {
    Nccl::find()
}

/// Whether NVRTC was found, so that kernels outside the bundle can be compiled.
pub fn has_compiler() -> bool {
    Nvrtc::find(u32::MAX).is_ok()
}
