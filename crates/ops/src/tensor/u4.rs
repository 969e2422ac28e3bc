//! 4-bit integers, a storage type of weights.

use super::{Data, Element, Tensor};
use crate::DType;
use device::HostBuffer;

/// Two neighbouring elements of a u4 tensor, from 0 to 15, the first in the low half of the byte. The last dimension of a u4 tensor is
/// even.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct U4Pair(u8);

impl U4Pair {
    /// Packs two integers; values above 15 saturate to 15.
    pub fn new([first, second]: [u8; 2]) -> Self {
        Self(first.min(15) | second.min(15) << 4)
    }

    /// The integers of these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Both.
    pub const fn both(self) -> [u8; 2] {
        [self.0 & 15, self.0 >> 4]
    }
}

impl Element for U4Pair {
    const DTYPE: DType = DType::U4;
    const ELEMENTS: usize = 2;

    fn tensor(shape: &[usize], values: HostBuffer<Self>) -> Tensor {
        let even = shape.last().is_some_and(|last| last.is_multiple_of(2));
        let fits = even && shape.iter().product::<usize>() == 2 * values.len();
        assert!(fits, "{} pairs for shape {shape:?}", values.len());
        Tensor::side_by_side(shape, Data::U4(values))
    }

    fn buffer(tensor: Tensor) -> Option<HostBuffer<Self>> {
        match tensor.data {
            Data::U4(values) => Some(values),
            _ => None,
        }
    }

    fn view(tensor: &Tensor) -> Option<&[Self]> {
        match &tensor.data {
            Data::U4(values) => Some(values),
            _ => None,
        }
    }

    fn view_mut(tensor: &mut Tensor) -> Option<&mut [Self]> {
        match &mut tensor.data {
            Data::U4(values) => Some(values),
            _ => None,
        }
    }

    fn widen(from: &[Self], to: &mut [f32]) {
        assert_eq!(2 * from.len(), to.len(), "lengths of a conversion");
        for (to, pair) in to.as_chunks_mut::<2>().0.iter_mut().zip(from) {
            *to = pair.both().map(f32::from);
        }
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        assert_eq!(from.len(), 2 * to.len(), "lengths of a conversion");
        for (to, pair) in to.iter_mut().zip(from.as_chunks::<2>().0) {
            *to = Self::new(pair.map(|x| x.round_ties_even() as u8));
        }
    }
}
