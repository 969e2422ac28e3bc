//! Quantizes weights to integers.

use super::{Content, OutputTensor};
use crate::ModelError;
use crate::checkpoint::{Checkpoint, TensorLocation};
use crate::group_quant::{pack_rows, shape_bytes};
use architectures::GroupQuantization;
use half::bf16;
use rayon::prelude::*;
use safetensors::tensor::Dtype;

/// A tensor's packed integers, scales and shape, and the relative error. A scale maps the group's largest weight to
/// half of the range, as in compressed-tensors; it is rounded to bfloat16 before the weights are divided by it.
pub(super) fn rounded(
    checkpoint: &Checkpoint,
    name: &str,
    located: &TensorLocation,
    int: GroupQuantization,
) -> Result<(Vec<OutputTensor>, f64), ModelError> {
    let shape = &located.shape;
    let columns = shape.last().copied().unwrap_or(1).max(1);
    let rows = shape.iter().product::<usize>() / columns;
    let (groups, words) = (int.groups(columns), columns.div_ceil(32 / int.bits));
    let half = ((1 << int.bits) - 1) as f32 / 2.0;
    let (low, high) = (-half - 0.5, half - 0.5);
    let values = checkpoint.values(name)?;
    let mut packed = vec![0u8; 4 * rows * words];
    let mut scales = vec![0u8; 2 * rows * groups];
    let both = packed.par_chunks_mut(4 * words).zip(scales.par_chunks_mut(2 * groups)).enumerate();
    let row = |(weights, numbers): &mut (Vec<f32>, Vec<i8>), (row, (packed, scales))| {
        let (packed, scales): (&mut [u8], &mut [u8]) = (packed, scales);
        weights.resize(columns, 0.0);
        numbers.clear();
        values.fill(row * columns, weights)?;
        let (mut off, mut all) = (0.0, 0.0);
        let of_group = weights.chunks(int.group.unwrap_or(columns));
        for (weights, to) in of_group.zip(scales.as_chunks_mut().0) {
            let largest = weights.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
            let scale = bf16::from_f32(largest / half);
            // The scale of a group of zeros is arbitrary but must not be zero.
            let scale = if scale > bf16::ZERO { scale } else { bf16::ONE };
            *to = scale.to_le_bytes();
            let scale = scale.to_f32();
            for weight in weights {
                let number = (weight / scale).round_ties_even().clamp(low, high);
                numbers.push(number as i8);
                off += f64::from(number * scale - weight).powi(2);
                all += f64::from(*weight).powi(2);
            }
        }
        packed.copy_from_slice(&pack_rows(numbers, columns, int.bits));
        Ok::<_, ModelError>([off, all])
    };
    let add = |one: [f64; 2], other: [f64; 2]| Ok([one[0] + other[0], one[1] + other[1]]);
    let [off, all] = both.map_init(Default::default, row).try_reduce(|| [0.0; 2], add)?;
    let error = if all > 0.0 { (off / all).sqrt() } else { 0.0 };
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let shaped = |last: usize| [&shape[..shape.len() - 1], &[last]].concat();
    let made = |end: &str, dtype, shape, bytes| OutputTensor {
        name: format!("{module}.{end}"),
        dtype,
        shape,
        content: Content::Made(bytes),
    };
    let tensors = vec![
        made("weight_packed", Dtype::I32, shaped(words), packed),
        made("weight_scale", Dtype::BF16, shaped(groups), scales),
        made("weight_shape", Dtype::I64, vec![shape.len()], shape_bytes(shape)),
    ];
    Ok((tensors, error))
}
