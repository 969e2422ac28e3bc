//! Compares dequantized blocks of all types with gguf-py's, by hashes.

use super::*;
use crate::packers::written;
use crate::random::mix;

const COUNT: usize = 10_000;

/// Zeros, infinities, NaN, subnormal numbers and the smallest normal one, in float16.
const SPECIAL: [u16; 8] = [0, 0x8000, 0x7c00, 0xfc00, 0x7e00, 1, 0x83ff, 0x400];

/// Hashes of the values that gguf-py 0.19 dequantizes from [`blocks`], as `hashes.py` writes them.
const HASHES: &str = "\
Q8_0 9103d96e5fb32de8
Q4_0 3a03a44fa5dc9aab
Q4_1 f8062e7219999048
Q5_0 169a8fbcf42a0941
Q5_1 9338929cc30996d6
Q2_K 7a8cf52df59ac988
Q3_K 513c6c7401f77a60
Q4_K ed4c8433152518a4
Q5_K f94e80d043bea168
Q6_K d483449c829a77c2
IQ4_NL d57f50519ddb141a
IQ4_XS 91739c22d683a1df
MXFP4 82a748c7d748fe88
NVFP4 e6a4b43e24f736fb
";

/// Random blocks; each eighth has special scales and offsets.
fn blocks(block: &GgmlType) -> Vec<u8> {
    let halves = match block.scales {
        BlockScales::Half(at) => vec![at],
        BlockScales::HalfAndMinimum(both) | BlockScales::SixBits { factors: both, .. } => {
            both.to_vec()
        }
        BlockScales::Integers { factor, minimum, .. } => {
            [factor].into_iter().chain(minimum).collect()
        }
        BlockScales::PowerOfTwo(_) | BlockScales::E4m3 { .. } => Vec::new(),
    };
    let size = block.bytes();
    let words = (COUNT * size).div_ceil(8) as u64;
    let mut all: Vec<u8> = (0..words).flat_map(|word| mix(word).to_le_bytes()).collect();
    all.truncate(COUNT * size);
    for (turn, bytes) in all.chunks_exact_mut(size).step_by(8).enumerate() {
        for (nth, at) in halves.iter().enumerate() {
            bytes[*at..at + 2].copy_from_slice(&SPECIAL[(turn + nth) % 8].to_le_bytes());
        }
    }
    all
}

fn hash(block: &GgmlType) -> u64 {
    let mut of_block = [0f32; LARGEST];
    let (mut hash, mut at) = (0u64, 0u64);
    for bytes in blocks(block).chunks_exact(block.bytes()) {
        values(block, bytes, &mut of_block[..block.values()]);
        for value in &of_block[..block.values()] {
            let bits = if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() };
            hash = hash.wrapping_add(mix(at << 32 | u64::from(bits)));
            at += 1;
        }
    }
    hash
}

#[test]
fn blocks_of_all_types_dequantize_to_gguf_py_values() {
    let hashes = GgmlType::ALL.iter().map(|of| format!("{} {:016x}\n", of.name(), hash(of)));
    let (mut got, mut want): (Vec<_>, Vec<_>) =
        (hashes.collect(), HASHES.split_inclusive('\n').map(str::to_owned).collect());
    got.sort_unstable();
    want.sort_unstable();
    assert_eq!(got, want);
}

/// Needs gguf-py, which `cargo xtask test` installs; otherwise the test says that it was skipped.
#[test]
fn stored_hashes_are_those_of_gguf_py() {
    let Some(folder) = written(include_str!("hashes.py")) else { return };
    assert_eq!(std::fs::read_to_string(folder.path().join("hashes.txt")).unwrap(), HASHES);
}
