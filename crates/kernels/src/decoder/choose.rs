//! The token of the largest logit. The contract stands in `choose.cu`.

use super::{holds, int, launch};
use crate::OpError;
use crate::cuda::Planned;
use device::Device;
use device::cuda::{Args, Buffer, GpuArch, KernelSource, Launch};
use std::sync::Arc;

const PARTS: &[&str] = &[include_str!("../cuda/order.cuh"), include_str!("choose.cu")];

/// Logits of a row that a block looks through.
const SHARE: usize = 4096;

pub(super) fn source(arch: GpuArch) -> KernelSource {
    KernelSource::new("decoder_choose", PARTS, arch)
}

/// Plans the choice of the largest logit of each row of `[rows, vocabulary]` f32 into `[rows]` u64, which must be 0 when
/// it runs; [`chosen_token`] reads it.
///
/// # Errors
/// [`OpError::Cuda`] when a buffer is too short, or the kernel cannot be had.
pub fn choose(
    device: &Device,
    [logits, chosen]: [&Arc<Buffer>; 2],
    [rows, vocabulary]: [usize; 2],
) -> Result<Planned, OpError> {
    holds("logits", logits, 4 * rows * vocabulary)?;
    holds("chosen", chosen, 8 * rows)?;
    let args = Args::new().buffer(logits).buffer(chosen).i32(int(vocabulary)?);
    let shape = Launch::new([vocabulary.div_ceil(SHARE) as u32, rows as u32, 1], 256, 0);
    launch(device, source, (shape, args), &[logits, chosen])
}

/// The token of a choice, by the lower half of what [`choose`] wrote down.
pub fn chosen_token(low: i32) -> u32 {
    !low.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::chosen_token;

    /// What the kernel makes of a logit.
    fn word(logit: f32, token: u32) -> u64 {
        let bits = logit.to_bits();
        let key = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
        u64::from(key) << 32 | u64::from(!token)
    }

    fn token(word: u64) -> u32 {
        chosen_token((word as u32).cast_signed())
    }

    #[test]
    fn the_largest_word_is_the_largest_logit_and_the_lowest_of_equal_tokens() {
        let logits = [-1.0f32, -0.5, 3.0, f32::MIN, 3.0, 0.0];
        let words = logits.iter().zip(0..).map(|(logit, token)| word(*logit, token));
        assert_eq!(words.max().map(token), Some(2));
        let below = [-2.0f32, -1.0, -1.5].into_iter().zip(0..);
        assert_eq!(below.map(|(x, i)| word(x, i)).max().map(token), Some(1));
    }
}
