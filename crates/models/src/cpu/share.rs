//! The partial sum that one rank of a split model adds to the residual stream.

use super::rows::{add_scaled, sum_of_squares};
use crate::program::RmsNorm;
use crate::{Architecture, ModelError, Ranks};
use device::HostBuffer;
use std::slice::ChunksExact;

pub(super) struct Share<'a> {
    ranks: &'a Ranks,
    /// This rank's first row of the logits, and the number of all rows.
    head: [usize; 2],
    hidden: usize,
    /// Partial sums since the last all-reduce `[tokens, hidden]`; if a norm is pending, the sum of squares of each
    /// token's row follows `[tokens]`.
    added: Vec<f32>,
    /// The pending norm: the full row's width, and the epsilon.
    norm: Option<(usize, f64)>,
}

impl<'a> Share<'a> {
    pub(super) fn new(ranks: &'a Ranks, of: &Architecture) -> Self {
        let head = [of.first_of_head(), of.vocabulary];
        Self { ranks, head, hidden: of.hidden, added: Vec::new(), norm: None }
    }

    /// Adds `[tokens, hidden]`; if it was computed from rows with a pending norm, also their squares.
    pub(super) fn add(&mut self, made: &[f32], spread: Option<(&RmsNorm, ChunksExact<'_, f32>)>) {
        match self.added.is_empty() {
            true => self.added.extend_from_slice(made),
            false => add_scaled(&mut self.added, made, 1.0),
        }
        if let Some((norm, rows)) = spread {
            let width = norm.weight.len() * norm.ranks;
            self.norm = Some((width, norm.norm.eps));
            self.added.extend(rows.map(|row| sum_of_squares(row) as f32));
        }
    }

    /// All-reduces and adds the sum, times a factor, to the residual stream `[tokens, hidden]`.
    pub(super) fn sum(&mut self, x: &mut [f32], factor: f32) -> Result<(), ModelError> {
        let (mut sums, norm) = (std::mem::take(&mut self.added), self.norm.take());
        if sums.is_empty() {
            return Ok(());
        }
        self.ranks.all_reduce(&mut sums)?;
        let (sums, squares) = sums.split_at(x.len());
        let Some((width, eps)) = norm else {
            add_scaled(x, sums, factor);
            return Ok(());
        };
        let rows = x.chunks_exact_mut(self.hidden).zip(sums.chunks_exact(self.hidden));
        for ((x, sum), squares) in rows.zip(squares) {
            let size = (f64::from(*squares) / width as f64 + eps).sqrt();
            add_scaled(x, sum, (f64::from(factor) / size) as f32);
        }
        Ok(())
    }

    /// All-reduces values of which each rank has some in place.
    pub(super) fn sum_all<'v>(
        &self,
        values: impl Iterator<Item = &'v mut [f32]>,
    ) -> Result<(), ModelError> {
        let values: Vec<&mut [f32]> = values.collect();
        let mut all: Vec<f32> = values.iter().flat_map(|values| values.iter().copied()).collect();
        self.ranks.all_reduce(&mut all)?;
        let mut rest = &all[..];
        for values in values {
            let (sums, behind) = rest.split_at(values.len());
            values.copy_from_slice(sums);
            rest = behind;
        }
        Ok(())
    }

    /// Logits of all tokens, gathered from the ranks' columns, with their count.
    pub(super) fn whole_rows(
        &self,
        own: &[f32],
        width: usize,
    ) -> Result<(HostBuffer<f32>, usize), ModelError> {
        let [first, vocabulary] = self.head;
        let rows = own.len() / width;
        let mut all = HostBuffer::filled(0f32, rows * vocabulary);
        for (all, own) in all.chunks_exact_mut(vocabulary).zip(own.chunks_exact(width)) {
            all[first..first + width].copy_from_slice(own);
        }
        // The other ranks have zeros there.
        self.ranks.all_reduce(&mut all)?;
        Ok((all, vocabulary))
    }
}
