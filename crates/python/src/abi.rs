//! The records of the C interface. `_library.py` packs the same layouts by `struct`.

use ops::DType;
use std::ops::Range;

/// Maximum number of dimensions of a tensor.
pub const RANK: usize = 6;

/// The caller's tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawTensor {
    /// Address of the first element. The tensor is absent if `dtype` is 0.
    pub data: u64,
    /// 1 to 8: float64, float32, bfloat16, float16, int32, float8 (e4m3), int8, uint8. Weights in uint8 are packed pairs of
    /// int4.
    pub dtype: i32,
    /// Dimensions in use.
    pub rank: i32,
    /// Sizes, slowest dimension first.
    pub sizes: [i64; RANK],
    /// Strides in elements.
    pub strides: [i64; RANK],
    /// For int32 on a GPU the largest value; for sequence offsets (`cu_seqlens`) the longest sequence.
    pub bound: i64,
    /// For sequence offsets on a GPU the last one, which is the number of tokens.
    pub total: i64,
    /// For int32 on a GPU the address of a copy in host memory, if the caller has one; otherwise 0.
    pub host: u64,
}

impl RawTensor {
    /// The byte range of its elements; `None` without elements.
    pub(crate) fn extent(&self) -> Option<Range<i64>> {
        let bytes = match self.dtype {
            1 => 8,
            2 | 5 => 4,
            3 | 4 => 2,
            6..=8 => 1,
            _ => return None,
        };
        let (mut low, mut high) = (0, 1);
        let rank = usize::try_from(self.rank).ok()?.min(RANK);
        for (size, stride) in self.sizes[..rank].iter().zip(&self.strides[..rank]) {
            let last = size.checked_sub(1).filter(|last| *last >= 0)?.saturating_mul(*stride);
            low = i64::saturating_add(low, last.min(0));
            high = i64::saturating_add(high, last.max(0));
        }
        let start = self.data as i64;
        let at = |elements: i64| start.saturating_add(elements.saturating_mul(bytes));
        Some(at(low)..at(high))
    }
}

/// The caller's memory on a GPU; absent if `bytes` is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct RawMemory {
    /// The start address.
    pub address: u64,
    /// The size.
    pub bytes: u64,
}

/// The device and stream of a call, and its scratch memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawPlace {
    /// The GPU's ordinal, or -1 for the CPU.
    pub device: i32,
    /// Unused.
    pub pad: i32,
    /// The driver's handle of the stream; 0 is the legacy default stream.
    pub stream: u64,
    /// Allocates scratch memory on that GPU: takes the size in bytes and whether the memory must be zeroed, and returns an
    /// address, or 0 on failure. The memory must stay valid until the call has returned and its work in the stream has
    /// completed. Kernels restore zeroed memory to zeros.
    pub memory: Option<unsafe extern "C" fn(u64, i32) -> u64>,
    /// Scratch memory that the caller reuses for calls on this stream outside of CUDA graphs: one uninitialized buffer and
    /// one of zeros, which the kernels restore to zeros. If a buffer is too small, `memory` is called.
    pub kept: [RawMemory; 2],
}

const TYPES: [DType; 8] = [
    DType::F64,
    DType::F32,
    DType::Bf16,
    DType::F16,
    DType::I32,
    DType::E4m3,
    DType::I8,
    DType::U8,
];

/// Weights whose uint8 elements are packed pairs of int4.
const PAIRED: [&str; 3] = ["w", "w_gate_up", "w_down"];

/// Type, sizes and strides of a tensor, in elements of its type.
pub(crate) struct Layout {
    pub(crate) dtype: DType,
    sizes: [usize; RANK],
    strides: [usize; RANK],
    rank: usize,
}

impl Layout {
    /// Sizes, slowest dimension first.
    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes[..self.rank]
    }

    /// Strides in elements.
    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }
}

/// The type of a type code.
fn dtype(number: i32) -> Option<DType> {
    TYPES.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
}

/// The code of a type; 0 for a type that records do not have.
pub(crate) fn number(dtype: DType) -> i32 {
    TYPES.iter().zip(1..).find(|(one, _)| **one == dtype).map_or(0, |(_, number)| number)
}

impl RawTensor {
    /// An absent tensor.
    pub const ABSENT: Self = Self {
        data: 0,
        dtype: 0,
        rank: 0,
        sizes: [0; RANK],
        strides: [0; RANK],
        bound: 0,
        total: 0,
        host: 0,
    };

    /// The type, sizes and strides of a tensor of the op's table; `None` if it is absent.
    ///
    /// A uint8 byte of weights is two adjacent int4 values of a row, so the last dimension and the other strides double.
    ///
    /// # Errors
    /// Sizes or strides that are negative, more than [`RANK`] dimensions, or int4 weights whose bytes are not contiguous in a
    /// row.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Layout>, String> {
        let Some(dtype) = dtype(self.dtype) else { return Ok(None) };
        let (mut sizes, mut strides, rank) = self.layout()?;
        if dtype != DType::U8 || !PAIRED.contains(&name) {
            return Ok(Some(Layout { dtype, sizes, strides, rank }));
        }
        let Some(last) = rank.checked_sub(1) else {
            return Err("a scalar of two int4 values".to_owned());
        };
        if sizes[last] > 1 && strides[last] != 1 {
            return Err(format!("bytes of int4 values {} apart", strides[last]));
        }
        (sizes[last], strides[last]) = (2 * sizes[last], 1);
        strides[..last].iter_mut().for_each(|stride| *stride *= 2);
        Ok(Some(Layout { dtype: DType::U4, sizes, strides, rank }))
    }

    fn layout(&self) -> Result<([usize; RANK], [usize; RANK], usize), String> {
        let (mut sizes, mut strides) = ([0; RANK], [0; RANK]);
        let rank = usize::try_from(self.rank).ok().filter(|rank| *rank <= RANK);
        let rank = rank.ok_or_else(|| format!("{} dimensions, at most {RANK}", self.rank))?;
        for at in 0..rank {
            let positive = |value: i64| usize::try_from(value).ok();
            let (Some(size), Some(stride)) = (positive(self.sizes[at]), positive(self.strides[at]))
            else {
                let (size, stride) = (self.sizes[at], self.strides[at]);
                return Err(format!("a dimension of {size} elements {stride} apart"));
            };
            (sizes[at], strides[at]) = (size, stride);
        }
        Ok((sizes, strides, rank))
    }
}
