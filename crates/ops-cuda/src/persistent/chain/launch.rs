//! The phases of one launch, as they are put into it.

use super::super::form::MOST_PHASES;
use super::super::record::{Kind, Record};
use super::PACKET;

/// Whether what the first phase reads from memory may be overwritten. Blocks do not meet: one that is slow may still read there while others
/// are phases ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// No.
    Maybe,
    /// Each block that reads there has handed something on behind it.
    HandedOn,
    /// A block that writes has waited for all of that, by itself or through those that it waits for.
    Waited,
    /// Nobody waits for some of it.
    Unknown,
}

impl Read {
    /// Behind a phase of such a kind that does or does not wait for all that the one ahead of it makes.
    fn behind(self, kind: Kind, waits_for_all: bool) -> Self {
        // Of a norm every block reads x, and of a router's logits every block those, but only some have columns to hand on. All have columns
        // of what experts make on their way down.
        let hands_on = matches!(kind, Kind::Linear | Kind::Scan | Kind::Down);
        match self {
            Self::Maybe if hands_on => Self::HandedOn,
            Self::HandedOn if !waits_for_all => Self::Unknown,
            // A head waits for its own columns: who takes all heads waits for all of these.
            Self::HandedOn if kind != Kind::Scan => Self::Waited,
            now => now,
        }
    }
}

/// The records of a launch.
#[derive(Debug)]
pub(super) struct Launched {
    pub(super) records: Vec<Record>,
    /// Phases of the launches ahead of it.
    before: usize,
    read: Read,
}

impl Launched {
    /// A launch that begins with these, which take nothing from others but each other.
    pub(super) fn new(records: &[Record], before: usize, packets: &impl Fn(usize) -> u64) -> Self {
        let mut made = Self { records: Vec::new(), before, read: Read::Maybe };
        for record in records {
            made.push(record, packets);
        }
        made
    }

    /// How many phases there are with those of the launches ahead.
    pub(super) fn count(&self) -> usize {
        self.before + self.records.len()
    }

    /// Makes a router the business of the norm ahead of it; whether that could be.
    pub(super) fn takes_in(&mut self, records: &[Record]) -> bool {
        let [router] = records else { return false };
        self.is_clear(router, self.read)
            && self.records.last_mut().is_some_and(|norm| norm.takes_in(router))
    }

    /// Puts these behind the others; whether that could be.
    pub(super) fn takes(&mut self, records: &[Record], packets: &impl Fn(usize) -> u64) -> bool {
        let (Some(ahead), [first, ..]) = (self.records.last(), records) else { return false };
        if self.records.len() + records.len() > MOST_PHASES || first.takes(ahead).is_none() {
            return false;
        }
        // What the others of them wait for is at least that.
        let read = self.read.behind(first.kind, first.waits_for_all(ahead));
        if !records.iter().all(|record| self.is_clear(record, read)) {
            return false;
        }
        for record in records {
            self.push(record, packets);
        }
        true
    }

    /// Whether a phase leaves alone what others may still read or write, and adds to nothing that they do.
    ///
    /// Two buffers that are the residual stream in turn are so: what a layer's experts read the next layer's write, but all of these phases deal
    /// its columns alike, so they are the same threads' in their order; and the launch's first phase, which reads x by other threads, is behind
    /// all blocks by then.
    fn is_clear(&self, record: &Record, read: Read) -> bool {
        let first = self.records.first().map(Record::read_memory).unwrap_or_default();
        let overwrites = record.stored().iter().any(|stored| first.iter().any(|x| stored.meets(x)));
        (read == Read::Waited || !overwrites)
            && self.records.iter().all(|ahead| record.shares_with(ahead))
    }

    /// Puts a phase behind the others, with packets from the last one if it takes some.
    fn push(&mut self, record: &Record, packets: &impl Fn(usize) -> u64) {
        let mut record = record.clone();
        let from = packets(self.count().saturating_sub(1));
        let waits = self.records.last().is_none_or(|ahead| record.waits_for_all(ahead));
        self.read = self.read.behind(record.kind, waits);
        if let Some(ahead) = self.records.last_mut()
            && let Some(taken) = record.takes(ahead)
        {
            ahead.point("packets", from);
            let columns = if ahead.is_wide() { 1 } else { 2 };
            for (field, column) in taken {
                record.point(field, from + (PACKET * (column / columns)) as u64);
            }
            if record.kind == Kind::Up {
                record.set("local", 1);
            }
        }
        self.records.push(record);
    }
}
