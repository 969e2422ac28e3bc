//! The prefix cache: states of prompt prefixes in separate slots, for requests with the same prefix.
//!
//! Keys and values of attention can be shared up to any block. A recurrent state exists only where it was snapshotted,
//! and is as large as the keys and values of thousands of tokens. Snapshots are therefore taken where they are likely
//! to be reused: at the shared length that a request declares, where a prompt diverges from an earlier one, at doubling
//! lengths, near the end of a long prompt, and at the end of each turn of a conversation.
//!
//! An evicted snapshot may have a copy on the host. It keeps the copy when it gets a slot again, so that evicting it
//! once more is free.

use super::ActiveRequest;
use crate::pages::BLOCK;
use crate::{Pages, SavedSequence};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

/// Number of remembered block hashes; at most twice as many.
const REMEMBERED: usize = 1 << 17;

/// A snapshot that is a prefix of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefixMatch {
    pub(super) end: u64,
    /// `None` if it is on the host only.
    pub(super) slot: Option<usize>,
    /// Its length in tokens.
    pub(super) read: usize,
}

/// A snapshot in a slot, on the host, or both.
struct Snapshot {
    slot: Option<usize>,
    saved: Option<SavedSequence>,
    tokens: Vec<u32>,
    /// Whether it is at the end of a turn.
    turn: bool,
    /// Tokens that its next user saves, compared with the snapshots that existed when it was made.
    saves: usize,
    used: u64,
}

/// Snapshots by the hash of their tokens.
pub(super) struct Prefixes {
    most: usize,
    /// The first length at which a long prompt is snapshotted; later ones double.
    first: usize,
    held: HashMap<u64, Snapshot>,
    /// Hashes of prefixes that end at a block boundary, in two generations, of which the older one is dropped as a
    /// whole.
    seen: [HashSet<u64>; 2],
    /// Logical clock of uses.
    clock: u64,
    /// Number of tokens whose keys and values have the size of a state.
    state_tokens: u64,
    keys: RandomState,
}

impl Prefixes {
    /// A cache of at most `most` snapshots for states of the size of `state_tokens` tokens, on an engine with steps of
    /// `step` tokens.
    pub(super) fn new(most: usize, state_tokens: u64, step: usize) -> Self {
        // A snapshot ends a chunk early, which costs a pass; the longer steps are, the more tokens that costs.
        let first = (step / 8).next_multiple_of(BLOCK).max(BLOCK);
        let (held, seen) = (HashMap::new(), Default::default());
        Self { most, first, held, seen, clock: 0, state_tokens, keys: RandomState::new() }
    }

    /// Minimum number of tokens that justify a snapshot near the end of a prompt, or waiting for another request's
    /// snapshot.
    pub(super) fn min_snapshot_tokens(&self) -> usize {
        (self.first / 4).max(BLOCK)
    }

    /// Whether the cache is enabled.
    pub(super) fn is_enabled(&self) -> bool {
        self.most > 0
    }

    /// Snapshots in slots.
    pub(super) fn len(&self) -> usize {
        self.held.values().filter(|snapshot| snapshot.slot.is_some()).count()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// Number of copies on the host, and their bytes.
    pub(super) fn saved(&self) -> (usize, u64) {
        let saved = self.held.values().filter_map(|snapshot| snapshot.saved.as_ref());
        saved.fold((0, 0), |(count, bytes), saved| (count + 1, bytes + saved.bytes()))
    }

    /// Hashes of all prefixes of a prompt that end at a block boundary and leave at least one token.
    pub(super) fn ends(&self, prompt: &[u32]) -> Vec<u64> {
        if self.most == 0 {
            return Vec::new();
        }
        let whole = prompt.len().saturating_sub(1) / BLOCK * BLOCK;
        self.names(&prompt[..whole]).collect()
    }

    /// Hashes of all prefixes that end at a block boundary, or with the last token.
    fn names(&self, tokens: &[u32]) -> impl Iterator<Item = u64> {
        tokens.chunks(BLOCK).scan(0, |end, block| {
            *end = self.keys.hash_one((*end, block));
            Some(*end)
        })
    }

    /// The longest snapshot that is a proper prefix of a request's prompt; with `with_slot` only snapshots in slots.
    pub(super) fn longest(&self, live: &ActiveRequest, with_slot: bool) -> Option<PrefixMatch> {
        let (prompt, _) = live.prompt();
        let begins = |snapshot: &Snapshot| {
            let tokens = &snapshot.tokens;
            (snapshot.slot.is_some() || !with_slot)
                && tokens.len() < prompt.len()
                && prompt.starts_with(tokens)
        };
        let found = self.held.iter().filter(|(_, snapshot)| begins(snapshot));
        let longest = found.max_by_key(|(_, snapshot)| snapshot.tokens.len());
        longest.map(|(end, Snapshot { slot, tokens, .. })| PrefixMatch {
            end: *end,
            slot: *slot,
            read: tokens.len(),
        })
    }

    /// Starts a request from a snapshot and sets the lengths at which it is snapshotted, in order. Returns the tokens
    /// of a longer common prefix with an earlier prompt whose state is missing.
    pub(super) fn begin(&mut self, live: &mut ActiveRequest, found: Option<PrefixMatch>) -> usize {
        self.clock += 1;
        if let Some(snapshot) = found.and_then(|found| self.held.get_mut(&found.end)) {
            snapshot.used = self.clock;
        }
        live.behind = found.map(|found| found.end);
        let read = found.map_or(0, |found| found.read);
        let seen = |end: &&u64| self.seen.iter().any(|half| half.contains(*end));
        // A preempted request has seen its own prefixes, which do not count as shared.
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
        // A snapshot that comes from the host gets a slot again, unless it is the end of a turn: there the end of the
        // next turn is reused.
        if found.is_some_and(|found| found.slot.is_none()) && read.is_multiple_of(BLOCK) {
            marks.push(read);
        }
        marks.sort_unstable();
        marks.dedup();
        let before = marks.last().copied().unwrap_or(read);
        if last >= self.first && last.saturating_sub(before) >= self.min_snapshot_tokens() {
            marks.push(last);
        }
        live.start_after(read, marks);
        seen.saturating_sub(read)
    }

    fn remember(&mut self, end: u64) {
        let [young, old] = &mut self.seen;
        if young.len() >= REMEMBERED {
            *old = std::mem::take(young);
        }
        young.insert(end);
    }

    /// Whether a slot has a snapshot with this hash.
    pub(super) fn has(&self, end: u64) -> bool {
        self.slot(end).is_some()
    }

    /// The slot of a snapshot.
    pub(super) fn slot(&self, end: u64) -> Option<usize> {
        self.held.get(&end)?.slot
    }

    /// Adds a snapshot in a slot.
    pub(super) fn add(&mut self, end: u64, slot: usize, live: &ActiveRequest) {
        let tokens: Vec<u32> = live.known().collect();
        if let Some(snapshot) = self.held.get_mut(&end).filter(|held| held.tokens == tokens) {
            snapshot.slot = Some(slot);
            return;
        }
        // A snapshot that came from the host was just removed there.
        let saves = match tokens.len() - live.reused {
            0 => tokens.len(),
            saves => saves,
        };
        let (slot, used) = (Some(slot), self.clock);
        self.held.insert(end, Snapshot { slot, saved: None, tokens, turn: false, saves, used });
    }

    /// The hash of all tokens that a request has read, unless there is a snapshot with it.
    pub(super) fn turn(&self, live: &ActiveRequest) -> Option<u64> {
        let tokens: Vec<u32> = live.known().collect();
        let end = if self.is_enabled() { self.names(&tokens).last() } else { None };
        end.filter(|end| !self.has(*end))
    }

    /// Adds a snapshot at the end of a turn. If the turn continued an earlier one, it also saves what that one did, and
    /// the earlier one is the first to be evicted: few conversations are resumed at an earlier turn.
    pub(super) fn add_turn(&mut self, end: u64, slot: usize, live: &ActiveRequest) {
        let before = live.behind.and_then(|before| self.held.get_mut(&before));
        let before = before.filter(|before| before.turn);
        let inherited = before.map_or(0, |before| std::mem::take(&mut before.saves));
        self.add(end, slot, live);
        if let Some(snapshot) = self.held.get_mut(&end) {
            snapshot.turn = true;
            snapshot.saves += inherited;
        }
    }

    /// Tokens that the next user of a snapshot saves, compared with the other snapshots.
    pub(super) fn saves(&self, end: u64) -> usize {
        self.held.get(&end).map_or(0, |snapshot| snapshot.saves)
    }

    /// The host copy of a snapshot.
    pub(super) fn copy(&self, end: u64) -> Option<&SavedSequence> {
        self.held.get(&end)?.saved.as_ref()
    }

    /// Adds the host copy of a snapshot.
    pub(super) fn add_copy(&mut self, end: u64, saved: SavedSequence) {
        if let Some(snapshot) = self.held.get_mut(&end) {
            snapshot.saved = Some(saved);
        }
    }

    /// Removes a snapshot from its slot; it is dropped if it has no host copy.
    pub(super) fn leave(&mut self, end: u64) -> Option<usize> {
        let slot = self.held.get_mut(&end)?.slot.take();
        self.held.retain(|_, snapshot| snapshot.slot.is_some() || snapshot.saved.is_some());
        slot
    }

    /// Removes the host copy of a snapshot; it is dropped if it has no slot.
    pub(super) fn drop_copy(&mut self, end: u64) {
        if let Some(snapshot) = self.held.get_mut(&end) {
            snapshot.saved = None;
        }
        self.held.retain(|_, snapshot| snapshot.slot.is_some() || snapshot.saved.is_some());
    }

    /// Drops the host copy of least value (tokens saved per byte, least recently used), if its value is below `than`;
    /// returns false if there is none. Copies of snapshots in slots have no value while they are there.
    pub(super) fn evict_least_copy(&mut self, than: f64) -> bool {
        let worth = |snapshot: &Snapshot| match snapshot.slot {
            Some(_) => 0.0,
            None => self.worth_of_copy(snapshot),
        };
        let copies = self.held.iter().filter(|(_, snapshot)| snapshot.saved.is_some());
        let copies = copies.map(|(end, snapshot)| (*end, worth(snapshot), snapshot.used));
        let least = copies.min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
        let least = least.filter(|(_, worth, _)| *worth < than);
        least.map(|(end, ..)| self.drop_copy(end)).is_some()
    }

    /// The value of a host copy: tokens saved per token of memory, discounted by age.
    pub(super) fn worth_on_host(&self, end: u64) -> f64 {
        self.held.get(&end).map_or(0.0, |snapshot| self.worth_of_copy(snapshot))
    }

    fn worth_of_copy(&self, snapshot: &Snapshot) -> f64 {
        self.worth_for(snapshot, snapshot.tokens.len())
    }

    /// The value of a snapshot that takes a state and the keys and values of `tokens` tokens.
    fn worth_for(&self, snapshot: &Snapshot, tokens: usize) -> f64 {
        let age = self.clock - snapshot.used + 1;
        snapshot.saves as f64 / (self.state_tokens + tokens as u64).max(1) as f64 / age as f64
    }

    /// The snapshot of least value in a slot, least recently used on ties. With `blocks`, only those that have blocks
    /// for themselves.
    pub(super) fn least(&self, pages: &Pages, blocks: bool) -> Option<u64> {
        let least = self.held.iter().filter_map(|(end, snapshot)| {
            let slot = snapshot.slot?;
            let own = pages.own_blocks(slot);
            let may = !blocks || own > 0;
            may.then(|| (*end, self.worth_for(snapshot, own * BLOCK), slot))
        });
        let least = least.min_by(|a, b| a.1.total_cmp(&b.1).then(a.2.cmp(&b.2)));
        least.map(|(end, ..)| end)
    }
}
