//! The location of a parameter's rows in a GGUF file, whose converter stacks, splits and interleaves tensors.

use super::blocks::{self, Kind, LARGEST};
use super::file::Tensor;
use crate::ModelError;
use crate::checkpoint::Shard;
use crate::values::Value;
use architectures::GgmlType;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A parameter of a model.
#[derive(Debug, Clone)]
pub(crate) struct GgufParam {
    pub(crate) layout: RowLayout,
    /// Values per row; a vector has rows of one value.
    pub(crate) columns: usize,
    /// Whether the file contains `-exp(x)` for the checkpoint's x.
    pub(crate) exponential: bool,
}

/// The layout of its rows.
#[derive(Debug, Clone)]
pub(crate) enum RowLayout {
    /// Consecutive rows of a tensor, starting at one.
    Rows(Tensor, usize),
    /// Heads of this many rows, with rows of the first and the second half interleaved: llama.cpp rotates adjacent
    /// pairs.
    Interleaved(Tensor, usize),
    /// Matrices of this many rows, alternating between tensors: gate and up of an expert, then of the next one.
    Turns(Vec<Tensor>, usize),
    /// For each head the transpose of a key matrix, then a value matrix.
    Latent { keys: Tensor, values: Tensor },
}

/// The location of a row.
enum Source<'a> {
    /// A row of a tensor, and the number of consecutive rows from it on.
    Rows(&'a Tensor, usize, usize),
    /// Values of a tensor from an index on, with a stride.
    Column(&'a Tensor, usize, usize),
}

thread_local! {
    /// Buffer for bytes of a file.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl GgufParam {
    /// The tensors it is made of.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        match &self.layout {
            RowLayout::Rows(of, _) | RowLayout::Interleaved(of, _) => vec![of],
            RowLayout::Turns(parts, _) => parts.iter().collect(),
            RowLayout::Latent { keys, values } => vec![keys, values],
        }
    }

    /// Its block type, if all rows share one.
    pub(crate) fn block(&self) -> Option<&'static GgmlType> {
        let mut kinds = self.tensors().into_iter().map(|tensor| tensor.kind);
        let Some(Kind::Blocks(block)) = kinds.next() else { return None };
        let alike = kinds.all(|kind| kind == Kind::Blocks(block));
        // Blocks have no place for a second scale.
        let scaled = self.tensors().into_iter().any(|tensor| !tensor.scales.is_empty());
        (alike && !scaled && !matches!(self.layout, RowLayout::Latent { .. })).then_some(block)
    }

    fn source(&self, row: usize) -> Source<'_> {
        match &self.layout {
            RowLayout::Rows(of, first) => {
                let row = first + row;
                Source::Rows(of, row, of.len() / self.columns - row)
            }
            RowLayout::Interleaved(of, head) => {
                let (nth, inside) = (row / head, row % head);
                let (half, pair) = (inside / (head / 2), inside % (head / 2));
                Source::Rows(of, nth * head + 2 * pair + half, 1)
            }
            RowLayout::Turns(parts, rows) => {
                let (turn, inside) = (row / rows, row % rows);
                let matrix = turn / parts.len();
                Source::Rows(&parts[turn % parts.len()], matrix * rows + inside, rows - inside)
            }
            RowLayout::Latent { keys, values } => {
                let (nope, dim) = (keys.columns(), values.shape[values.shape.len() - 2]);
                let (head, inside) = (row / (nope + dim), row % (nope + dim));
                match inside.checked_sub(nope) {
                    Some(inside) => Source::Rows(values, head * dim + inside, dim - inside),
                    None => Source::Column(keys, head * self.columns * nope + inside, nope),
                }
            }
        }
    }

    /// Fills a slice with values starting at `first`.
    ///
    /// # Errors
    /// [`ModelError::File`] when a file cannot be read.
    pub(crate) fn fill<V: Value>(
        &self,
        (shards, read): (&[Shard], &AtomicU64),
        first: usize,
        into: &mut [V],
    ) -> Result<(), ModelError> {
        if self.exponential {
            let mut rates = vec![0f32; into.len()];
            Self { exponential: false, ..self.clone() }.fill((shards, read), first, &mut rates)?;
            let logarithm = |rate: f32| V::of_f32((-f64::from(rate)).ln() as f32);
            into.iter_mut().zip(rates).for_each(|(into, rate)| *into = logarithm(rate));
            return Ok(());
        }
        let mut at = 0;
        while at < into.len() {
            let (row, column) = ((first + at) / self.columns, (first + at) % self.columns);
            let rest = into.len() - at;
            let count = match self.source(row) {
                Source::Rows(of, row, rows) => {
                    let count = rest.min(rows * self.columns - column);
                    let start = row * self.columns + column;
                    fill(of, (shards, read), start, &mut into[at..at + count])?;
                    count
                }
                Source::Column(of, start, apart) => {
                    let count = rest.min(self.columns - column);
                    for (nth, into) in (column..).zip(&mut into[at..at + count]) {
                        let into = std::slice::from_mut(into);
                        fill(of, (shards, read), start + nth * apart, into)?;
                    }
                    count
                }
            };
            at += count;
        }
        Ok(())
    }

    /// Iterates over the blocks of some rows, in order.
    ///
    /// # Errors
    /// As [`GgufParam::fill`].
    pub(crate) fn blocks(
        &self,
        (shards, read): (&[Shard], &AtomicU64),
        rows: Range<usize>,
        mut of: impl FnMut(&'static GgmlType, &[u8]),
    ) -> Result<(), ModelError> {
        let mut row = rows.start;
        while row < rows.end {
            let Source::Rows(tensor, from, count) = self.source(row) else { return Ok(()) };
            let Kind::Blocks(block) = tensor.kind else { return Ok(()) };
            let count = count.min(rows.end - row);
            let of_row = self.columns / block.values() * block.bytes();
            let start = tensor.bytes.start + from * of_row;
            with_bytes((shards, read), tensor, start, count * of_row, |bytes| {
                bytes.chunks_exact(block.bytes()).for_each(|bytes| of(block, bytes));
            })?;
            row += count;
        }
        Ok(())
    }
}

/// Reads values of a tensor starting at `first`; the range is valid.
fn fill<V: Value>(
    of: &Tensor,
    from: (&[Shard], &AtomicU64),
    first: usize,
    into: &mut [V],
) -> Result<(), ModelError> {
    let (values, size) = (of.kind.values(), of.kind.bytes());
    let blocks = first / values..(first + into.len()).div_ceil(values);
    let start = of.bytes.start + blocks.start * size;
    with_bytes(from, of, start, blocks.len() * size, |bytes| {
        let Kind::Blocks(block) = of.kind else {
            const RUN: usize = LARGEST;
            let mut run = [0f32; RUN];
            for (into, bytes) in into.chunks_mut(RUN).zip(bytes.chunks(RUN * size)) {
                blocks::plain(of.kind, bytes, &mut run);
                into.iter_mut().zip(&run).for_each(|(into, value)| *into = V::of_f32(*value));
            }
            return;
        };
        let mut run = [0f32; LARGEST];
        let mut skipped = first % values;
        let part = of.len() / of.scales.len().max(1);
        let mut at = blocks.start * values;
        let mut rest = into;
        for bytes in bytes.chunks_exact(size) {
            blocks::values(block, bytes, &mut run[..values]);
            if let Some(scale) = of.scales.get(at / part) {
                run[..values].iter_mut().for_each(|value| *value *= scale);
            }
            at += values;
            let count = rest.len().min(values - skipped);
            let (own, behind) = rest.split_at_mut(count);
            let of = &run[skipped..skipped + count];
            own.iter_mut().zip(of).for_each(|(into, value)| *into = V::of_f32(*value));
            (rest, skipped) = (behind, 0);
        }
    })
}

fn with_bytes(
    (shards, read): (&[Shard], &AtomicU64),
    of: &Tensor,
    start: usize,
    len: usize,
    then: impl FnOnce(&[u8]),
) -> Result<(), ModelError> {
    /// Smaller reads use the mapping instead of a read call: they may be one of many scattered pieces.
    const FEW: usize = 4096;
    let shard = &shards[of.shard];
    if let Some(bytes) = shard.file.get(start..start + len).filter(|_| len < FEW) {
        read.fetch_add(len as u64, Ordering::Relaxed);
        then(bytes);
        return Ok(());
    }
    BYTES.with_borrow_mut(|bytes| {
        bytes.resize(len, 0);
        let done = shard.file.read_at(start, bytes);
        done.map_err(|error| ModelError::file(&shard.path, error))?;
        read.fetch_add(len as u64, Ordering::Relaxed);
        then(bytes);
        Ok(())
    })
}
