//! Beginnings of prompts that were read before: their states in slots of their own, for requests that begin alike.
//!
//! Attention's keys and values can be shared up to any block, a recurrent state only where somebody kept it, and it is as large
//! as the keys and values of thousands of tokens. So states are kept where they are likely to be wanted: where a prompt says that
//! others begin like it, where it parts from one that was read before, at lengths that double, near the end of a long one, and where
//! a turn of a conversation ended, whatever its length.
//!
//! One that loses its slot may have a copy on the host, which it keeps when it gets a slot again: then it loses that at no cost.

use super::Live;
use crate::pages::BLOCK;
use crate::{Pages, Saved};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

/// Ends of blocks that are remembered, twice as many at most.
const REMEMBERED: usize = 1 << 17;

/// A snapshot that a prompt begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) end: u64,
    /// None where it is on the host alone.
    pub(super) slot: Option<usize>,
    /// Tokens that it has read.
    pub(super) read: usize,
}

/// On the engine, on the host, or both.
struct Snapshot {
    slot: Option<usize>,
    saved: Option<Saved>,
    tokens: Vec<u32>,
    /// Whether a turn ended there.
    turn: bool,
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

    /// Whether anything is kept at all.
    pub(super) fn keeps(&self) -> bool {
        self.most > 0
    }

    /// Snapshots that have a slot.
    pub(super) fn len(&self) -> usize {
        self.held.values().filter(|snapshot| snapshot.slot.is_some()).count()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most
    }

    /// How many copies there are on the host, and their bytes.
    pub(super) fn saved(&self) -> (usize, u64) {
        let saved = self.held.values().filter_map(|snapshot| snapshot.saved.as_ref());
        saved.fold((0, 0), |(count, bytes), saved| (count + 1, bytes + saved.bytes()))
    }

    /// What names each beginning of a prompt that ends with a block and leaves something to read.
    pub(super) fn ends(&self, prompt: &[u32]) -> Vec<u64> {
        if self.most == 0 {
            return Vec::new();
        }
        let whole = prompt.len().saturating_sub(1) / BLOCK * BLOCK;
        self.names(&prompt[..whole]).collect()
    }

    /// What names each beginning that ends with a block, or with the last token.
    fn names(&self, tokens: &[u32]) -> impl Iterator<Item = u64> {
        tokens.chunks(BLOCK).scan(0, |end, block| {
            *end = self.keys.hash_one((*end, block));
            Some(*end)
        })
    }

    /// The longest snapshot that a prompt begins with, which leaves something to read; of those with a slot alone where that is asked.
    pub(super) fn longest(&self, live: &Live, with_slot: bool) -> Option<Found> {
        let (prompt, _) = live.prompt();
        let begins = |snapshot: &Snapshot| {
            let tokens = &snapshot.tokens;
            (snapshot.slot.is_some() || !with_slot)
                && tokens.len() < prompt.len()
                && prompt.starts_with(tokens)
        };
        let found = self.held.iter().filter(|(_, snapshot)| begins(snapshot));
        let longest = found.max_by_key(|(_, snapshot)| snapshot.tokens.len());
        longest.map(|(end, Snapshot { slot, tokens, .. })| Found {
            end: *end,
            slot: *slot,
            read: tokens.len(),
        })
    }

    /// Lets a request begin there, with the lengths at which its state is to be kept, in their order. Gives how many tokens more
    /// another prompt began with: their state is not there.
    pub(super) fn begin(&mut self, live: &mut Live, found: Option<Found>) -> usize {
        self.clock += 1;
        if let Some(snapshot) = found.and_then(|found| self.held.get_mut(&found.end)) {
            snapshot.used = self.clock;
        }
        live.behind = found.map(|found| found.end);
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
        // One that comes from the host is to have a slot again. Behind a turn's end the next one's is what is wanted.
        if found.is_some_and(|found| found.slot.is_none()) && read.is_multiple_of(BLOCK) {
            marks.push(read);
        }
        marks.sort_unstable();
        marks.dedup();
        let before = marks.last().copied().unwrap_or(read);
        if last >= self.first && last.saturating_sub(before) >= self.worth() {
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

    /// Whether a slot has a snapshot of this beginning, or of another one that is named alike.
    pub(super) fn has(&self, end: u64) -> bool {
        self.slot(end).is_some()
    }

    /// The slot of a snapshot.
    pub(super) fn slot(&self, end: u64) -> Option<usize> {
        self.held.get(&end)?.slot
    }

    /// Keeps what a slot has read.
    pub(super) fn add(&mut self, end: u64, slot: usize, live: &Live) {
        let tokens: Vec<u32> = live.known().collect();
        if let Some(snapshot) = self.held.get_mut(&end).filter(|held| held.tokens == tokens) {
            snapshot.slot = Some(slot);
            return;
        }
        // One that came from the host has just been dropped there.
        let saves = match tokens.len() - live.reused {
            0 => tokens.len(),
            saves => saves,
        };
        let (slot, used) = (Some(slot), self.clock);
        self.held.insert(end, Snapshot { slot, saved: None, tokens, turn: false, saves, used });
    }

    /// What names all that a request has read, where a snapshot of it has still to be made.
    pub(super) fn turn(&self, live: &Live) -> Option<u64> {
        let tokens: Vec<u32> = live.known().collect();
        let end = if self.keeps() { self.names(&tokens).last() } else { None };
        end.filter(|end| !self.has(*end))
    }

    /// Keeps what a slot has read up to the end of a turn. Where that began behind the end of another one, it saves what both do, and
    /// the other one is the first to give way: few conversations are taken up again where they were before.
    pub(super) fn add_turn(&mut self, end: u64, slot: usize, live: &Live) {
        let before = live.behind.and_then(|before| self.held.get_mut(&before));
        let before = before.filter(|before| before.turn);
        let inherited = before.map_or(0, |before| std::mem::take(&mut before.saves));
        self.add(end, slot, live);
        if let Some(snapshot) = self.held.get_mut(&end) {
            snapshot.turn = true;
            snapshot.saves += inherited;
        }
    }

    /// Tokens that the next request to use a snapshot need not read, compared with what it would begin with otherwise.
    pub(super) fn saves(&self, end: u64) -> usize {
        self.held.get(&end).map_or(0, |snapshot| snapshot.saves)
    }

    /// The copy of a snapshot on the host.
    pub(super) fn copy(&self, end: u64) -> Option<&Saved> {
        self.held.get(&end)?.saved.as_ref()
    }

    /// Adds the copy of a snapshot.
    pub(super) fn add_copy(&mut self, end: u64, saved: Saved) {
        if let Some(snapshot) = self.held.get_mut(&end) {
            snapshot.saved = Some(saved);
        }
    }

    /// Takes the slot of a snapshot; it is forgotten where it has no copy.
    pub(super) fn leave(&mut self, end: u64) -> Option<usize> {
        let slot = self.held.get_mut(&end)?.slot.take();
        self.held.retain(|_, snapshot| snapshot.slot.is_some() || snapshot.saved.is_some());
        slot
    }

    /// Drops the copy of a snapshot; it is forgotten where it has no slot.
    pub(super) fn drop_copy(&mut self, end: u64) {
        if let Some(snapshot) = self.held.get_mut(&end) {
            snapshot.saved = None;
        }
        self.held.retain(|_, snapshot| snapshot.slot.is_some() || snapshot.saved.is_some());
    }

    /// Drops the copy that saves least for what it takes and has not been used for longest, where it is worth less than this; whether
    /// there was one. Copies of what has a slot too are worth nothing as long.
    pub(super) fn drop_least_copy(&mut self, than: f64) -> bool {
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

    /// What a snapshot is worth on the host: the tokens that it saves for those that it takes the memory of, by its age.
    pub(super) fn worth_on_host(&self, end: u64) -> f64 {
        self.held.get(&end).map_or(0.0, |snapshot| self.worth_of_copy(snapshot))
    }

    fn worth_of_copy(&self, snapshot: &Snapshot) -> f64 {
        self.worth_for(snapshot, snapshot.tokens.len())
    }

    /// The same where it takes the keys and values of so many tokens, and a state.
    fn worth_for(&self, snapshot: &Snapshot, tokens: usize) -> f64 {
        let age = self.clock - snapshot.used + 1;
        snapshot.saves as f64 / (self.state_tokens + tokens as u64).max(1) as f64 / age as f64
    }

    /// The snapshot with a slot that saves least for what it takes there and has not been used for longest. Where `blocks` are
    /// wanted, one that alone has some.
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
