//! float8 E4M3, a storage type of weights.

use half::bf16;

/// An 8-bit floating-point number: sign, 4 bits of exponent (bias 7), 3 bits of mantissa. It has no infinities; all ones is NaN.
/// The largest value is 448, the smallest positive one 2^-9. It is `float8_e4m3fn` in torch and `F8_E4M3` in safetensors, as in
/// the OCP 8-bit floating point specification, revision 1.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct E4m3(u8);

/// Every number, by its bits.
const VALUES: [f32; 256] = {
    let mut values = [0f32; 256];
    let mut bits = 0;
    while bits < 256 {
        let (exponent, mantissa) = (bits as u32 >> 3 & 15, bits as u32 & 7);
        // Subnormals, below 2^-6, have a fixed exponent.
        let magnitude = match exponent {
            0 => mantissa as f32 * POWERS_OF_TWO[0] / 8.0,
            _ => (8 + mantissa) as f32 * POWERS_OF_TWO[exponent as usize - 1] / 8.0,
        };
        let magnitude = if bits & 0x7f == 0x7f { f32::NAN } else { magnitude };
        values[bits] = if bits & 0x80 != 0 { -magnitude } else { magnitude };
        bits += 1;
    }
    values
};

/// 2^-6, 2^-5 and so on.
const POWERS_OF_TWO: [f32; 15] = {
    let mut powers = [1.0 / 64.0; 15];
    let mut at = 1;
    while at < 15 {
        powers[at] = powers[at - 1] * 2.0;
        at += 1;
    }
    powers
};

impl E4m3 {
    /// The largest number.
    pub const MAX: f32 = 448.0;
    /// NaN.
    pub const NAN: Self = Self(0x7f);

    /// The number of these bits.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Its bits.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Whether it is NaN.
    pub const fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }

    /// Its value, exactly.
    pub const fn to_f32(self) -> f32 {
        VALUES[self.0 as usize]
    }

    /// Its value, exactly: bfloat16 has four more bits of mantissa and of exponent.
    pub fn to_bf16(self) -> bf16 {
        bf16::from_bits((self.to_f32().to_bits() >> 16) as u16)
    }

    /// Rounds to nearest even; magnitudes above 448 saturate.
    pub fn from_f32(x: f32) -> Self {
        let sign = (x.to_bits() >> 24 & 0x80) as u8;
        let magnitude = x.abs();
        if x.is_nan() {
            return Self(Self::NAN.0 | sign);
        }
        if magnitude >= Self::MAX {
            return Self(0x7e | sign);
        }
        if magnitude < POWERS_OF_TWO[0] {
            // Steps of 2^-9; eight of them are the smallest number with an exponent, whose bits follow.
            return Self((magnitude * 512.0).round_ties_even() as u8 | sign);
        }
        // Twenty of the 23 bits of mantissa go, to nearest even; a carry raises the exponent, as it should.
        let bits = magnitude.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        Self(((rounded >> 20) - ((127 - 7) << 3)) as u8 | sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From the definition: `(-1)^s 2^(e - 7) (1 + m / 8)`, and `2^-6 m / 8` where e is 0.
    fn defined(bits: u8) -> f64 {
        let (sign, e, m) = (bits >> 7, i32::from(bits >> 3 & 15), f64::from(bits & 7));
        let magnitude = match (e, bits & 7) {
            (15, 7) => f64::NAN,
            (0, _) => 2f64.powi(-6) * m / 8.0,
            _ => 2f64.powi(e - 7) * (1.0 + m / 8.0),
        };
        if sign == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn every_value_matches_the_definition_and_round_trips() {
        for bits in 0..=u8::MAX {
            let number = E4m3::from_bits(bits);
            let (value, wanted) = (number.to_f32(), defined(bits) as f32);
            assert_eq!(number.is_nan(), wanted.is_nan(), "{bits:#x}");
            if !wanted.is_nan() {
                assert_eq!(value.to_bits(), wanted.to_bits(), "{bits:#x}");
                assert_eq!(number.to_bf16().to_f32().to_bits(), wanted.to_bits(), "{bits:#x}");
            } else {
                assert!(value.is_nan() && number.to_bf16().is_nan(), "{bits:#x}");
            }
            assert_eq!(E4m3::from_f32(value), number, "{bits:#x}");
        }
    }

    #[test]
    fn rounds_to_nearest_even() {
        for bits in 0..0x7e {
            let [low, high] = [bits, bits + 1].map(E4m3::from_bits);
            let middle = (low.to_f32() + high.to_f32()) / 2.0;
            let even = if bits % 2 == 0 { low } else { high };
            for (x, wanted) in [(middle.next_down(), low), (middle, even), (middle.next_up(), high)]
            {
                assert_eq!(E4m3::from_f32(x), wanted, "{x}");
                assert_eq!(E4m3::from_f32(-x).to_bits(), wanted.to_bits() | 0x80, "-{x}");
            }
        }
        for large in [448.0, 465.0, 1e30, f32::INFINITY] {
            assert_eq!(E4m3::from_f32(large).to_f32(), 448.0);
            assert_eq!(E4m3::from_f32(-large).to_f32(), -448.0);
        }
        assert!(E4m3::from_f32(f32::NAN).is_nan());
    }
}
