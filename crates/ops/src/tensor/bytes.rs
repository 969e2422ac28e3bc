//! Tensors in host memory as bytes, for copies to and from a GPU.
#![allow(unsafe_code)] // Numbers viewed as bytes.

use super::{E4m3, Tensor, U4Pair};
use crate::DType;
use half::{bf16, f16};

impl Tensor {
    /// The elements in host memory as bytes, in the machine's order.
    pub fn bytes(&self) -> &[u8] {
        fn of<T: Copy>(values: Option<&[T]>) -> &[u8] {
            let values = values.unwrap_or_default();
            // SAFETY: numbers have no padding, and every byte of them is initialised.
            unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
        }
        match self.dtype() {
            DType::F64 => of(self.view::<f64>()),
            DType::F32 => of(self.view::<f32>()),
            DType::Bf16 => of(self.view::<bf16>()),
            DType::F16 => of(self.view::<f16>()),
            DType::I32 => of(self.view::<i32>()),
            DType::E4m3 => of(self.view::<E4m3>()),
            DType::U4 => of(self.view::<U4Pair>()),
            DType::I8 => of(self.view::<i8>()),
            DType::U8 => of(self.view::<u8>()),
        }
    }

    /// The same for writing: every bit pattern is valid for these types.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        fn of<T: Copy>(values: Option<&mut [T]>) -> &mut [u8] {
            let values = values.unwrap_or_default();
            let bytes = size_of_val(values);
            // SAFETY: as above, and borrowed exclusively.
            unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) }
        }
        match self.dtype() {
            DType::F64 => of(self.view_mut::<f64>()),
            DType::F32 => of(self.view_mut::<f32>()),
            DType::Bf16 => of(self.view_mut::<bf16>()),
            DType::F16 => of(self.view_mut::<f16>()),
            DType::I32 => of(self.view_mut::<i32>()),
            DType::E4m3 => of(self.view_mut::<E4m3>()),
            DType::U4 => of(self.view_mut::<U4Pair>()),
            DType::I8 => of(self.view_mut::<i8>()),
            DType::U8 => of(self.view_mut::<u8>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip_for_every_type() {
        let floats = [DType::F64, DType::F32, DType::Bf16, DType::F16, DType::E4m3];
        for dtype in floats.into_iter().chain([DType::I32, DType::U4, DType::I8, DType::U8]) {
            let tensor = Tensor::new(&[3, 2], vec![1f64, -2.0, 3.0, 4.5, 0.0, 6.0]).cast(dtype);
            assert_eq!(tensor.bytes().len(), dtype.bytes_of(6));
            let mut back = Tensor::poisoned(&[3, 2], dtype);
            back.bytes_mut().copy_from_slice(tensor.bytes());
            assert_eq!(back, tensor);
        }
    }
}
