//! Where the rows of a parameter lie in a GGUF file, whose converter stacks, splits and interleaves what checkpoints have.

use super::blocks::{self, Kind, LARGEST};
use super::file::Tensor;
use crate::ModelError;
use crate::checkpoint::Shard;
use crate::values::Value;
use architectures::Block;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A parameter of a model.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) lie: Lie,
    /// Values of a row; those of a vector are rows of one.
    pub(crate) columns: usize,
    /// Whether the file has `-exp(x)` where a checkpoint has x.
    pub(crate) exponential: bool,
}

/// How its rows lie.
#[derive(Debug, Clone)]
pub(crate) enum Lie {
    /// One behind the other, from one on.
    Rows(Tensor, usize),
    /// Of each head of so many rows, one of its first half and one of its second in turns: llama.cpp rotates neighbours.
    Interleaved(Tensor, usize),
    /// Matrices of so many rows of each tensor in turns: the gate's of an expert, the up's, and the next expert's.
    Turns(Vec<Tensor>, usize),
    /// Of each head the transpose of a matrix of keys, then one of values.
    Latent { keys: Tensor, values: Tensor },
}

/// Where a row lies.
enum Source<'a> {
    /// At a row of a tensor, and how many more lie behind it, itself with them.
    Rows(&'a Tensor, usize, usize),
    /// From a value of a tensor on, so far apart.
    Column(&'a Tensor, usize, usize),
}

thread_local! {
    /// Bytes of a file.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Placed {
    /// The tensors that it is made of.
    pub(crate) fn tensors(&self) -> Vec<&Tensor> {
        match &self.lie {
            Lie::Rows(of, _) | Lie::Interleaved(of, _) => vec![of],
            Lie::Turns(parts, _) => parts.iter().collect(),
            Lie::Latent { keys, values } => vec![keys, values],
        }
    }

    /// The type of its blocks, where all of its rows are in blocks of one.
    pub(crate) fn block(&self) -> Option<Block> {
        let mut kinds = self.tensors().into_iter().map(|tensor| tensor.kind);
        let Some(Kind::Blocks(block)) = kinds.next() else { return None };
        let alike = kinds.all(|kind| kind == Kind::Blocks(block));
        (alike && !matches!(self.lie, Lie::Latent { .. })).then_some(block)
    }

    fn source(&self, row: usize) -> Source<'_> {
        match &self.lie {
            Lie::Rows(of, first) => {
                let row = first + row;
                Source::Rows(of, row, of.len() / self.columns - row)
            }
            Lie::Interleaved(of, head) => {
                let (nth, inside) = (row / head, row % head);
                let (half, pair) = (inside / (head / 2), inside % (head / 2));
                Source::Rows(of, nth * head + 2 * pair + half, 1)
            }
            Lie::Turns(parts, rows) => {
                let (turn, inside) = (row / rows, row % rows);
                let matrix = turn / parts.len();
                Source::Rows(&parts[turn % parts.len()], matrix * rows + inside, rows - inside)
            }
            Lie::Latent { keys, values } => {
                let (nope, dim) = (keys.columns(), values.shape[values.shape.len() - 2]);
                let (head, inside) = (row / (nope + dim), row % (nope + dim));
                match inside.checked_sub(nope) {
                    Some(inside) => Source::Rows(values, head * dim + inside, dim - inside),
                    None => Source::Column(keys, head * self.columns * nope + inside, nope),
                }
            }
        }
    }

    /// Writes values from `first` on over those of a slice.
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

    /// Goes through the blocks of some rows, in order.
    ///
    /// # Errors
    /// As [`Placed::fill`].
    pub(crate) fn blocks(
        &self,
        (shards, read): (&[Shard], &AtomicU64),
        rows: Range<usize>,
        mut of: impl FnMut(Block, &[u8]),
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

/// Values of a tensor from `first` on, which it has.
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
        let mut rest = into;
        for bytes in bytes.chunks_exact(size) {
            blocks::values(block, bytes, &mut run[..values]);
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
    /// Fewer are looked at where the file is mapped: they may be one of many that lie apart.
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
