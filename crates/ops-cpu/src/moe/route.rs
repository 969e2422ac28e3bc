//! The tokens of each expert.

use ops::moe::{MoeProblem, Routes};
use std::cmp::Reverse;
use std::ops::Range;

/// The pairs of a token and an expert of it, by expert.
pub(super) struct Groups {
    /// Local index of each chosen expert of this rank, with its range in `pairs`; experts with the most tokens first.
    pub(super) experts: Vec<(usize, Range<usize>)>,
    /// Indices into `[T, K]`, by expert and then ascending.
    pub(super) pairs: Vec<usize>,
}

impl Groups {
    pub(super) fn of(problem: &MoeProblem, routes: &Routes) -> Self {
        let place_of = |pair: &usize| problem.place_of(routes.chosen[*pair] as usize);
        let mut pairs: Vec<usize> = (0..routes.chosen.len()).collect();
        pairs.retain(|pair| place_of(pair).is_some());
        pairs.sort_by_key(place_of);
        let mut experts: Vec<(usize, Range<usize>)> = Vec::new();
        for (at, pair) in pairs.iter().enumerate() {
            let Some(expert) = place_of(pair) else { continue };
            match experts.last_mut() {
                Some((last, range)) if *last == expert => range.end = at + 1,
                _ => experts.push((expert, at..at + 1)),
            }
        }
        // Experts of many tokens first, so that the last block to start is a small one.
        experts.sort_by_key(|(expert, range)| (Reverse(range.len()), *expert));
        Self { experts, pairs }
    }
}
