//! Integer matrices in the layout of `linear`.

use super::{Columns, CudaProjection, Weights, failed};
use crate::ModelError;
use crate::group_quant::{IntegerValues, Integers};
use crate::params::RowRange;
use crate::program::Loader;
use architectures::UnexpandedWeights;
use half::{bf16, f16};
use ops::{DType, Tensor};
use std::ops::Range;
use std::sync::Arc;

impl<'w> Weights<'_, 'w> {
    /// Concatenated integer rows as in the file, in u4 or i8, with scales and zero points or offsets; `None` if some
    /// rows have another format or must be expanded.
    pub(super) fn integers(
        &self,
        rows: &[RowRange],
        width: usize,
    ) -> Result<Option<CudaProjection>, ModelError> {
        let Some(values) = self.alike(rows) else { return Ok(None) };
        let Some(first) = values.first() else { return Ok(None) };
        let count = rows.iter().map(|rows| rows.count).sum();
        let w = self.allocate(&[count, width], type_of(first.of))?;
        self.integers_into(rows, &values, &Columns::all(width), &w)?;
        let any = |of: fn(&Integers) -> bool| values.iter().any(|values| of(values.of));
        let offsets = any(Integers::has_offsets);
        let Factors { scales, below } = Factors::read(rows, &values, offsets)?;
        let shape = [first.groups(), count];
        let below = match (offsets, any(|of| of.zeros)) {
            (true, _) => Some(Tensor::new(&shape, below)),
            (false, true) => {
                let zero = |zero: f32| (zero + 8.0) as u8;
                Some(Tensor::new(&shape, below.into_iter().map(zero).collect::<Vec<_>>()))
            }
            (false, false) => None,
        };
        let below = below.map(|below| self.transfer(below)).transpose()?;
        let (w_zero, w_offset) = if offsets { (None, below) } else { (below, None) };
        let mut types = values.iter().map(|values| values.of.scale_type);
        let one = types.next().filter(|one| types.all(|other| other == *one));
        let scales = match one {
            Some(DType::Bf16) => {
                Tensor::new(&shape, scales.into_iter().map(bf16::from_f32).collect::<Vec<_>>())
            }
            Some(DType::F16) => {
                Tensor::new(&shape, scales.into_iter().map(f16::from_f32).collect::<Vec<_>>())
            }
            _ => Tensor::new(&shape, scales),
        };
        let w_scale = Some(self.transfer(scales)?);
        let made = CudaProjection { w_scale, w_zero, w_offset, ..CudaProjection::wide(w) };
        let w_group = if first.groups() == 1 { made.w_group } else { first.of.group };
        Ok(Some(CudaProjection { w_group, ..made }))
    }

    /// Concatenated MXFP4 rows, converted to float8 with a scale per row; `None` if some rows have another format, must
    /// be expanded, or have too large a range.
    pub(super) fn mxfp4(
        &self,
        rows: &[RowRange],
        width: usize,
    ) -> Result<Option<CudaProjection>, ModelError> {
        let Some(scales) = self.mxfp4_scales(rows)? else { return Ok(None) };
        let to = self.allocate(&[scales.len(), width], DType::E4m3)?;
        self.mxfp4_into(rows, &scales, &Columns::all(width), &to)?;
        let scales = self.transfer(Tensor::new(&[1, scales.len()], scales))?;
        Ok(Some(CudaProjection { w_scale: Some(scales), ..CudaProjection::wide(to) }))
    }

    /// The float8 scales of such rows.
    pub(in crate::cuda) fn mxfp4_scales(
        &self,
        rows: &[RowRange],
    ) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(values) = self.alike(rows) else { return Ok(None) };
        if !values.iter().all(|values| values.of.is_mxfp4()) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (rows, values) in rows.iter().zip(values) {
            match values.float8_scales(rows.first..rows.first + rows.count)? {
                Some(scales) => all.extend(scales),
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// A column range of such rows in float8, divided by these scales, to the start of an existing tensor.
    pub(in crate::cuda) fn mxfp4_into(
        &self,
        rows: &[RowRange],
        scales: &[f32],
        columns: &Columns,
        to: &Tensor,
    ) -> Result<(), ModelError> {
        let mut start = 0;
        for (rows, values) in rows.iter().zip(self.alike(rows).unwrap_or_default()) {
            let part = to.rows(start, rows.count).map_err(failed)?;
            let first = rows.first;
            let scales: Arc<[f32]> = Arc::from(&scales[start..][..rows.count]);
            let fill = move |rows: Range<usize>, into: &mut [u8]| {
                let own = &scales[rows.start - first..rows.end - first];
                values.float8(rows, own, into)
            };
            self.upload(first..first + rows.count, columns, &part, fill)?;
            start += rows.count;
        }
        Ok(())
    }

    /// Each parameter in `rows` if all have the same packing; `None` otherwise, or if they must be expanded.
    pub(in crate::cuda) fn alike(&self, rows: &[RowRange]) -> Option<Vec<IntegerValues<'w>>> {
        let values = |rows: &RowRange| {
            let param = self.architecture.params.get(rows.param);
            let kept = param.is_kept(UnexpandedWeights::Projections);
            self.checkpoint.integers_of(param).filter(|of| kept && is_multiplied(of))
        };
        let values: Vec<IntegerValues<'w>> = rows.iter().map(values).collect::<Option<_>>()?;
        let first = values.first()?.of;
        values.iter().all(|values| values.of.is_like(first)).then_some(values)
    }

    /// A column range of u4 or i8 rows, to the start of an existing tensor.
    pub(in crate::cuda) fn integers_into(
        &self,
        rows: &[RowRange],
        values: &[IntegerValues<'w>],
        columns: &Columns,
        to: &Tensor,
    ) -> Result<(), ModelError> {
        let mut start = 0;
        for (rows, values) in rows.iter().zip(values) {
            let part = to.rows(start, rows.count).map_err(failed)?;
            let values = *values;
            let fill = move |rows: Range<usize>, into: &mut [u8]| {
                let mut numbers = vec![0i8; rows.len() * values.columns()];
                values.numbers(rows, &mut numbers)?;
                put(&numbers, type_of(values.of), into);
                Ok(())
            };
            self.upload(rows.first..rows.first + rows.count, columns, &part, fill)?;
            start += rows.count;
        }
        Ok(())
    }
}

/// The op's type of such integers: 4 bits that it does not read are widened, as in [`GroupQuantization::on_gpus`].
///
/// [`GroupQuantization::on_gpus`]: architectures::GroupQuantization::on_gpus
pub(in crate::cuda) fn type_of(of: &Integers) -> DType {
    let is_read = of.groups() == 1 || of.group.is_multiple_of(32);
    if of.bits == 4 && !of.float && is_read { DType::U4 } else { DType::I8 }
}

/// Scales and zero points or offsets of concatenated rows `[groups, rows]`.
pub(in crate::cuda) struct Factors {
    pub(in crate::cuda) scales: Vec<f32>,
    /// Zero points, relative to the middle of the range, or offsets.
    pub(in crate::cuda) below: Vec<f32>,
}

impl Factors {
    pub(in crate::cuda) fn read(
        rows: &[RowRange],
        values: &[IntegerValues<'_>],
        offsets: bool,
    ) -> Result<Self, ModelError> {
        let count: usize = rows.iter().map(|rows| rows.count).sum();
        let groups = values.first().map_or(1, IntegerValues::groups);
        let [mut scales, mut below] = [(); 2].map(|()| vec![0f32; groups * count]);
        let mut start = 0;
        for (rows, values) in rows.iter().zip(values) {
            let mut own = vec![0f32; 2 * rows.count * groups];
            let (own_scales, own_below) = own.split_at_mut(rows.count * groups);
            let wanted = rows.first..rows.first + rows.count;
            match offsets {
                true => values.offsets(wanted, own_scales, own_below)?,
                false => values.scales_and_zeros(wanted, own_scales, own_below)?,
            }
            for (at, (scale, taken)) in own_scales.iter().zip(&*own_below).enumerate() {
                let place = at % groups * count + start + at / groups;
                scales[place] = *scale;
                below[place] = *taken;
            }
            start += rows.count;
        }
        Ok(Self { scales, below })
    }
}

/// Whether `linear` supports such weights on a GPU.
fn is_multiplied(values: &IntegerValues<'_>) -> bool {
    let of = values.of;
    let is_wide = type_of(of) == DType::I8;
    let group = values.groups() == 1 || of.group.is_multiple_of(if is_wide { 16 } else { 32 });
    values.columns().is_multiple_of(32) && group && of.groups_of.is_none() && !(is_wide && of.zeros)
}

/// Packs integers as a u4 or i8 tensor.
fn put(numbers: &[i8], dtype: DType, into: &mut [u8]) {
    if dtype == DType::I8 {
        into.iter_mut().zip(numbers).for_each(|(into, number)| *into = number.cast_unsigned());
        return;
    }
    let nibble = |number: i8| (number + 8).cast_unsigned();
    for (into, pair) in into.iter_mut().zip(numbers.as_chunks::<2>().0) {
        *into = nibble(pair[0]) | nibble(pair[1]) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::U4Pair;

    #[test]
    fn integers_have_the_layout_of_the_op() {
        let numbers: Vec<i8> = (-8..8).collect();
        let mut four = [0; 8];
        put(&numbers, DType::U4, &mut four);
        let both = four.map(|bits| U4Pair::from_bits(bits).both()).concat();
        assert!(both.into_iter().eq(0..16));
        let mut eight = [0; 16];
        put(&numbers, DType::I8, &mut eight);
        assert!(eight.into_iter().map(u8::cast_signed).eq(-8..8));
    }
}
