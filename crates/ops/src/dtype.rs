//! Element types.

/// Element types of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DType {
    /// float64: references only.
    F64,
    /// float32.
    F32,
    /// bfloat16.
    Bf16,
    /// float16.
    F16,
    /// 32-bit integers: sequence offsets and indices.
    I32,
    /// float8 E4M3: weights with scales.
    E4m3,
    /// Unsigned 4-bit integers, two per byte, the first in the low half: weights with scales.
    U4,
    /// Signed 8-bit integers: weights with scales.
    I8,
    /// Integers from 0 to 255: zero points of weights.
    U8,
}

impl DType {
    /// The name used in JSON, tables and settings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::I32 => "i32",
            Self::E4m3 => "e4m3",
            Self::U4 => "u4",
            Self::I8 => "i8",
            Self::U8 => "u8",
        }
    }

    /// Bytes per element; 1 for u4, whose elements share bytes in pairs. For several elements use [`DType::bytes_of`].
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 | Self::U4 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Bytes of `elements` contiguous elements.
    pub fn bytes_of(self, elements: usize) -> usize {
        match self {
            Self::U4 => elements.div_ceil(2),
            _ => elements * self.bytes(),
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
