mod bytes;
mod e4m3;
mod gpu;
mod u4;

pub use e4m3::E4m3;
pub use u4::U4Pair;

use crate::DType;
use device::HostBuffer;
use gpu::OnGpu;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// A tensor in host memory, row-major, or on a GPU, where it may be strided. A clone of a host tensor is copied on write; a clone of
/// a GPU tensor shares its memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    shape: Dims,
    /// Elements from one index of a dimension to the next.
    strides: Dims,
    data: Data,
}

/// Sizes or strides of dimensions, slowest first; few enough to need no allocation.
type Dims = SmallVec<[usize; 5]>;

#[derive(Debug, Clone, PartialEq)]
enum Data {
    F64(HostBuffer<f64>),
    F32(HostBuffer<f32>),
    Bf16(HostBuffer<bf16>),
    F16(HostBuffer<f16>),
    I32(HostBuffer<i32>),
    E4m3(HostBuffer<E4m3>),
    U4(HostBuffer<U4Pair>),
    I8(HostBuffer<i8>),
    U8(HostBuffer<u8>),
    Gpu(OnGpu),
}

/// Strides of a contiguous row-major tensor.
fn row_major(shape: &[usize]) -> Dims {
    let mut strides = Dims::from_elem(1, shape.len());
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at] * shape[at];
    }
    strides
}

/// Tensors by name.
pub type TensorMap = BTreeMap<String, Tensor>;

/// Element types that a tensor can be viewed as, with conversion to and from the float32 that kernels compute in.
pub trait Element: Copy + Send + Sync + Default + std::fmt::Debug + 'static {
    /// The type's name.
    const DTYPE: DType;
    /// Elements of a tensor per value of this type.
    const ELEMENTS: usize = 1;
    /// Wraps values in a tensor.
    ///
    /// # Panics
    /// When they are not as many elements as the product of the shape.
    fn tensor(shape: &[usize], values: HostBuffer<Self>) -> Tensor;
    /// Takes the tensor's elements, if it has this type.
    fn buffer(tensor: Tensor) -> Option<HostBuffer<Self>>;
    /// The tensor's elements, when it has this type.
    fn view(tensor: &Tensor) -> Option<&[Self]>;
    /// The tensor's elements for writing, when it has this type.
    fn view_mut(tensor: &mut Tensor) -> Option<&mut [Self]>;
    /// Widens a slice to float32 (exact for bf16 and f16).
    ///
    /// # Panics
    /// When the lengths differ.
    fn widen(from: &[Self], to: &mut [f32]);
    /// Rounds a float32 slice to this type, to nearest even.
    ///
    /// # Panics
    /// When the lengths differ.
    fn narrow(from: &[f32], to: &mut [Self]);
}

macro_rules! element {
    ($type:ty, $variant:ident, $planned:expr, $widen:expr, $narrow:expr) => {
        impl Element for $type {
            const DTYPE: DType = DType::$variant;
            fn tensor(shape: &[usize], values: HostBuffer<Self>) -> Tensor {
                assert_eq!(
                    shape.iter().product::<usize>(),
                    values.len(),
                    "values for shape {shape:?}"
                );
                Tensor::side_by_side(shape, Data::$variant(values))
            }
            fn buffer(tensor: Tensor) -> Option<HostBuffer<Self>> {
                match tensor.data {
                    Data::$variant(values) => Some(values),
                    _ => None,
                }
            }
            fn view(tensor: &Tensor) -> Option<&[Self]> {
                let planned: fn(&OnGpu) -> Option<&[$type]> = $planned;
                match &tensor.data {
                    Data::$variant(values) => Some(values),
                    Data::Gpu(on_gpu) => planned(on_gpu),
                    _ => None,
                }
            }
            fn view_mut(tensor: &mut Tensor) -> Option<&mut [Self]> {
                match &mut tensor.data {
                    Data::$variant(values) => Some(values),
                    _ => None,
                }
            }
            fn widen(from: &[Self], to: &mut [f32]) {
                let widen: fn(&[Self], &mut [f32]) = $widen;
                widen(from, to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                let narrow: fn(&[f32], &mut [Self]) = $narrow;
                narrow(from, to);
            }
        }
    };
}

element!(f32, F32, |_| None, |from, to| to.copy_from_slice(from), |from, to| to
    .copy_from_slice(from));
element!(bf16, Bf16, |_| None, |from, to| from.convert_to_f32_slice(to), |from, to| to
    .convert_from_f32_slice(from));
element!(f16, F16, |_| None, |from, to| from.convert_to_f32_slice(to), |from, to| to
    .convert_from_f32_slice(from));
element!(f64, F64, |_| None, |from, to| each(from, to, |x| x as f32), |from, to| each(
    from,
    to,
    f64::from
));
element!(i32, I32, OnGpu::planned, |from, to| each(from, to, |x| x as f32), |from, to| each(
    from,
    to,
    |x| x as i32
));

element!(E4m3, E4m3, |_| None, |from, to| each(from, to, E4m3::to_f32), |from, to| each(
    from,
    to,
    E4m3::from_f32
));
element!(i8, I8, |_| None, |from, to| each(from, to, f32::from), |from, to| each(from, to, |x| x
    .round_ties_even()
    as i8));
element!(u8, U8, |_| None, |from, to| each(from, to, f32::from), |from, to| each(from, to, |x| x
    .round_ties_even()
    as u8));

fn each<A: Copy, B>(from: &[A], to: &mut [B], convert: impl Fn(A) -> B) {
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    for (to, from) in to.iter_mut().zip(from) {
        *to = convert(*from);
    }
}

impl Tensor {
    /// A tensor from values in row-major order.
    ///
    /// # Panics
    /// When the number of values is not the product of the shape.
    pub fn new<E: Element>(shape: &[usize], values: Vec<E>) -> Self {
        E::tensor(shape, values.into())
    }

    /// A tensor whose values `fill` writes in runs of `run` values, see [`HostBuffer::from_runs`].
    pub fn from_runs<E: Element>(
        shape: &[usize],
        run: usize,
        fill: impl Fn(usize, &mut [E]) + Sync,
    ) -> Self {
        E::tensor(shape, HostBuffer::from_runs(shape.iter().product(), run, fill))
    }

    /// A row-major tensor over memory of another library; `None` if it is not aligned to a cache line.
    ///
    /// # Safety
    /// As of [`HostBuffer::from_borrowed`], for as many values as the shape has.
    #[allow(unsafe_code)] // The caller upholds the contract of `HostBuffer::from_borrowed`.
    pub unsafe fn from_borrowed(shape: &[usize], dtype: DType, start: *mut u8) -> Option<Self> {
        let len = shape.iter().product();
        // SAFETY: the caller's promise; each type takes any bits.
        let data = unsafe {
            match dtype {
                DType::F64 => HostBuffer::from_borrowed(start.cast(), len).map(Data::F64),
                DType::F32 => HostBuffer::from_borrowed(start.cast(), len).map(Data::F32),
                DType::Bf16 => HostBuffer::from_borrowed(start.cast(), len).map(Data::Bf16),
                DType::F16 => HostBuffer::from_borrowed(start.cast(), len).map(Data::F16),
                DType::I32 => HostBuffer::from_borrowed(start.cast(), len).map(Data::I32),
                DType::E4m3 => HostBuffer::from_borrowed(start.cast(), len).map(Data::E4m3),
                DType::U4 => HostBuffer::from_borrowed(start.cast(), len / 2).map(Data::U4),
                DType::I8 => HostBuffer::from_borrowed(start.cast(), len).map(Data::I8),
                DType::U8 => HostBuffer::from_borrowed(start, len).map(Data::U8),
            }
        };
        Some(Self::side_by_side(shape, data?))
    }

    fn side_by_side(shape: &[usize], data: Data) -> Self {
        Self { shape: Dims::from_slice(shape), strides: row_major(shape), data }
    }

    /// A tensor full of NaN (of the smallest value for integers). Outputs are filled like this before a launch, so that an
    /// element that no kernel wrote fails the comparison.
    pub fn poisoned(shape: &[usize], dtype: DType) -> Self {
        let len = shape.iter().product();
        let data = match dtype {
            DType::F64 => Data::F64(HostBuffer::filled(f64::NAN, len)),
            DType::F32 => Data::F32(HostBuffer::filled(f32::NAN, len)),
            DType::Bf16 => Data::Bf16(HostBuffer::filled(bf16::NAN, len)),
            DType::F16 => Data::F16(HostBuffer::filled(f16::NAN, len)),
            DType::I32 => Data::I32(HostBuffer::filled(i32::MIN, len)),
            DType::E4m3 => Data::E4m3(HostBuffer::filled(E4m3::NAN, len)),
            DType::U4 => Data::U4(HostBuffer::filled(U4Pair::default(), len / 2)),
            DType::I8 => Data::I8(HostBuffer::filled(i8::MIN, len)),
            DType::U8 => Data::U8(HostBuffer::filled(u8::MIN, len)),
        };
        Self::side_by_side(shape, data)
    }

    /// Fills a tensor in host memory with NaN (with the smallest value for integers).
    pub fn poison(&mut self) {
        match &mut self.data {
            Data::F64(values) => values.fill(f64::NAN),
            Data::F32(values) => values.fill(f32::NAN),
            Data::Bf16(values) => values.fill(bf16::NAN),
            Data::F16(values) => values.fill(f16::NAN),
            Data::I32(values) => values.fill(i32::MIN),
            Data::E4m3(values) => values.fill(E4m3::NAN),
            Data::U4(values) => values.fill(U4Pair::default()),
            Data::I8(values) => values.fill(i8::MIN),
            Data::U8(values) => values.fill(u8::MIN),
            Data::Gpu(_) => {}
        }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        match &self.data {
            Data::F64(_) => DType::F64,
            Data::F32(_) => DType::F32,
            Data::Bf16(_) => DType::Bf16,
            Data::F16(_) => DType::F16,
            Data::I32(_) => DType::I32,
            Data::E4m3(_) => DType::E4m3,
            Data::U4(_) => DType::U4,
            Data::I8(_) => DType::I8,
            Data::U8(_) => DType::U8,
            Data::Gpu(on_gpu) => on_gpu.dtype(),
        }
    }

    /// Sizes of the dimensions, slowest first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Sizes of the dimensions in a file, whose elements are whole bytes: for u4 the last one is halved.
    pub fn file_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.to_vec();
        if let (DType::U4, Some(last)) = (self.dtype(), shape.last_mut()) {
            *last /= 2;
        }
        shape
    }

    /// Elements from one index to the next of each dimension.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Whether it is contiguous and row-major.
    pub fn is_row_major(&self) -> bool {
        let sizes = self.shape.iter().zip(self.strides.iter().zip(row_major(&self.shape)));
        self.is_empty()
            || sizes.into_iter().all(|(size, (stride, wanted))| *size == 1 || *stride == wanted)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements, if they have this type and are in host memory; for integers on a GPU the host's planning values
    /// ([`Tensor::integers`]).
    pub fn view<E: Element>(&self) -> Option<&[E]> {
        E::view(self)
    }

    /// The elements for writing, when they have this type.
    pub fn view_mut<E: Element>(&mut self) -> Option<&mut [E]> {
        E::view_mut(self)
    }

    /// Every element as float64, exactly; empty for a tensor on a GPU.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::F64(values) => values.to_vec(),
            Data::F32(values) => values.iter().map(|x| f64::from(*x)).collect(),
            Data::Bf16(values) => values.iter().map(|x| x.to_f64()).collect(),
            Data::F16(values) => values.iter().map(|x| x.to_f64()).collect(),
            Data::I32(values) => values.iter().map(|x| f64::from(*x)).collect(),
            Data::E4m3(values) => values.iter().map(|x| f64::from(x.to_f32())).collect(),
            Data::U4(values) => values.iter().flat_map(|pair| pair.both().map(f64::from)).collect(),
            Data::I8(values) => values.iter().map(|x| f64::from(*x)).collect(),
            Data::U8(values) => values.iter().map(|x| f64::from(*x)).collect(),
            Data::Gpu(_) => Vec::new(),
        }
    }

    /// Converts a host tensor to another type: floating-point types round to nearest even, integers truncate and saturate.
    pub fn cast(&self, dtype: DType) -> Self {
        let values = self.to_f64();
        let shape = &self.shape;
        match dtype {
            DType::F64 => Self::new(shape, values),
            DType::F32 => Self::new(shape, values.iter().map(|x| *x as f32).collect::<Vec<_>>()),
            DType::Bf16 => {
                Self::new(shape, values.iter().map(|x| bf16::from_f64(*x)).collect::<Vec<_>>())
            }
            DType::F16 => {
                Self::new(shape, values.iter().map(|x| f16::from_f64(*x)).collect::<Vec<_>>())
            }
            DType::I32 => Self::new(shape, values.iter().map(|x| *x as i32).collect::<Vec<_>>()),
            DType::E4m3 => {
                let rounded = values.iter().map(|x| E4m3::from_f32(*x as f32));
                Self::new(shape, rounded.collect::<Vec<_>>())
            }
            DType::U4 => {
                let pairs = values.as_chunks().0.iter();
                let pairs = pairs.map(|pair: &[f64; 2]| U4Pair::new(pair.map(|x| x as u8)));
                Self::new(shape, pairs.collect::<Vec<_>>())
            }
            DType::I8 => Self::new(shape, values.iter().map(|x| *x as i8).collect::<Vec<_>>()),
            DType::U8 => Self::new(shape, values.iter().map(|x| *x as u8).collect::<Vec<_>>()),
        }
    }

    /// Index of the first NaN, if any.
    pub fn first_nan(&self) -> Option<usize> {
        match &self.data {
            Data::F64(values) => first(values, |x| x.is_nan()),
            Data::F32(values) => first(values, |x| x.is_nan()),
            Data::Bf16(values) => first(values, |x| x.is_nan()),
            Data::F16(values) => first(values, |x| x.is_nan()),
            Data::E4m3(values) => first(values, |x| x.is_nan()),
            Data::I32(_) | Data::U4(_) | Data::I8(_) | Data::U8(_) | Data::Gpu(_) => None,
        }
    }
}

/// Elements that one thread searches at a time.
const RUN: usize = 1 << 20;

/// Elements tested per branch.
const GROUP: usize = 1 << 10;

/// Index of the first element for which `is` holds, searched on all cores.
fn first<T: Sync>(values: &[T], is: impl Fn(&T) -> bool + Sync) -> Option<usize> {
    // One branch per group instead of per element, so that the compiler vectorizes.
    let any = |group: &&[T]| group.iter().fold(false, |any, value| any | is(value));
    let in_run = |(run, values): (usize, &[T])| {
        let group = values.chunks(GROUP).position(|group| any(&group))?;
        let place = values[group * GROUP..].iter().position(&is)?;
        Some(run * RUN + group * GROUP + place)
    };
    values.par_chunks(RUN).enumerate().find_map_first(in_run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poison_is_nan_everywhere_and_casts_round_to_nearest() {
        for dtype in [DType::F64, DType::F32, DType::Bf16, DType::F16] {
            assert!(
                Tensor::poisoned(&[2, 3], dtype).to_f64().iter().all(|x| x.is_nan()),
                "{dtype}"
            );
        }
        let exact = Tensor::new(&[3], vec![1.0f64, 1.00390625, -2.5]);
        assert_eq!(exact.cast(DType::Bf16).to_f64(), [1.0, 1.0, -2.5]);
        assert_eq!(exact.cast(DType::F16).to_f64(), [1.0, 1.00390625, -2.5]);
        assert_eq!(exact.first_nan(), None);
        assert_eq!(Tensor::new(&[2], vec![0f32, f32::NAN]).first_nan(), Some(1));
    }
}
