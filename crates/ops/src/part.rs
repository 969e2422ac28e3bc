//! Parts of tensors.

use crate::{DType, E4m3, Element, Tensor, U4Pair};
use half::{bf16, f16};
use std::ops::Range;

impl Tensor {
    /// The part inside one range a dimension, copied.
    ///
    /// # Panics
    /// When a range leaves the tensor, or takes an odd number of columns in u4.
    pub fn part(&self, ranges: &[Range<usize>]) -> Self {
        // Not through float64: a benchmark's tensor has billions of elements, its part few.
        match self.dtype() {
            DType::F64 => part::<f64>(self, ranges),
            DType::F32 => part::<f32>(self, ranges),
            DType::Bf16 => part::<bf16>(self, ranges),
            DType::F16 => part::<f16>(self, ranges),
            DType::I32 => part::<i32>(self, ranges),
            DType::E4m3 => part::<E4m3>(self, ranges),
            DType::U4 => part::<U4Pair>(self, ranges),
            DType::I8 => part::<i8>(self, ranges),
            DType::U8 => part::<u8>(self, ranges),
        }
    }
}

fn part<E: Element>(tensor: &Tensor, ranges: &[Range<usize>]) -> Tensor {
    let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    let mut out = Vec::with_capacity(shape.iter().product());
    let (mut whole, mut ranges) = (tensor.shape().to_vec(), ranges.to_vec());
    if let (Some(whole), Some(range)) = (whole.last_mut(), ranges.last_mut()) {
        *whole /= E::ELEMENTS;
        *range = range.start / E::ELEMENTS..range.end / E::ELEMENTS;
    }
    copy(tensor.view::<E>().unwrap_or_default(), &whole, &ranges, 0, &mut out);
    Tensor::new(&shape, out)
}

fn copy<E: Copy>(
    values: &[E],
    shape: &[usize],
    ranges: &[Range<usize>],
    base: usize,
    out: &mut Vec<E>,
) {
    match (shape, ranges) {
        ([_], [range]) => out.extend_from_slice(&values[base + range.start..base + range.end]),
        ([_, inner @ ..], [range, rest @ ..]) => {
            let stride: usize = inner.iter().product();
            range.clone().for_each(|index| copy(values, inner, rest, base + index * stride, out));
        }
        _ => out.push(values[base]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_type_and_order() {
        let whole = Tensor::new(&[2, 3, 2], (0..12).map(f64::from).collect::<Vec<f64>>());
        let floats = [DType::F64, DType::F32, DType::Bf16, DType::F16, DType::E4m3];
        for dtype in floats.into_iter().chain([DType::I32, DType::I8, DType::U8]) {
            let part = whole.cast(dtype).part(&[1..2, 0..3, 1..2]);
            assert_eq!((part.shape(), part.dtype()), (&[1, 3, 1][..], dtype));
            assert_eq!(part.to_f64(), [7.0, 9.0, 11.0]);
        }
        assert_eq!(whole.part(&[0..2, 1..1, 0..2]).to_f64(), [0.0; 0]);
        let part = whole.cast(DType::U4).part(&[0..2, 1..2, 0..2]);
        assert_eq!((part.dtype(), part.to_f64()), (DType::U4, vec![2.0, 3.0, 8.0, 9.0]));
    }
}
