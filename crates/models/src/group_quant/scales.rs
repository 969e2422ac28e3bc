//! Scales and zero points of integer weights.

use super::{IntegerSource, IntegerValues, float_scale, some_columns, words};
use crate::values::{ValueSource, Values};
use crate::{ModelError, gguf};
use architectures::Packing;
use std::ops::Range;
use std::path::Path;

impl IntegerValues<'_> {
    /// Scales of some rows, and their zero points unless `zeros` is empty, `[rows, groups]` each.
    ///
    /// # Errors
    /// As [`IntegerValues::numbers`], and when a scale is NaN or infinite.
    pub(crate) fn scales_and_zeros(
        &self,
        rows: Range<usize>,
        scales: &mut [f32],
        zeros: &mut [f32],
    ) -> Result<(), ModelError> {
        self.of_groups(rows, [scales, zeros], |rows, scales, zeros| {
            self.factors_of_run(rows, scales, zeros)
        })
    }

    /// Two lists `[rows, groups]` of some rows, read from consecutive rows of the whole weight with all of its columns.
    fn of_groups(
        &self,
        rows: Range<usize>,
        [scales, zeros]: [&mut [f32]; 2],
        read: impl Fn(Range<usize>, &mut [f32], &mut [f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let (groups, all) = (self.groups(), self.of.groups());
        let first = self.own().start / self.of.group;
        let (mut scales, mut zeros) = (scales, zeros);
        for rows in self.whole(rows)? {
            let count = rows.len() * groups;
            let own_zeros = count.min(zeros.len());
            let (own_scales, own_zeros) =
                (scales.split_off_mut(..count), zeros.split_off_mut(..own_zeros));
            let (Some(own_scales), Some(own_zeros)) = (own_scales, own_zeros) else { break };
            if groups == all {
                read(rows, own_scales, own_zeros)?;
                continue;
            }
            let [mut of_rows, mut zeros_of_rows] = [(); 2].map(|()| vec![0f32; rows.len() * all]);
            read(rows, &mut of_rows, &mut zeros_of_rows)?;
            some_columns(&of_rows, all, first..first + groups, own_scales);
            some_columns(&zeros_of_rows, all, first..first + groups, own_zeros);
        }
        Ok(())
    }

    /// [`Self::scales_and_zeros`] of consecutive rows of the whole weight, with all of its columns.
    fn factors_of_run(
        &self,
        rows: Range<usize>,
        scales: &mut [f32],
        zeros: &mut [f32],
    ) -> Result<(), ModelError> {
        let groups = self.of.groups();
        if self.layout.turns {
            for (row, scales) in rows.zip(scales.chunks_exact_mut(groups)) {
                self.in_turn(row, |of, row| of.factors_of_run(row, scales, &mut []))?;
            }
            zeros.fill(0.0);
            return Ok(());
        }
        let (of_scales, of_zeros, packing) = match &self.of.held {
            IntegerSource::Random(drawn) => {
                let places = rows.start * groups..;
                for (at, scale) in places.clone().zip(scales) {
                    *scale = drawn.scale(at);
                }
                places.zip(zeros).for_each(|(at, zero)| *zero = f32::from(drawn.zero(at)));
                return Ok(());
            }
            IntegerSource::Blocks(placed) => {
                gguf::scales_and_zeros(placed, (self.shards, self.read), rows, (scales, zeros))?;
                return self.finite(scales, self.path());
            }
            IntegerSource::File { scales: of_scales, of_tensor, .. } if self.of.float => {
                let bytes = self.raw(of_scales, rows.start * groups, rows.len() * groups)?;
                let read = scales.iter_mut().zip(bytes);
                read.for_each(|(into, bits)| *into = float_scale(*bits, *of_tensor));
                zeros.fill(0.0);
                return self.finite(scales, &self.shards[of_scales.shard].path);
            }
            IntegerSource::File { scales, zeros, packing, .. } => (scales, zeros, *packing),
        };
        let found = &self.shards[of_scales.shard];
        let values = Values::whole(self.name, ValueSource::File(found, of_scales, None), self.read);
        if packing == Packing::Rows {
            values.fill(rows.start * groups, scales)?;
        } else {
            let mut column = vec![0f32; rows.len()];
            for group in 0..groups {
                values.fill(group * self.of.rows + rows.start, &mut column)?;
                let into = scales.iter_mut().skip(group).step_by(groups);
                into.zip(&column).for_each(|(into, scale)| *into = *scale);
            }
        }
        self.finite(scales, &found.path)?;
        let (Some(of_zeros), false) = (of_zeros, zeros.is_empty()) else {
            zeros.fill(0.0);
            return Ok(());
        };
        let (middle, in_word) = (self.of.middle(), self.of.in_word());
        let mask = (1u32 << self.of.bits) - 1;
        match packing {
            // Packed along the rows of each matrix.
            Packing::Rows => {
                let of_matrix = self.of.shape[self.of.shape.len() - 2];
                for (row, zeros) in rows.zip(zeros.chunks_exact_mut(groups)) {
                    let (matrix, row) = (row / of_matrix, row % of_matrix);
                    let first = matrix * of_matrix.div_ceil(in_word) + row / in_word;
                    let words = words(self.bytes(of_zeros, first * groups, groups)?);
                    for (zero, word) in zeros.iter_mut().zip(words) {
                        let bits = word >> (row % in_word * self.of.bits) & mask;
                        *zero = (bits as i32 - middle) as f32;
                    }
                }
            }
            Packing::Gptq { zeros_minus_one } => {
                let across = self.of.rows.div_ceil(in_word);
                for group in 0..groups {
                    let first = rows.start / in_word;
                    let count = rows.end.div_ceil(in_word) - first;
                    let words: Vec<u32> =
                        words(self.bytes(of_zeros, group * across + first, count)?).collect();
                    for (row, zeros) in rows.clone().zip(zeros.chunks_exact_mut(groups)) {
                        let word = words[row / in_word - first];
                        let bits = word >> (row % in_word * self.of.bits) & mask;
                        zeros[group] = (bits as i32 + i32::from(zeros_minus_one) - middle) as f32;
                    }
                }
            }
            Packing::Gguf(_) | Packing::BitsAndBytes | Packing::Mxfp4 | Packing::Nvfp4 => {}
            Packing::Awq => {
                for group in 0..groups {
                    let read = self.interleaved(of_zeros, group, &rows)?;
                    for (zeros, bits) in zeros.chunks_exact_mut(groups).zip(read) {
                        zeros[group] = (bits as i32 - middle) as f32;
                    }
                }
            }
        }
        Ok(())
    }

    /// Scales, with offsets instead of zero points: a value is `scale (number + middle) - offset`, exact in float32 as
    /// in GGUF files.
    ///
    /// # Errors
    /// As [`IntegerValues::scales_and_zeros`], and when an offset is NaN or infinite.
    pub(crate) fn offsets(
        &self,
        rows: Range<usize>,
        scales: &mut [f32],
        offsets: &mut [f32],
    ) -> Result<(), ModelError> {
        let IntegerSource::Blocks(placed) = &self.of.held else {
            self.scales_and_zeros(rows, scales, offsets)?;
            let middle = self.of.middle() as f32;
            let both = offsets.iter_mut().zip(&*scales);
            both.for_each(|(offset, scale)| *offset = scale * (*offset + middle));
            return Ok(());
        };
        let read = |rows, scales: &mut [f32], offsets: &mut [f32]| {
            gguf::offsets(placed, (self.shards, self.read), rows, (scales, offsets))
        };
        self.of_groups(rows, [scales, offsets], read)?;
        self.finite(scales, self.path())?;
        self.finite(offsets, self.path())
    }

    fn finite(&self, scales: &[f32], path: &Path) -> Result<(), ModelError> {
        match scales.iter().all(|scale| scale.is_finite()) {
            true => Ok(()),
            false => Err(self.wrong(path, "has a scale that is not finite")),
        }
    }
}
