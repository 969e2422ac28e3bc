//! Converts the caller's records to tensors of ops, without a copy if possible.
#![allow(unsafe_code)] // Uses the caller's memory; the caller guarantees that its records are valid.

use crate::abi::RawTensor;
use device::Device;
use ops::{DType, Tensor, TensorSpec};
use std::sync::Arc;

/// An error message with the tensor's name.
fn about(spec: &TensorSpec, what: impl std::fmt::Display) -> String {
    format!("tensor `{}`: {what}", spec.name)
}

/// A tensor on a GPU.
///
/// # Safety
/// The record is valid, and its memory outlives the call's work in the stream.
pub(crate) unsafe fn on_gpu(
    raw: &RawTensor,
    spec: &TensorSpec,
    device: &Device,
) -> Result<Option<Tensor>, String> {
    let Some(layout) = raw.read(spec.name).map_err(|what| about(spec, what))? else {
        return Ok(None);
    };
    let (dtype, sizes, strides) = (layout.dtype, layout.sizes(), layout.strides());
    let len: usize = sizes.iter().product();
    if raw.data == 0 && len > 0 {
        return Err(about(spec, "has no memory (a fake or meta tensor?)"));
    }
    let last: usize =
        sizes.iter().zip(strides).map(|(size, stride)| (size.max(&1) - 1) * stride).sum();
    let bytes = if len == 0 { 0 } else { dtype.bytes_of(last + 1) };
    // SAFETY: guaranteed by the caller.
    let buffer = unsafe { ops_cuda::borrow_buffer(device, raw.data, bytes) };
    let buffer = buffer.map_err(|error| about(spec, error))?;
    let made = if dtype == DType::I32 {
        Tensor::integers(buffer, sizes, planned(raw, spec, len)?)
    } else {
        Tensor::strided(Arc::new(buffer), sizes, strides, dtype)
    };
    made.map(Some).map_err(|error| about(spec, error))
}

/// The values that the host plans with for integers on a GPU: their copy in host memory, or values derived from the bounds.
fn planned(raw: &RawTensor, spec: &TensorSpec, len: usize) -> Result<Arc<[i32]>, String> {
    if raw.host != 0 {
        let values = std::ptr::with_exposed_provenance::<i32>(raw.host as usize);
        // SAFETY: the caller guarantees as many values as the tensor has.
        return Ok(unsafe { std::slice::from_raw_parts(values, len) }.into());
    }
    let int = |value: i64| i32::try_from(value).map_err(|_| about(spec, "counts beyond 32 bits"));
    let (bound, total) = (int(raw.bound)?, int(raw.total)?);
    if spec.name.starts_with("cu_seqlens") {
        let sequences = len.saturating_sub(1) as i32;
        if i64::from(bound) * i64::from(sequences) < i64::from(total) {
            let what =
                format!("{sequences} sequences of at most {bound} cannot have {total} tokens");
            return Err(about(spec, what));
        }
        return Ok((0..=sequences).map(|nth| nth.saturating_mul(bound).min(total)).collect());
    }
    // There is one state slot per sequence; the kernels read the indices.
    if spec.name == "state_indices" {
        return Ok((0..len as i32).collect());
    }
    Ok(vec![bound; len].into())
}

/// A tensor in host memory, and whether it borrows the caller's memory instead of a copy.
///
/// # Errors
/// A sentence that names the tensor: its record is invalid, it is not contiguous, or it has no memory.
///
/// # Safety
/// The record is valid, and nothing else writes its memory while the tensor lives.
pub(crate) unsafe fn on_host(
    raw: &RawTensor,
    spec: &TensorSpec,
) -> Result<Option<(Tensor, bool)>, String> {
    let Some(layout) = raw.read(spec.name).map_err(|what| about(spec, what))? else {
        return Ok(None);
    };
    let (dtype, sizes) = (layout.dtype, layout.sizes());
    if sizes.contains(&0) {
        // A tensor without elements may have any strides and the address 0.
        return Ok(Some((Tensor::poisoned(sizes, dtype), true)));
    }
    let mut wanted = 1;
    for (size, stride) in sizes.iter().zip(layout.strides()).rev() {
        if *size > 1 && *stride != wanted {
            return Err(about(spec, "its elements are not contiguous"));
        }
        wanted *= size;
    }
    if raw.data == 0 {
        return Err(about(spec, "has no memory (a fake or meta tensor?)"));
    }
    let start = std::ptr::with_exposed_provenance_mut(raw.data as usize);
    // SAFETY: guaranteed by the caller.
    if let Some(borrowed) = unsafe { Tensor::from_borrowed(sizes, dtype, start) } {
        return Ok(Some((borrowed, true)));
    }
    let mut own = Tensor::poisoned(sizes, dtype);
    let bytes = own.bytes_mut();
    // SAFETY: guaranteed by the caller; the new tensor has as many bytes and does not overlap.
    unsafe { std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), bytes.len()) };
    Ok(Some((own, false)))
}

/// Copies a tensor into the caller's memory.
///
/// # Safety
/// The record is valid and has as many elements.
pub(crate) unsafe fn give_back(raw: &RawTensor, tensor: &mut Tensor) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(raw.data as usize);
    let bytes = tensor.bytes_mut();
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}
