//! MXFP4: 4-bit floats (E2M1) and a power-of-two scale (E8M0) per 32 values. Doubled, the values are integers from -12
//! to 12.

use crate::ModelError;
use crate::checkpoint::{Shard, TensorLocation};
use crate::group_quant::{IntegerSource, IntegerValues, Integers};
use architectures::Packing;
use ops::{DType, E4m3};
use rayon::prelude::*;
use safetensors::tensor::Dtype;
use std::collections::BTreeMap;
use std::ops::Range;

/// Values per group.
pub(crate) const GROUP: usize = 32;

/// Doubled values of the 16 codes.
pub(crate) const TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The factor of doubled values, from the bits of a scale; 0xff is NaN.
pub(crate) fn scale(bits: u8) -> f32 {
    match bits {
        // Below float32's smallest normal exponent.
        0 | 1 => f32::from_bits(1 << (21 + bits)),
        u8::MAX => f32::NAN,
        _ => f32::from_bits(u32::from(bits - 1) << 23),
    }
}

/// The value of a 4-bit code with a scale. Zero has a sign.
pub(crate) fn value(bits: u8, scale: f32) -> f32 {
    let size = f32::from(TWICE[usize::from(bits & 7)]);
    (if bits & 8 == 0 { size } else { -size }) * scale
}

/// A weight stored as two tensors: `[.., rows, groups, 16]` with `[.., rows, groups]` as transformers writes them, or
/// `[.., rows, columns / 2]` with `[.., rows, groups]` as compressed-tensors does.
///
/// # Errors
/// [`ModelError::Weights`] naming a tensor that is missing or of the wrong shape.
pub(crate) fn find(
    [numbers, scales]: [&str; 2],
    tensors: &BTreeMap<String, TensorLocation>,
    shards: &[Shard],
) -> Result<Integers, ModelError> {
    let packed = &tensors[numbers];
    let wrong = |what: String| Err(ModelError::weights(&shards[packed.shard].path, what));
    let Some(of_scales) = tensors.get(scales) else {
        return wrong(format!("tensor `{numbers}` is packed without `{scales}`"));
    };
    let shape = match &packed.shape[..] {
        [outer @ .., groups, bytes] if numbers.ends_with(BLOCKS) && *bytes == GROUP / 2 => {
            [outer, &[groups * GROUP]].concat()
        }
        [outer @ .., bytes] if !numbers.ends_with(BLOCKS) => [outer, &[2 * bytes]].concat(),
        _ => Vec::new(),
    };
    let columns = shape.last().copied().unwrap_or(0);
    let rows = shape.iter().rev().skip(1).product();
    let is_empty = shape.iter().product::<usize>() == 0;
    if shape.len() < 2 || is_empty || packed.dtype != Dtype::U8 {
        let wanted = "numbers of a matrix in MXFP4, U8";
        return wrong(format!(
            "tensor `{numbers}` is {:?} {:?}, expected {wanted}",
            packed.dtype, packed.shape
        ));
    }
    let wanted = [&shape[..shape.len() - 1], &[columns.div_ceil(GROUP)]].concat();
    if of_scales.shape != wanted || of_scales.dtype != Dtype::U8 {
        let (dtype, shape) = (of_scales.dtype, &of_scales.shape);
        return wrong(format!(
            "tensor `{scales}` is {dtype:?} {shape:?}, expected {wanted:?} in U8"
        ));
    }
    Ok(Integers {
        bits: 4,
        float: true,
        rows,
        columns,
        shape,
        group: GROUP,
        zeros: false,
        order: None,
        groups_of: None,
        // bfloat16 represents every scale exactly.
        scale_type: DType::Bf16,
        held: IntegerSource::File {
            numbers: packed.clone(),
            scales: of_scales.clone(),
            zeros: None,
            packing: Packing::Mxfp4,
            of_tensor: None,
        },
    })
}

/// Name suffixes of transformers' tensors.
pub(crate) const BLOCKS: &str = "_blocks";
pub(crate) const SCALES: &str = "_scales";

/// The tensors of a weight: names, shapes, and bytes of the last dimension.
pub(crate) fn packed(name: &str, shape: &[usize]) -> [(String, Vec<usize>); 2] {
    let (outer, columns) = shape.split_at(shape.len() - 1);
    let groups = columns[0].div_ceil(GROUP);
    match name.strip_suffix(".weight") {
        Some(module) => [
            (format!("{module}.weight_packed"), [outer, &[columns[0] / 2]].concat()),
            (format!("{module}.weight_scale"), [outer, &[groups]].concat()),
        ],
        None => [
            (format!("{name}{BLOCKS}"), [outer, &[groups, GROUP / 2]].concat()),
            (format!("{name}{SCALES}"), [outer, &[groups]].concat()),
        ],
    }
}

/// Two values per byte, the first in the low nibble.
pub(crate) fn pack(numbers: &[i8]) -> Vec<u8> {
    let bits = |number: i8| TWICE.iter().position(|of| *of == number).unwrap_or(0) as u8;
    let pairs = numbers.as_chunks::<2>().0.iter();
    pairs.map(|[low, high]| bits(*low) | bits(*high) << 4).collect()
}

/// The E8M0 bits of a scale that is a power of two.
pub(crate) fn scale_bits(of: f32) -> u8 {
    (0..u8::MAX).find(|bits| scale(*bits) == of).unwrap_or(u8::MAX)
}

/// Maximum ratio of a row's scales in float8, with E2M1's one mantissa bit: from the exponent at which the smallest
/// subnormal represents 0.5 to the one at which 6 is 384.
const APART: f32 = 16_384.0;

impl IntegerValues<'_> {
    /// For each row the scale with which all of its values are exact in float8; `None` if a row's range is too large.
    ///
    /// # Errors
    /// As [`IntegerValues::scales_and_zeros`].
    pub(crate) fn float8_scales(&self, rows: Range<usize>) -> Result<Option<Vec<f32>>, ModelError> {
        let buffers = || (vec![0f32; self.of.groups()], vec![0i8; self.of.columns]);
        let of_rows = rows.into_par_iter().map_init(buffers, |(scales, numbers), row| {
            self.scales_and_zeros(row..row + 1, scales, &mut [])?;
            let (mut least, mut most) = ends(scales.iter());
            if least * APART < most {
                // Groups of zeros are exact with any scale.
                self.numbers(row..row + 1, numbers)?;
                let there = numbers.chunks(self.of.group).zip(scales.iter());
                let there = there.filter(|(numbers, _)| numbers.iter().any(|number| *number != 0));
                (least, most) = ends(there.map(|(_, scale)| scale));
            }
            // A row of zeros may have any scale.
            Ok((least * APART >= most).then(|| if most > 0.0 { most / TOP } else { 1.0 }))
        });
        Ok(of_rows.collect::<Result<Vec<_>, ModelError>>()?.into_iter().collect())
    }

    /// Rows in float8, divided by these scales.
    ///
    /// # Errors
    /// As [`IntegerValues::numbers`].
    pub(crate) fn float8(
        &self,
        rows: Range<usize>,
        of_rows: &[f32],
        into: &mut [u8],
    ) -> Result<(), ModelError> {
        let (groups, columns, group) = (self.of.groups(), self.of.columns, self.of.group);
        // Indexed by the binary logarithm of the largest scale over the group's scale, and by the value.
        let table: Vec<[u8; 25]> = (0..15)
            .map(|halved| {
                let number = |at: usize| (at as f32 - 12.0) * TOP / (1 << halved) as f32;
                std::array::from_fn(|at| E4m3::from_f32(number(at)).to_bits())
            })
            .collect();
        let mut numbers = vec![0i8; columns];
        let mut scales = vec![0f32; groups];
        for ((row, of_row), into) in rows.zip(of_rows).zip(into.chunks_exact_mut(columns)) {
            self.numbers(row..row + 1, &mut numbers)?;
            self.scales_and_zeros(row..row + 1, &mut scales, &mut [])?;
            let own = numbers.chunks(group).zip(into.chunks_mut(group)).zip(&scales);
            for ((numbers, into), scale) in own {
                // The ratio is a power of two; groups beyond the table contain only zeros.
                let halved = (of_row * TOP / scale).log2() as usize;
                let table = &table[halved.min(14)];
                for (into, number) in into.iter_mut().zip(numbers) {
                    *into = table[(i32::from(*number) + 12) as usize];
                }
            }
        }
        Ok(())
    }
}

/// The smallest and the largest scale.
fn ends<'a>(scales: impl Iterator<Item = &'a f32>) -> (f32, f32) {
    scales.fold((f32::INFINITY, 0.0), |(least, most), scale| (least.min(*scale), most.max(*scale)))
}

/// Factor of doubled values in float8 for groups with a row's largest scale: 12 becomes 384.
const TOP: f32 = 32.0;

#[cfg(test)]
mod tests;
