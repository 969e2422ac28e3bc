//! Quantization types of GGUF files, dequantized to the float32 values of ggml's `dequantize_row_*` and gguf-py, bit
//! for bit.

use crate::mxfp4::{self, TWICE};
use architectures::{BitPlane, BlockScales, GgmlType, IntegerCode};
use half::{bf16, f16};

/// A quantization type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    Blocks(&'static GgmlType),
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
    pub(crate) fn supported() -> String {
        let blocks = GgmlType::ALL.iter().map(|block| block.name());
        let names: Vec<_> = ["F32", "F16", "BF16"].into_iter().chain(blocks).collect();
        names.join(", ")
    }

    /// The type of a number; otherwise the name of the unsupported type.
    pub(crate) fn of(number: u32) -> Result<Self, String> {
        let name = NAMES.get(number as usize).copied();
        let blocks = || GgmlType::ALL.iter().copied().find(|block| Some(block.name()) == name);
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

/// Adds a plane's bits to the integers of a block, above the `low` bits that they have.
fn unpack(plane: BitPlane, low: usize, bytes: &[u8], into: &mut [u8]) {
    let BitPlane { offset, bits, stride } = plane;
    let (mask, per_byte) = (0xffu8 >> (8 - bits), 8 / bits);
    for (chunk, into) in into.chunks_mut(stride * per_byte).enumerate() {
        let bytes = &bytes[offset + chunk * stride..][..stride];
        for (nth, into) in into.chunks_mut(stride).enumerate() {
            for (into, byte) in into.iter_mut().zip(bytes) {
                *into |= (byte >> (nth * bits) & mask) << low;
            }
        }
    }
}

/// The integers of some planes, low bits first; the first of `LARGEST`.
fn unpacked(planes: &[BitPlane], count: usize, bytes: &[u8]) -> [u8; LARGEST] {
    let mut all = [0u8; LARGEST];
    let mut low = 0;
    for plane in planes {
        unpack(*plane, low, bytes, &mut all[..count]);
        low += plane.bits;
    }
    all
}

/// The integers of a block, as engines store them: relative to the middle of the range for 4 bits with offsets and to
/// the format's zero otherwise, doubled for E2M1.
pub(crate) fn numbers(block: &GgmlType, bytes: &[u8], into: &mut [i8]) {
    let all = unpacked(block.planes, block.values(), bytes);
    let each = into.iter_mut().zip(&all);
    match block.code {
        IntegerCode::Signed => each.for_each(|(into, q)| *into = q.cast_signed()),
        IntegerCode::E2m1 => each.for_each(|(into, q)| *into = TWICE[usize::from(*q)]),
        IntegerCode::Table(table) => each.for_each(|(into, q)| *into = table[usize::from(*q)]),
        IntegerCode::Unsigned { .. } => {
            let middle = block.middle();
            each.for_each(|(into, q)| *into = q.wrapping_sub(middle).cast_signed());
        }
    }
}

/// The scale and the offset of each group of a block; an offset of 0 for types without one, which changes no value.
pub(crate) fn scales_and_zeros(
    block: &GgmlType,
    bytes: &[u8],
    mut give: impl FnMut(usize, [f32; 2]),
) {
    match block.scales {
        BlockScales::Half(at) => give(0, [half(bytes, at), 0.0]),
        BlockScales::HalfAndMinimum([d, least]) => give(0, [half(bytes, d), -half(bytes, least)]),
        // ggml has no NaN among these scales.
        BlockScales::PowerOfTwo(at) if bytes[at] == u8::MAX => give(0, [2f32.powi(127), 0.0]),
        BlockScales::PowerOfTwo(at) => give(0, [mxfp4::scale(bytes[at]), 0.0]),
        BlockScales::SixBits { factors: [d, least], packed } => {
            let (d, least, packed) = (half(bytes, d), half(bytes, least), &bytes[packed..][..12]);
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
        BlockScales::Integers { group, factor, minimum, planes, zero } => {
            let count = block.values() / group;
            let all = unpacked(planes, count * (1 + usize::from(minimum.is_some())), bytes);
            let integer = |at: usize| match zero {
                Some(zero) => f32::from(all[at]) - f32::from(zero),
                None => f32::from(all[at].cast_signed()),
            };
            let (d, least) = (half(bytes, factor), minimum.map(|at| half(bytes, at)));
            for group in 0..count {
                let offset = least.map_or(0.0, |least| least * integer(count + group));
                give(group, [d * integer(group), offset]);
            }
        }
        BlockScales::E4m3 { group, scales } => {
            for group in 0..block.values() / group {
                give(group, [half_e4m3(bytes[scales + group]), 0.0]);
            }
        }
    }
}

/// Half of a float of 8 bits without a sign, of which 0x7f is 0.
fn half_e4m3(bits: u8) -> f32 {
    /// Moves the exponent's bias from float32's 127 to 7, and halves.
    const BIAS: f32 = f32::from_bits((127 + 119) << 23);
    match bits {
        0x7f => 0.0,
        _ => f32::from_bits(u32::from(bits & 0x7f) << 20) * BIAS,
    }
}

/// The dequantized values of a block.
pub(crate) fn values(block: &GgmlType, bytes: &[u8], into: &mut [f32]) {
    let mut all = [0i8; LARGEST];
    numbers(block, bytes, &mut all[..block.values()]);
    let (above, group) = (f32::from(block.above_zero()), block.group());
    scales_and_zeros(block, bytes, |nth, [scale, least]| {
        let range = nth * group..(nth + 1) * group;
        for (into, number) in into[range.clone()].iter_mut().zip(&all[range]) {
            *into = scale * (f32::from(*number) + above) - least;
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

#[cfg(test)]
mod tests;
