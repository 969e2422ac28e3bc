//! Beginnings of prompts that were read before: their states in slots of their own, for requests that begin alike.
//!
//! Attention's keys and values can be shared up to any block, a recurrent state only where somebody kept it, and it is as large
//! as the keys and values of thousands of tokens. So states are kept where they are likely to be wanted: where a prompt says that
//! others begin like it, where it parts from one that was read before, at lengths that double, and near the end of a long one.

use super::Live;
use crate::Pages;
use crate::pages::BLOCK;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

/// Ends of blocks that are remembered, twice as many at most.
const REMEMBERED: usize = 1 << 17;

/// A snapshot that a prompt begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    end: u64,
    pub(super) slot: usize,
    /// Tokens that it has read.
    pub(super) read: usize,
}

struct Snapshot {
    slot: usize,
    tokens: Vec<u32>,
    /// What its next user need not read, beyond what was there when it was made.
    saves: usize,
    used: u64,
}

/// Snapshots of states, by the tokens that they have read.
pub(super) struct Prefixes {
    most: usize,
    /// The first length at which a long prompt's state is kept, and then at each double of it.
    first: usize,
    held: HashMap<u64, Snapshot>,
    /// Ends of blocks of prompts that were read, the later ones apart: whole halves are forgotten.
    seen: [HashSet<u64>; 2],
    /// Uses so far.
    clock: u64,
    /// Tokens whose keys and values take as many bytes as a state.
    state_tokens: u64,
    keys: RandomState,
}

impl Prefixes {
    /// At most so many snapshots, each with a state as large as the keys and values of so many tokens, on an engine that reads
    /// best in steps of so many tokens.
    pub(super) fn new(most: usize, state_tokens: u64, step: usize) -> Self {
        // A chunk that ends earlier costs a pass: the longer a step, the more tokens that is worth.
        let first = (step / 8).next_multiple_of(BLOCK).max(BLOCK);
        let (held, seen) = (HashMap::new(), Default::default());
        Self { most, first, held, seen, clock: 0, state_tokens, keys: RandomState::new() }
    }

    /// Tokens that are worth a state near the end of a prompt, or a wait for one that reads them already.
    pub(super) fn worth(&self) -> usize {
        (self.first / 4).max(BLOCK)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.held.len() >= self.most
    }

    /// What names each beginning of a prompt that ends with a block and leaves something to read.
    pub(super) fn ends(&self, prompt: &[u32]) -> Vec<u64> {
        if self.most == 0 {
            return Vec::new();
        }
        let whole = prompt.len().saturating_sub(1) / BLOCK * BLOCK;
        let ends = prompt[..whole].chunks_exact(BLOCK).scan(0, |end, block| {
            *end = self.keys.hash_one((*end, block));
            Some(*end)
        });
        ends.collect()
    }

    /// The longest snapshot that a prompt begins with.
    pub(super) fn longest(&self, live: &Live) -> Option<Found> {
        let (prompt, _) = live.prompt();
        live.ends.iter().rev().find_map(|end| {
            let Snapshot { slot, tokens, .. } = self.held.get(end)?;
            let found = Found { end: *end, slot: *slot, read: tokens.len() };
            prompt.starts_with(tokens).then_some(found)
        })
    }

    /// Lets a request begin there, with the lengths at which its state is to be kept, in their order. Gives how many tokens more
    /// another prompt began with: their state is not there.
    pub(super) fn begin(&mut self, live: &mut Live, found: Option<Found>) -> usize {
        self.clock += 1;
        if let Some(snapshot) = found.and_then(|found| self.held.get_mut(&found.end)) {
            snapshot.used = self.clock;
        }
        let read = found.map_or(0, |found| found.read);
        let seen = |end: &&u64| self.seen.iter().any(|half| half.contains(*end));
        // What it has seen itself, before it gave its slot away, says nothing of others.
        let seen =
            if live.is_new() { live.ends.iter().take_while(seen).count() * BLOCK } else { 0 };
        for end in &live.ends {
            self.remember(*end);
        }
        let last = live.ends.len() * BLOCK;
        let doubles = std::iter::successors(Some(self.first), |length| length.checked_mul(2));
        let mut marks: Vec<usize> = doubles.take_while(|length| *length <= last).collect();
        marks.extend([seen, live.prompt().1.min(last) / BLOCK * BLOCK]);
        marks.retain(|length| *length > read);
        marks.sort_unstable();
        marks.dedup();
        let before = marks.last().copied().unwrap_or(read);
        if last >= self.first && last - before >= self.worth() {
            marks.push(last);
        }
        live.begin_behind(read, marks);
        seen.saturating_sub(read)
    }

    fn remember(&mut self, end: u64) {
        let [young, old] = &mut self.seen;
        if young.len() >= REMEMBERED {
            *old = std::mem::take(young);
        }
        young.insert(end);
    }

    /// Whether there is a snapshot of this beginning, or another one that is named alike.
    pub(super) fn has(&self, end: u64) -> bool {
        self.held.contains_key(&end)
    }

    /// Keeps what a slot has read.
    pub(super) fn add(&mut self, end: u64, slot: usize, live: &Live) {
        let tokens: Vec<u32> = live.known().collect();
        let saves = tokens.len() - live.reused;
        self.held.insert(end, Snapshot { slot, tokens, saves, used: self.clock });
    }

    /// The slot of the snapshot that saves least for what it takes and has not been used for longest; it is no longer kept. Where
    /// `blocks` are wanted, one that alone has some.
    pub(super) fn least(&mut self, pages: &Pages, blocks: bool) -> Option<usize> {
        let worth = |snapshot: &Snapshot| {
            let own = pages.own_blocks(snapshot.slot) * BLOCK;
            let age = self.clock - snapshot.used + 1;
            snapshot.saves as f64 / (self.state_tokens + own as u64).max(1) as f64 / age as f64
        };
        let may = |snapshot: &Snapshot| !blocks || pages.own_blocks(snapshot.slot) > 0;
        let least = self.held.iter().filter(|(_, snapshot)| may(snapshot));
        let least =
            least.min_by(|a, b| worth(a.1).total_cmp(&worth(b.1)).then(a.1.slot.cmp(&b.1.slot)));
        let end = *least?.0;
        self.held.remove(&end).map(|snapshot| snapshot.slot)
    }
}
