//! Values as a GGUF file stores them.

use half::f16;

/// A type; float types are exact.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    F32,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
    Nvfp4,
}

impl Kind {
    /// The block formats.
    pub(crate) const BLOCKS: [Self; 14] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Iq4Nl,
        Self::Mxfp4,
        Self::Nvfp4,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Xs,
    ];

    /// Its number, and the values and bytes of a block.
    pub(crate) fn sizes(self) -> (u32, usize, usize) {
        match self {
            Self::F32 => (0, 1, 4),
            Self::Q8_0 => (8, 32, 34),
            Self::Q4_0 => (2, 32, 18),
            Self::Q4_1 => (3, 32, 20),
            Self::Q5_0 => (6, 32, 22),
            Self::Q5_1 => (7, 32, 24),
            Self::Q2K => (10, 256, 84),
            Self::Q3K => (11, 256, 110),
            Self::Q4K => (12, 256, 144),
            Self::Q5K => (13, 256, 176),
            Self::Q6K => (14, 256, 210),
            Self::Iq4Nl => (20, 32, 18),
            Self::Iq4Xs => (23, 256, 136),
            Self::Mxfp4 => (39, 32, 17),
            Self::Nvfp4 => (40, 64, 36),
        }
    }
}

/// Stored values. K-quant blocks and newer types only have the values' magnitude: their integers are derived from the
/// values as random bits.
pub(super) fn stored(kind: Kind, values: &[f32]) -> Vec<u8> {
    let (_, size, bytes) = kind.sizes();
    if kind == Kind::F32 {
        return values.iter().flat_map(|value| value.to_le_bytes()).collect();
    }
    let block = |block: &[f32]| {
        let most = block.iter().fold(0f32, |most, value| most.max(value.abs()));
        let half = |scale: f32| f16::from_f32(scale).to_le_bytes();
        let mut out = vec![0u8; bytes];
        match kind {
            Kind::Q8_0 => {
                let scale = most / 127.0;
                out[..2].copy_from_slice(&half(scale));
                for (out, value) in out[2..].iter_mut().zip(block) {
                    *out = ((value / scale).round() as i8).cast_unsigned();
                }
            }
            Kind::Q4_0 => {
                let scale = most / 7.0;
                out[..2].copy_from_slice(&half(scale));
                let number = |value: f32| ((value / scale).round() as i32 + 8).clamp(0, 15) as u8;
                for at in 0..16 {
                    out[2 + at] = number(block[at]) | number(block[at + 16]) << 4;
                }
            }
            Kind::Q4_1 => {
                let least = block.iter().copied().fold(0f32, f32::min);
                let scale = (block.iter().copied().fold(0f32, f32::max) - least) / 15.0;
                out[..2].copy_from_slice(&half(scale));
                out[2..4].copy_from_slice(&half(least));
                let number = |value: f32| ((value - least) / scale).round().clamp(0.0, 15.0) as u8;
                for at in 0..16 {
                    out[4 + at] = number(block[at]) | number(block[at + 16]) << 4;
                }
            }
            Kind::Q5_0 => {
                let scale = most / 15.0;
                out[..2].copy_from_slice(&half(scale));
                let number = |value: f32| ((value / scale).round() as i32 + 16).clamp(0, 31) as u8;
                for at in 0..32 {
                    out[2 + at / 8] |= (number(block[at]) >> 4) << (at % 8);
                }
                for at in 0..16 {
                    out[6 + at] = number(block[at]) & 15 | (number(block[at + 16]) & 15) << 4;
                }
            }
            Kind::Mxfp4 => {
                let exponent = (most / 6.0).log2().ceil() as i32;
                out[0] = (exponent + 127) as u8;
                let numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
                let number = |value: f32| {
                    let off = |at: &u8| {
                        (numbers[usize::from(*at)] - value.abs() / 2f32.powi(exponent)).abs()
                    };
                    let at = (0..8).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap();
                    if value < 0.0 { at | 8 } else { at }
                };
                for at in 0..16 {
                    out[1 + at] = number(block[at]) | number(block[at + 16]) << 4;
                }
            }
            _ => {
                for (at, out) in out.iter_mut().enumerate() {
                    *out = block[at % size].to_bits().wrapping_mul(2_654_435_761).to_be_bytes()[0];
                }
                // The magnitude of the values, whatever the scales of groups.
                match kind {
                    Kind::Q6K => out[208..].copy_from_slice(&half(most / 32.0 / 128.0)),
                    Kind::Q3K => out[108..].copy_from_slice(&half(most / 4.0 / 32.0)),
                    Kind::Iq4Nl => out[..2].copy_from_slice(&half(most / 128.0)),
                    Kind::Iq4Xs => out[..2].copy_from_slice(&half(most / 128.0 / 32.0)),
                    Kind::Q5_1 => {
                        out[..2].copy_from_slice(&half(2.0 * most / 32.0));
                        out[2..4].copy_from_slice(&half(-most));
                    }
                    Kind::Q2K => {
                        out[80..82].copy_from_slice(&half(2.0 * most / 16.0 / 3.0));
                        out[82..].copy_from_slice(&half(most / 16.0));
                    }
                    // Subnormal scales of E4M3 are multiples of 2^-9.
                    Kind::Nvfp4 => out[..4].fill((most / 6.0 * 512.0).ceil().min(8.0) as u8),
                    _ => {
                        let numbers = if kind == Kind::Q4K { 16.0 } else { 32.0 };
                        out[..2].copy_from_slice(&half(2.0 * most / 64.0 / numbers));
                        out[2..4].copy_from_slice(&half(most / 64.0));
                    }
                }
            }
        }
        out
    };
    values.chunks(size).flat_map(block).collect()
}
