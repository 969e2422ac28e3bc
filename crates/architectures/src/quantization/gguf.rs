//! Weights in GGUF blocks. The config is derived from the file's header: `{"quant_method": "gguf", "types": {NAME:
//! TYPE}}`.

use super::{GroupQuantization, Kind, Packing};
use crate::{Config, ConfigError};
use std::collections::BTreeMap;

/// A block format as ggml's `ggml-quants.c` defines it: a value is `scale (q - zero) - offset` of an integer q. Readers,
/// engines and tests take everything from this description.
#[derive(Debug, PartialEq, Eq)]
pub struct GgmlType {
    name: &'static str,
    values: usize,
    /// The bits of the integers, low ones first.
    pub planes: &'static [BitPlane],
    /// The meaning of these bits.
    pub code: IntegerCode,
    /// The scales and offsets.
    pub scales: BlockScales,
}

/// Some bits of every integer of a block. A byte has the bits of `8 / bits` integers that are `stride` apart, and
/// consecutive integers are in consecutive bytes, `stride` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitPlane {
    /// First byte in the block.
    pub offset: usize,
    /// Bits per integer.
    pub bits: usize,
    /// Distance of the integers in a byte.
    pub stride: usize,
}

/// The meaning of an integer's bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IntegerCode {
    /// An unsigned integer, and the one that represents 0.
    Unsigned {
        /// Subtracted from the integer.
        zero: u8,
    },
    /// A signed integer of 8 bits.
    Signed,
    /// A float of 4 bits, E2M1.
    E2m1,
    /// An index of 4 bits into a codebook.
    Table(&'static [i8; 16]),
}

/// The location of a block's scales and offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockScales {
    /// A float16 scale at this byte.
    Half(usize),
    /// A float16 scale and a float16 offset with the opposite sign.
    HalfAndMinimum([usize; 2]),
    /// A power of two (E8M0).
    PowerOfTwo(usize),
    /// For each 32 values a scale and an offset of 6 bits, together 12 bytes at `packed`, times a float16 each.
    SixBits {
        /// The bytes of the float16 factors of scales and offsets.
        factors: [usize; 2],
        /// The integers.
        packed: usize,
    },
    /// For each group an integer scale, times a float16.
    Integers {
        /// Values per group.
        group: usize,
        /// The float16 of the scales.
        factor: usize,
        /// The float16 of offsets, whose integers follow those of all scales.
        minimum: Option<usize>,
        /// The bits of the integers, low ones first.
        planes: &'static [BitPlane],
        /// Subtracted from the integers; `None` if they are signed.
        zero: Option<u8>,
    },
    /// For each group a float of 8 bits without a sign (E4M3), of which 0x7f is 0. Scales are half of it, because E2M1
    /// values are doubled.
    E4m3 {
        /// Values per group.
        group: usize,
        /// The floats.
        scales: usize,
    },
}

/// The codebook of 4-bit non-linear quantization (IQ4).
const NON_LINEAR: &[i8; 16] =
    &[-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Declares the block formats and their list.
macro_rules! block_formats {
    ($($(#[$doc:meta])* $name:ident $block:tt)*) => {
        impl GgmlType {
            $($(#[$doc])* pub const $name: &'static Self = &Self $block;)*

            /// All of them.
            pub const ALL: &'static [&'static Self] = &[$(Self::$name),*];
        }
    };
}

block_formats! {
    /// 32 8-bit values: `d q`.
    Q8_0 {
        name: "Q8_0",
        values: 32,
        planes: &[BitPlane { offset: 2, bits: 8, stride: 32 }],
        code: IntegerCode::Signed,
        scales: BlockScales::Half(0),
    }
    /// 32 4-bit values: `d (q - 8)`.
    Q4_0 {
        name: "Q4_0",
        values: 32,
        planes: &[BitPlane { offset: 2, bits: 4, stride: 16 }],
        code: IntegerCode::Unsigned { zero: 8 },
        scales: BlockScales::Half(0),
    }
    /// 32 4-bit values: `d q + m`.
    Q4_1 {
        name: "Q4_1",
        values: 32,
        planes: &[BitPlane { offset: 4, bits: 4, stride: 16 }],
        code: IntegerCode::Unsigned { zero: 0 },
        scales: BlockScales::HalfAndMinimum([0, 2]),
    }
    /// 32 5-bit values: `d (q - 16)`.
    Q5_0 {
        name: "Q5_0",
        values: 32,
        planes: &[
            BitPlane { offset: 6, bits: 4, stride: 16 },
            BitPlane { offset: 2, bits: 1, stride: 1 },
        ],
        code: IntegerCode::Unsigned { zero: 16 },
        scales: BlockScales::Half(0),
    }
    /// 32 5-bit values: `d q + m`.
    Q5_1 {
        name: "Q5_1",
        values: 32,
        planes: &[
            BitPlane { offset: 8, bits: 4, stride: 16 },
            BitPlane { offset: 4, bits: 1, stride: 1 },
        ],
        code: IntegerCode::Unsigned { zero: 0 },
        scales: BlockScales::HalfAndMinimum([0, 2]),
    }
    /// 256 2-bit values in groups of 16: `d sc q - dmin m`.
    Q2_K {
        name: "Q2_K",
        values: 256,
        planes: &[BitPlane { offset: 16, bits: 2, stride: 32 }],
        code: IntegerCode::Unsigned { zero: 0 },
        scales: BlockScales::Integers {
            group: 16,
            factor: 80,
            minimum: Some(82),
            planes: &[BitPlane { offset: 0, bits: 4, stride: 16 }],
            zero: Some(0),
        },
    }
    /// 256 3-bit values in groups of 16: `d (sc - 32) (q - 4)`.
    Q3_K {
        name: "Q3_K",
        values: 256,
        planes: &[
            BitPlane { offset: 32, bits: 2, stride: 32 },
            BitPlane { offset: 0, bits: 1, stride: 32 },
        ],
        code: IntegerCode::Unsigned { zero: 4 },
        scales: BlockScales::Integers {
            group: 16,
            factor: 108,
            minimum: None,
            planes: &[
                BitPlane { offset: 96, bits: 4, stride: 8 },
                BitPlane { offset: 104, bits: 2, stride: 4 },
            ],
            zero: Some(32),
        },
    }
    /// 256 4-bit values in groups of 32: `d sc q - dmin m`.
    Q4_K {
        name: "Q4_K",
        values: 256,
        planes: &[BitPlane { offset: 16, bits: 4, stride: 32 }],
        code: IntegerCode::Unsigned { zero: 0 },
        scales: BlockScales::SixBits { factors: [0, 2], packed: 4 },
    }
    /// 256 5-bit values in groups of 32: `d sc q - dmin m`.
    Q5_K {
        name: "Q5_K",
        values: 256,
        planes: &[
            BitPlane { offset: 48, bits: 4, stride: 32 },
            BitPlane { offset: 16, bits: 1, stride: 32 },
        ],
        code: IntegerCode::Unsigned { zero: 0 },
        scales: BlockScales::SixBits { factors: [0, 2], packed: 4 },
    }
    /// 256 6-bit values in groups of 16: `d sc (q - 32)`.
    Q6_K {
        name: "Q6_K",
        values: 256,
        planes: &[
            BitPlane { offset: 0, bits: 4, stride: 64 },
            BitPlane { offset: 128, bits: 2, stride: 32 },
        ],
        code: IntegerCode::Unsigned { zero: 32 },
        scales: BlockScales::Integers {
            group: 16,
            factor: 208,
            minimum: None,
            planes: &[BitPlane { offset: 192, bits: 8, stride: 16 }],
            zero: None,
        },
    }
    /// 32 4-bit indices into a codebook c: `d c[q]`.
    IQ4_NL {
        name: "IQ4_NL",
        values: 32,
        planes: &[BitPlane { offset: 2, bits: 4, stride: 16 }],
        code: IntegerCode::Table(NON_LINEAR),
        scales: BlockScales::Half(0),
    }
    /// 256 4-bit indices into a codebook c, in groups of 32: `d (sc - 32) c[q]`.
    IQ4_XS {
        name: "IQ4_XS",
        values: 256,
        planes: &[BitPlane { offset: 8, bits: 4, stride: 16 }],
        code: IntegerCode::Table(NON_LINEAR),
        scales: BlockScales::Integers {
            group: 32,
            factor: 0,
            minimum: None,
            planes: &[
                BitPlane { offset: 4, bits: 4, stride: 1 },
                BitPlane { offset: 2, bits: 2, stride: 1 },
            ],
            zero: Some(32),
        },
    }
    /// 32 values of E2M1 with a power-of-two scale.
    MXFP4 {
        name: "MXFP4",
        values: 32,
        planes: &[BitPlane { offset: 1, bits: 4, stride: 16 }],
        code: IntegerCode::E2m1,
        scales: BlockScales::PowerOfTwo(0),
    }
    /// 64 values of E2M1 with a scale of E4M3 per 16.
    NVFP4 {
        name: "NVFP4",
        values: 64,
        planes: &[BitPlane { offset: 4, bits: 4, stride: 8 }],
        code: IntegerCode::E2m1,
        scales: BlockScales::E4m3 { group: 16, scales: 0 },
    }
}

impl GgmlType {
    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Values per block.
    pub fn values(&self) -> usize {
        self.values
    }

    /// Values that share a scale.
    pub fn group(&self) -> usize {
        match self.scales {
            BlockScales::Half(_) | BlockScales::HalfAndMinimum(_) | BlockScales::PowerOfTwo(_) => {
                self.values
            }
            BlockScales::SixBits { .. } => 32,
            BlockScales::Integers { group, .. } | BlockScales::E4m3 { group, .. } => group,
        }
    }

    /// Bits per integer in files.
    fn bits(&self) -> usize {
        self.planes.iter().map(|plane| plane.bits).sum()
    }

    /// Bytes per block.
    pub fn bytes(&self) -> usize {
        let scales = match self.scales {
            BlockScales::Half(_) => 2,
            BlockScales::HalfAndMinimum(_) => 4,
            BlockScales::PowerOfTwo(_) => 1,
            BlockScales::SixBits { .. } => 4 + 12,
            BlockScales::Integers { group, minimum, planes, .. } => {
                let bits: usize = planes.iter().map(|plane| plane.bits).sum();
                (2 + self.values / group * bits / 8) * (1 + usize::from(minimum.is_some()))
            }
            BlockScales::E4m3 { group, .. } => self.values / group,
        };
        self.values * self.bits() / 8 + scales
    }

    /// Whether groups have offsets.
    fn has_offsets(&self) -> bool {
        matches!(
            self.scales,
            BlockScales::HalfAndMinimum(_)
                | BlockScales::SixBits { .. }
                | BlockScales::Integers { minimum: Some(_), .. }
        )
    }

    /// The number that engines subtract from an unsigned integer: its zero, or the middle of the range of 4 bits if
    /// groups have offsets.
    pub fn middle(&self) -> u8 {
        match self.code {
            IntegerCode::Unsigned { .. } if self.has_offsets() && self.bits() <= 4 => 8,
            IntegerCode::Unsigned { zero } => zero,
            IntegerCode::Signed | IntegerCode::E2m1 | IntegerCode::Table(_) => 0,
        }
    }

    /// The number that makes an engine's integer relative to the format's zero when added.
    pub fn above_zero(&self) -> u8 {
        match self.code {
            IntegerCode::Unsigned { zero } => self.middle() - zero,
            IntegerCode::Signed | IntegerCode::E2m1 | IntegerCode::Table(_) => 0,
        }
    }

    /// Whether a scale is a product of two numbers.
    pub(super) fn has_products(&self) -> bool {
        matches!(self.scales, BlockScales::SixBits { .. } | BlockScales::Integers { .. })
    }

    /// The integer format in engines: 4 bits, or 8 for more than 4 and for codebooks. The offset of a group is a zero
    /// point that is not a whole number.
    pub fn int(&'static self) -> GroupQuantization {
        let is_wide = self.bits() > 4 || matches!(self.code, IntegerCode::Table(_));
        GroupQuantization {
            bits: if is_wide { 8 } else { 4 },
            group: Some(self.group()),
            symmetric: !self.has_offsets(),
            act_order: false,
            packing: Packing::Gguf(self),
        }
    }
}

/// The format of each quantized parameter, by its name.
pub(super) fn gguf(part: &Config) -> Result<Kind, ConfigError> {
    let Some(types) = part.part("types")? else {
        return Err(part.missing("types", "the type of each parameter"));
    };
    let mut stored = BTreeMap::new();
    for name in types.keys() {
        let word = types.text(name)?;
        let Some(block) = GgmlType::ALL.iter().find(|block| word == Some(block.name())) else {
            let read: Vec<_> = GgmlType::ALL.iter().map(|block| block.name()).collect();
            return Err(types.wrong(name, format!("{}, the types that are read", read.join(", "))));
        };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        stored.insert(module.to_owned(), block.int().into());
    }
    Ok(Box::new(move |module| stored.get(module).copied()))
}
