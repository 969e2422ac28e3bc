//! Quantization types of GGUF files, dequantized to the float32 values of ggml's `dequantize_row_*` and gguf-py, bit
//! for bit.

use crate::mxfp4::{self, TWICE};
use architectures::GgmlType;
use half::{bf16, f16};

/// A quantization type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Blocks(GgmlType),
}

/// ggml's names of its types, by number.
const NAMES: [&str; 42] = [
    "F32",
    "F16",
    "Q4_0",
    "Q4_1",
    "Q4_2",
    "Q4_3",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "I8",
    "I16",
    "I32",
    "I64",
    "F64",
    "IQ1_M",
    "BF16",
    "Q4_0_4_4",
    "Q4_0_4_8",
    "Q4_0_8_8",
    "TQ1_0",
    "TQ2_0",
    "IQ4_NL_4_4",
    "IQ4_NL_4_8",
    "IQ4_NL_8_8",
    "MXFP4",
    "NVFP4",
    "Q1_0",
];

impl Kind {
    /// The supported types, for messages.
    pub(crate) const READ: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K, Q6_K and MXFP4";

    /// The type of a number; otherwise the name of the unsupported type.
    pub(crate) fn of(number: u32) -> Result<Self, String> {
        let name = NAMES.get(number as usize).copied();
        let blocks = || GgmlType::ALL.into_iter().find(|block| Some(block.name()) == name);
        match name {
            Some("F32") => Ok(Self::F32),
            Some("F16") => Ok(Self::F16),
            Some("BF16") => Ok(Self::Bf16),
            name => blocks().map(Self::Blocks).ok_or_else(|| {
                name.map_or_else(|| format!("of type {number}"), |name| format!("in {name}"))
            }),
        }
    }

    /// Values per block; 1 for types without blocks.
    pub(crate) fn values(self) -> usize {
        match self {
            Self::Blocks(block) => block.values(),
            _ => 1,
        }
    }

    /// Bytes per block.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Blocks(block) => block.bytes(),
        }
    }
}

/// Maximum values per block.
pub(crate) const LARGEST: usize = 256;

/// The float16 at an offset.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The integers of a block, as engines store them: relative to the middle of the range for 4 and 6 bits, unchanged for
/// 5 and 8 bits, doubled for MXFP4.
pub(crate) fn numbers(block: GgmlType, bytes: &[u8], into: &mut [i8]) {
    match block {
        GgmlType::Q8_0 => {
            into.iter_mut().zip(&bytes[2..]).for_each(|(into, byte)| *into = byte.cast_signed());
        }
        GgmlType::Q4_0 => {
            let (low, high) = into.split_at_mut(16);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&bytes[2..]) {
                *low = (byte & 15) as i8 - 8;
                *high = (byte >> 4) as i8 - 8;
            }
        }
        GgmlType::Mxfp4 => {
            let (low, high) = into.split_at_mut(16);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(&bytes[1..]) {
                *low = TWICE[usize::from(byte & 15)];
                *high = TWICE[usize::from(byte >> 4)];
            }
        }
        GgmlType::Q4K => nibbles(&bytes[16..], into, |number, _| number as i8 - 8),
        GgmlType::Q5K => nibbles(&bytes[48..], into, |number, at| {
            (number | (bytes[16 + at % 32] >> (at / 32) & 1) << 4) as i8
        }),
        GgmlType::Q6K => {
            for (at, into) in into.iter_mut().enumerate() {
                let (half, inside) = (at / 128, at % 128);
                let low = bytes[64 * half + inside % 64] >> (inside / 64 * 4) & 15;
                let high = bytes[128 + 32 * half + inside % 32] >> (inside / 32 * 2) & 3;
                *into = (low | high << 4) as i8 - 32;
            }
        }
    }
}

/// Iterates over the low 4 bits of a K-quant block: the first half of 64 consecutive values is in the low nibbles of 32
/// bytes.
fn nibbles(bytes: &[u8], into: &mut [i8], number: impl Fn(u8, usize) -> i8) {
    for (at, into) in into.iter_mut().enumerate() {
        *into = number(bytes[at / 64 * 32 + at % 32] >> (at / 32 % 2 * 4) & 15, at);
    }
}

/// The scale and the offset of each group of a block, `d sc` and `dmin m`; an offset of 0 for types without one, which
/// changes no value.
pub(crate) fn scales_and_zeros(
    block: GgmlType,
    bytes: &[u8],
    mut give: impl FnMut(usize, [f32; 2]),
) {
    match block {
        GgmlType::Q8_0 | GgmlType::Q4_0 => give(0, [half(bytes, 0), 0.0]),
        GgmlType::Mxfp4 => give(0, [mxfp4::scale(bytes[0]), 0.0]),
        GgmlType::Q4K | GgmlType::Q5K => {
            let (d, least, packed) = (half(bytes, 0), half(bytes, 2), &bytes[4..16]);
            for group in 0..8 {
                // 6 bits each; the upper two bits of the last four groups are stored above the first four.
                let [scale, min] = match group {
                    0..4 => [packed[group] & 63, packed[group + 4] & 63],
                    _ => [
                        packed[group + 4] & 15 | packed[group - 4] >> 6 << 4,
                        packed[group + 4] >> 4 | packed[group] >> 6 << 4,
                    ],
                };
                give(group, [d * f32::from(scale), least * f32::from(min)]);
            }
        }
        GgmlType::Q6K => {
            let d = half(bytes, 208);
            for group in 0..16 {
                give(group, [d * f32::from(bytes[192 + group].cast_signed()), 0.0]);
            }
        }
    }
}

/// The dequantized values of a block.
pub(crate) fn values(block: GgmlType, bytes: &[u8], into: &mut [f32]) {
    let mut all = [0i8; LARGEST];
    numbers(block, bytes, &mut all[..block.values()]);
    let middle = if block == GgmlType::Q4K { 8.0 } else { 0.0 };
    let group = block.int().group.unwrap_or(block.values());
    scales_and_zeros(block, bytes, |nth, [scale, least]| {
        let range = nth * group..(nth + 1) * group;
        for (into, number) in into[range.clone()].iter_mut().zip(&all[range]) {
            *into = scale * (f32::from(*number) + middle) - least;
        }
    });
}

/// Values of types without blocks.
pub(crate) fn plain(kind: Kind, bytes: &[u8], into: &mut [f32]) {
    match kind {
        Kind::F32 => each(bytes, into, f32::from_le_bytes),
        Kind::F16 => each(bytes, into, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Kind::Bf16 => each(bytes, into, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        Kind::Blocks(_) => {}
    }
}

fn each<const SIZE: usize>(bytes: &[u8], into: &mut [f32], of: impl Fn([u8; SIZE]) -> f32) {
    for (into, bytes) in into.iter_mut().zip(bytes.as_chunks::<SIZE>().0) {
        *into = of(*bytes);
    }
}
