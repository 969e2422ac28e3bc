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
    /// float8 E4M3: weights beside scales.
    E4m3,
    /// Integers from 0 to 15, two a byte, the first of them in the low half: weights beside scales.
    U4,
    /// Integers of 8 bits: weights beside scales.
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

    /// Bytes per element; of u4, two of which share one, that one. What several elements take is [`DType::bytes_of`].
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::E4m3 | Self::U4 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Bytes of so many elements side by side.
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
