//! Sorts with little machine code, for lists that are not large.
//!
//! The standard library's sorts are compiled for each element type and comparison, some 5 kB each: 186 copies were 3 %
//! of the released program. Here the algorithm exists once, over indices; each use adds a comparison and the exchange
//! of two elements. Lists of symbols, merges and routes, which have thousands of elements, use the standard library.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Stable sorts for slices, named after those of the standard library.
pub trait CompactSort<T> {
    /// Sorts by a comparison; equal elements keep their order.
    fn compact_sort_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// Sorts by a key of each element.
    fn compact_sort_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.compact_sort_by(|a, b| key(a).cmp(&key(b)));
    }

    /// Sorts by the elements' own order.
    fn compact_sort(&mut self)
    where
        T: Ord,
    {
        self.compact_sort_by(T::cmp);
    }
}

impl<T> CompactSort<T> for [T] {
    fn compact_sort_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let mut order = order(self.len(), &mut |a, b| compare(&self[a], &self[b]).is_gt());
        // Each cycle of the permutation is one round of exchanges.
        for start in 0..order.len() {
            let mut at = start;
            loop {
                let from = std::mem::replace(&mut order[at], at);
                if from == start {
                    break;
                }
                self.swap(at, from);
                at = from;
            }
        }
    }
}

/// Collects into sorted collections element by element. `collect` sorts all elements first, with a copy of the standard
/// library's sort for each type.
pub trait CompactCollect: Iterator + Sized {
    /// A map of all pairs; on equal keys the last value wins.
    fn compact_map<K: Ord, V>(self) -> BTreeMap<K, V>
    where
        Self: Iterator<Item = (K, V)>,
    {
        let mut map = BTreeMap::new();
        for (key, value) in self {
            map.insert(key, value);
        }
        map
    }

    /// A set of all elements.
    fn compact_set(self) -> BTreeSet<Self::Item>
    where
        Self::Item: Ord,
    {
        let mut set = BTreeSet::new();
        for element in self {
            set.insert(element);
        }
        set
    }
}

impl<I: Iterator> CompactCollect for I {}

/// The indices of `count` elements in sorted order, by a merge sort from runs of one. `is_after(a, b)` returns whether
/// element `a` belongs after element `b`.
fn order(count: usize, is_after: &mut dyn FnMut(usize, usize) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut merged = Vec::with_capacity(count);
    let mut run = 1;
    while run < count {
        merged.clear();
        for pair in order.chunks(2 * run) {
            let (mut left, mut right) = pair.split_at(run.min(pair.len()));
            while let ([a, more_left @ ..], [b, more_right @ ..]) = (left, right) {
                // Equal elements are taken from the left run, which keeps their order.
                let (next, of) = match is_after(*a, *b) {
                    true => (*b, (left, more_right)),
                    false => (*a, (more_left, right)),
                };
                merged.push(next);
                (left, right) = of;
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        std::mem::swap(&mut order, &mut merged);
        run *= 2;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_as_the_standard_library_does() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for count in (0..40).chain([100, 1000]) {
            for below in [1, 3, 1_000_000] {
                // The second number distinguishes equal elements.
                let list: Vec<(u64, usize)> = (0..count).map(|at| (next(below), at)).collect();
                let (mut ours, mut theirs) = (list.clone(), list.clone());
                ours.compact_sort_by_key(|item| item.0);
                theirs.sort_by_key(|item| item.0);
                assert_eq!(ours, theirs);
                let (mut ours, mut theirs) = (list.clone(), list);
                ours.compact_sort_by(|a, b| b.cmp(a));
                theirs.sort_by(|a, b| b.cmp(a));
                assert_eq!(ours, theirs);
                ours.compact_sort();
                theirs.sort();
                assert_eq!(ours, theirs);
            }
        }
    }

    #[test]
    fn collects_as_the_standard_library_does() {
        let pairs = [(3, 'a'), (1, 'b'), (3, 'c'), (2, 'd')];
        assert_eq!(pairs.into_iter().compact_map(), BTreeMap::from(pairs));
        let keys = pairs.map(|(key, _)| key);
        assert_eq!(keys.into_iter().compact_set(), BTreeSet::from(keys));
    }

    #[test]
    fn a_comparison_that_is_no_order_still_keeps_every_element() {
        let mut list: Vec<String> = (0..50).map(|number| number.to_string()).collect();
        let mut calls = 0;
        list.compact_sort_by(|_, _| {
            calls += 1;
            if calls % 3 == 0 { Ordering::Less } else { Ordering::Greater }
        });
        list.sort_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(list, (0..50).map(|number| number.to_string()).collect::<Vec<_>>());
    }
}
