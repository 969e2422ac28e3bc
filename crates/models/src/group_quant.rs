//! Integer weights of 4 and 8 bits: values, scales and zero points of rows, from files of each packing or random.

mod find;
mod pack;
mod scales;

pub(crate) use find::find;
pub(crate) use pack::{pack_columns, pack_rows, packed, shape_bytes};

use crate::checkpoint::{Shard, TensorLocation};
use crate::gguf::{self, GgufParam};
use crate::nvfp4::TensorScale;
use crate::random_weights::RandomIntegers;
use crate::values::Value;
use crate::{ModelError, mxfp4};
use architectures::Packing;
use architectures::params::{MatrixLayout, TensorSlice};
use ops::DType;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// An integer weight: n represents `scale * (n - zero)`. Integers and zero points are relative to the middle of their
/// range: from -8 to 7 for 4 bits.
#[derive(Debug)]
pub(crate) struct Integers {
    /// 4 or 8.
    pub(crate) bits: usize,
    /// Whether they are twice the values of E2M1, from -12 to 12, instead of integers: 4 bits without a middle.
    pub(crate) float: bool,
    /// Shape of the dequantized weight.
    pub(crate) shape: Vec<usize>,
    /// Rows of all its matrices, and columns.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Group size: columns that share a scale.
    pub(crate) group: usize,
    /// Whether any zero point is not 0.
    pub(crate) zeros: bool,
    /// The permutation that sorts columns by group; `None` if they are sorted.
    pub(crate) order: Option<Vec<u32>>,
    /// The group of each column if they are not sorted.
    pub(crate) groups_of: Option<Vec<u32>>,
    /// A type that represents the scales exactly; bfloat16 for the powers of two of MXFP4.
    pub(crate) scale_type: DType,
    pub(crate) held: IntegerSource,
}

/// The location of the integers and their scales.
#[derive(Debug)]
pub(crate) enum IntegerSource {
    File {
        numbers: TensorLocation,
        scales: TensorLocation,
        zeros: Option<TensorLocation>,
        packing: Packing,
        /// The tensor's scale of NVFP4.
        of_tensor: Option<TensorScale>,
    },
    Random(RandomIntegers),
    /// Blocks of a GGUF file, with their scales.
    Blocks(GgufParam),
}

impl Integers {
    /// Scales per row.
    pub(crate) fn groups(&self) -> usize {
        self.columns.div_ceil(self.group)
    }

    /// Whether they are E2M1 with power-of-two scales.
    pub(crate) fn is_mxfp4(&self) -> bool {
        self.float && self.scale_type == DType::Bf16
    }

    /// The unsigned value of the middle of the range.
    pub(crate) fn middle(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Integers per 32-bit word.
    fn in_word(&self) -> usize {
        32 / self.bits
    }

    /// Whether another weight has the same format, so that rows of both can be concatenated.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let form = |of: &Self| (of.bits, of.float, of.columns, of.group);
        form(self) == form(other) && self.order == other.order
    }

    /// Whether its zero points are not integers.
    pub(crate) fn has_offsets(&self) -> bool {
        self.zeros && matches!(self.held, IntegerSource::Blocks(_))
    }

    /// Whether rows can be read with their columns sorted into groups of equal size.
    pub(crate) fn is_sortable(&self) -> bool {
        self.groups_of.is_none() || self.order.is_some()
    }

    /// Sign-extends the bits of an integer.
    fn number(&self, bits: u32) -> i8 {
        ((bits & ((1 << self.bits) - 1)) as i32 - self.middle()) as i8
    }
}

/// Reads the values of an integer weight.
#[derive(Clone, Copy)]
pub(crate) struct IntegerValues<'a> {
    pub(crate) name: &'a str,
    pub(crate) of: &'a Integers,
    pub(crate) shards: &'a [Shard],
    /// A rank's part of it; `None` for all. Rows and columns are those of the part.
    pub(crate) cut: Option<&'a TensorSlice>,
    /// The layout of each matrix's rows.
    pub(crate) layout: MatrixLayout,
    pub(crate) read: &'a AtomicU64,
}

/// The factor of doubled E2M1 values, from the bits of a group's scale.
fn float_scale(bits: u8, of_tensor: Option<TensorScale>) -> f32 {
    of_tensor.map_or_else(|| mxfp4::scale(bits), |of| of.scale(bits))
}

/// The nibble of a word in which AWQ stores each of eight outputs.
const INTERLEAVED: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl IntegerValues<'_> {
    /// Number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.own().len()
    }

    /// Scales per row.
    pub(crate) fn groups(&self) -> usize {
        self.columns().div_ceil(self.of.group)
    }

    /// Its column range in the whole weight.
    fn own(&self) -> Range<usize> {
        self.cut.map_or(0..self.of.columns, |cut| cut.columns().0)
    }

    /// The rows of the whole weight that correspond to rows of the part.
    fn whole(&self, rows: Range<usize>) -> Result<Vec<Range<usize>>, ModelError> {
        let whole = match self.cut {
            None => vec![rows.clone()],
            Some(cut) => cut.rows(rows.clone()).collect(),
        };
        let count: usize = whole.iter().map(Range::len).sum();
        match count == rows.len() && whole.iter().all(|rows| rows.end <= self.of.rows) {
            true => Ok(whole),
            false => Err(self.wrong(self.path(), &format!("has shape {:?}", self.of.shape))),
        }
    }

    /// Integers of some rows `[rows, columns]`.
    ///
    /// # Errors
    /// [`ModelError`] when the rows are out of range or a file cannot be read.
    pub(crate) fn numbers(&self, rows: Range<usize>, into: &mut [i8]) -> Result<(), ModelError> {
        let mut rest = into;
        for rows in self.whole(rows)? {
            let (into, behind) = rest.split_at_mut(rows.len() * self.columns());
            self.run(rows, into)?;
            rest = behind;
        }
        Ok(())
    }

    /// Integers of consecutive rows of the whole weight.
    fn run(&self, rows: Range<usize>, into: &mut [i8]) -> Result<(), ModelError> {
        let (own, columns) = (self.own(), self.columns());
        if self.layout.turns {
            let mut rows = rows.zip(into.chunks_exact_mut(columns));
            return rows.try_for_each(|(row, into)| self.in_turn(row, |of, row| of.run(row, into)));
        }
        let (numbers, packing) = match &self.of.held {
            IntegerSource::Random(drawn) => {
                for (row, into) in rows.zip(into.chunks_exact_mut(columns)) {
                    drawn.numbers(row * self.of.columns + own.start, into);
                }
                self.count(into.len() * self.of.bits / 8);
                return Ok(());
            }
            IntegerSource::Blocks(placed) => {
                let from = (self.shards, self.read);
                if columns == self.of.columns {
                    return gguf::numbers(placed, from, rows, into);
                }
                let mut whole = vec![0; rows.len() * self.of.columns];
                gguf::numbers(placed, from, rows, &mut whole)?;
                some_columns(&whole, self.of.columns, own, into);
                return Ok(());
            }
            IntegerSource::File { numbers, packing, .. } => (numbers, *packing),
        };
        let in_word = self.of.in_word();
        let of_words = own.start / in_word..own.end.div_ceil(in_word);
        match packing {
            Packing::Rows => {
                let words = self.of.columns.div_ceil(in_word);
                let skipped = own.start % in_word;
                let first = rows.start * words + of_words.start;
                let behind = words - of_words.len();
                let all = self.mapped(numbers, first, rows.len() * words - behind)?;
                self.count(4 * rows.len() * of_words.len());
                for (into, bytes) in into.chunks_exact_mut(columns).zip(all.chunks(4 * words)) {
                    match self.of.bits {
                        4 => (skipped..).zip(into).for_each(|(at, into)| {
                            *into = self.of.number(u32::from(bytes[at / 2] >> (at % 2 * 4)));
                        }),
                        _ => into
                            .iter_mut()
                            .zip(&bytes[skipped..])
                            .for_each(|(into, byte)| *into = self.of.number(u32::from(*byte))),
                    }
                }
            }
            Packing::Gptq { .. } => {
                for nth in of_words {
                    let words =
                        words(self.bytes(numbers, nth * self.of.rows + rows.start, rows.len())?);
                    // A word may contain values before the first column and after the last one.
                    let (first, end) = (nth * in_word, own.end.min((nth + 1) * in_word));
                    let inside = own.start.max(first)..end;
                    for (into, word) in into.chunks_exact_mut(columns).zip(words) {
                        for column in inside.clone() {
                            let bits = word >> ((column - first) * self.of.bits);
                            into[column - own.start] = self.of.number(bits);
                        }
                    }
                }
            }
            // Such values are not a separate tensor.
            Packing::Gguf(_) | Packing::BitsAndBytes => {}
            Packing::Mxfp4 | Packing::Nvfp4 => {
                for (row, into) in rows.zip(into.chunks_exact_mut(columns)) {
                    let first = (row * self.of.columns + own.start) / 2;
                    let bytes = self.raw(numbers, first, columns / 2)?;
                    for (into, byte) in into.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                        *into = [byte & 15, byte >> 4].map(|bits| mxfp4::TWICE[usize::from(bits)]);
                    }
                }
            }
            Packing::Awq => {
                for column in 0..columns {
                    let read = self.interleaved(numbers, own.start + column, &rows)?;
                    for (into, bits) in into.chunks_exact_mut(columns).zip(read) {
                        into[column] = self.of.number(bits);
                    }
                }
            }
        }
        Ok(())
    }

    /// [`IntegerValues::numbers`] with the columns of each row sorted by group.
    ///
    /// # Errors
    /// As [`IntegerValues::numbers`].
    pub(crate) fn sorted(&self, rows: Range<usize>, into: &mut [i8]) -> Result<(), ModelError> {
        self.numbers(rows, into)?;
        if let Some(order) = &self.of.order {
            let mut sorted = Vec::with_capacity(order.len());
            for row in into.chunks_exact_mut(order.len()) {
                sorted.clear();
                sorted.extend(order.iter().map(|column| row[*column as usize]));
                row.copy_from_slice(&sorted);
            }
        }
        Ok(())
    }

    /// Dequantized values starting at `first`, of the whole weight or of a part for which [`Self::filled_by_part`]
    /// holds.
    ///
    /// # Errors
    /// As [`IntegerValues::scales_and_zeros`].
    pub(crate) fn fill<V: Value>(&self, first: usize, into: &mut [V]) -> Result<(), ModelError> {
        let (columns, groups) = (self.columns(), self.groups());
        if let IntegerSource::Blocks(placed) = &self.of.held {
            return placed.fill((self.shards, self.read), first, into);
        }
        if into.is_empty() {
            return Ok(());
        }
        if let IntegerSource::File { numbers, scales, of_tensor, .. } = &self.of.held
            && self.of.float
        {
            let scale = |bits| float_scale(bits, *of_tensor);
            return self.fill_floats([numbers, scales], scale, first, into);
        }
        let rows = first / columns..(first + into.len()).div_ceil(columns);
        let mut numbers = vec![0i8; rows.len() * columns];
        let mut scales_and_zeros = vec![0f32; 2 * rows.len() * groups];
        let (scales, zeros) = scales_and_zeros.split_at_mut(rows.len() * groups);
        self.numbers(rows.clone(), &mut numbers)?;
        self.scales_and_zeros(rows.clone(), scales, zeros)?;
        let start = first - rows.start * columns;
        for (at, into) in (start..).zip(into) {
            let (row, column) = (at / columns, at % columns);
            let group = match &self.of.groups_of {
                Some(groups) => groups[column] as usize,
                None => column / self.of.group,
            };
            let of = row * groups + group;
            *into = V::of_f32((f32::from(numbers[at]) - zeros[of]) * scales[of]);
        }
        Ok(())
    }

    /// Whether values of a part are indexed within the part, so that a row is read once whatever its columns are.
    pub(crate) fn filled_by_part(&self) -> bool {
        let by_place = match &self.of.held {
            IntegerSource::Blocks(_) => false,
            IntegerSource::File { .. } => !self.of.float,
            IntegerSource::Random(_) => true,
        };
        by_place && self.of.groups_of.is_none()
    }

    /// [`Self::fill`] for E2M1, whose zeros have signs.
    fn fill_floats<V: Value>(
        &self,
        [numbers, scales]: [&TensorLocation; 2],
        scale: impl Fn(u8) -> f32,
        first: usize,
        into: &mut [V],
    ) -> Result<(), ModelError> {
        let (columns, groups) = (self.of.columns, self.of.groups());
        let bytes = first / 2..(first + into.len()).div_ceil(2);
        let bytes = self.raw(numbers, bytes.start, bytes.len())?;
        let scales = self.raw(scales, 0, self.of.rows * groups)?;
        for (at, into) in (first..).zip(into) {
            let of = at / columns * groups + at % columns / self.of.group;
            let bits = bytes[at / 2 - first / 2] >> (at % 2 * 4) & 15;
            *into = V::of_f32(mxfp4::value(bits, scale(scales[of])));
        }
        Ok(())
    }

    /// Reads a row of contiguous words.
    fn in_turn(
        &self,
        row: usize,
        read: impl FnOnce(&Self, Range<usize>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let of_matrix = self.of.shape[self.of.shape.len() - 2];
        let place = row / of_matrix * of_matrix + self.layout.place(row % of_matrix, of_matrix);
        read(&Self { layout: MatrixLayout::default(), ..*self }, place..place + 1)
    }

    /// Values of some rows at one index of the other dimension, where eight rows are interleaved in a word.
    fn interleaved(
        &self,
        of: &TensorLocation,
        along: usize,
        rows: &Range<usize>,
    ) -> Result<impl Iterator<Item = u32>, ModelError> {
        let (first, end) = (rows.start / 8, rows.end.div_ceil(8));
        let across = self.of.rows.div_ceil(8);
        let words: Vec<u32> = words(self.bytes(of, along * across + first, end - first)?).collect();
        let bits = move |row: usize| words[row / 8 - first] >> (4 * INTERLEAVED[row % 8]) & 15;
        Ok(rows.clone().map(bits))
    }

    /// `count` words of a tensor starting at `first`, from the file's mapping: there are many short scattered pieces.
    fn bytes(&self, of: &TensorLocation, first: usize, count: usize) -> Result<&[u8], ModelError> {
        self.count(4 * count);
        self.mapped(of, first, count)
    }

    /// [`Self::bytes`] without counting progress.
    fn mapped(&self, of: &TensorLocation, first: usize, count: usize) -> Result<&[u8], ModelError> {
        self.unread(of, 4 * first, 4 * count)
    }

    /// `count` bytes of a tensor starting at `first`.
    fn raw(&self, of: &TensorLocation, first: usize, count: usize) -> Result<&[u8], ModelError> {
        self.count(count);
        self.unread(of, first, count)
    }

    fn unread(&self, of: &TensorLocation, first: usize, count: usize) -> Result<&[u8], ModelError> {
        let shard = &self.shards[of.shard];
        let start = of.bytes.start + first;
        let bytes = shard.file.get(start..start + count);
        bytes.ok_or_else(|| self.wrong(&shard.path, "ends before its last number"))
    }

    fn count(&self, bytes: usize) {
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Path of the file, the first one if there are several.
    fn path(&self) -> &Path {
        let shard = match &self.of.held {
            IntegerSource::File { numbers, .. } => self.shards.get(numbers.shard),
            IntegerSource::Blocks(_) => self.shards.first(),
            IntegerSource::Random(_) => None,
        };
        shard.map_or(Path::new("random model"), |shard| &shard.path)
    }

    fn wrong(&self, path: &Path, what: &str) -> ModelError {
        ModelError::weights(path, format!("tensor `{}` {what}", self.name))
    }
}

/// A column range of rows of `width` values.
fn some_columns<T: Copy>(whole: &[T], width: usize, columns: Range<usize>, into: &mut [T]) {
    for (into, row) in into.chunks_exact_mut(columns.len()).zip(whole.chunks_exact(width)) {
        into.copy_from_slice(&row[columns.clone()]);
    }
}

/// Words of a file, which is little-endian on every machine.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
pub(crate) mod tests;
