//! The stages of one launch, while it is built.

use super::super::form::MOST_PHASES;
use super::super::record::{Kind, Record};
use super::PACKET;

/// Progress of the first stage's reads of global memory, which decides whether a later stage may overwrite that
/// memory. Blocks share no barrier: a slow one may still read while others are several stages ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadProgress {
    /// Some block may still read.
    Maybe,
    /// Each block that reads has sent packets after its reads.
    HandedOn,
    /// A block that writes has waited for all of these packets, directly or through other blocks.
    Waited,
    /// Some of these packets are never waited for.
    Unknown,
}

impl ReadProgress {
    /// The state after a stage of this kind. `waits_for_all`: it waits for all outputs of the previous stage.
    fn after(self, kind: Kind, waits_for_all: bool) -> Self {
        // Every block reads the x of a norm and a router's logits, but only some blocks have output columns there. In
        // a down projection all blocks have output columns.
        let hands_on = matches!(kind, Kind::Linear | Kind::Scan | Kind::Down);
        match self {
            Self::Maybe if hands_on => Self::HandedOn,
            Self::HandedOn if !waits_for_all => Self::Unknown,
            // A head waits only for its own columns, but a stage that reads all heads waits for all of them.
            Self::HandedOn if kind != Kind::Scan => Self::Waited,
            now => now,
        }
    }
}

/// The records of a launch.
#[derive(Debug)]
pub(super) struct Launched {
    pub(super) records: Vec<Record>,
    /// Number of stages in earlier launches.
    before: usize,
    read: ReadProgress,
}

impl Launched {
    /// A launch that starts with these records; the first reads memory.
    pub(super) fn new(records: &[Record], before: usize, packets: &impl Fn(usize) -> u64) -> Self {
        let mut made = Self { records: Vec::new(), before, read: ReadProgress::Maybe };
        for record in records {
            made.push(record, packets);
        }
        made
    }

    /// Number of stages including earlier launches.
    pub(super) fn count(&self) -> usize {
        self.before + self.records.len()
    }

    /// Fuses a router into the preceding norm; returns whether that is possible.
    pub(super) fn fuse_router(&mut self, records: &[Record]) -> bool {
        let [router] = records else { return false };
        self.is_clear(router, self.read)
            && self.records.last_mut().is_some_and(|norm| norm.fuse_router(router))
    }

    /// Appends these records; returns whether that is possible.
    pub(super) fn takes(&mut self, records: &[Record], packets: &impl Fn(usize) -> u64) -> bool {
        let (Some(ahead), [first, ..]) = (self.records.last(), records) else { return false };
        if self.records.len() + records.len() > MOST_PHASES || first.takes(ahead).is_none() {
            return false;
        }
        // The following records of a call wait for at least as much.
        let read = self.read.after(first.kind, first.waits_for_all(ahead));
        if !records.iter().all(|record| self.is_clear(record, read)) {
            return false;
        }
        for record in records {
            self.push(record, packets);
        }
        true
    }

    /// Whether a stage writes nothing that others may still read or write, and accumulates into nothing that they
    /// access.
    ///
    /// Two alternating residual stream buffers satisfy this. A layer's experts read what the next layer's experts
    /// write, but these stages assign columns to threads identically, so each thread orders its own accesses. The
    /// launch's first stage reads x with other threads, but all blocks have passed it by then.
    fn is_clear(&self, record: &Record, read: ReadProgress) -> bool {
        let first = self.records.first().map(Record::read_memory).unwrap_or_default();
        let overwrites =
            record.stored().iter().any(|stored| first.iter().any(|x| stored.overlaps(x)));
        (read == ReadProgress::Waited || !overwrites)
            && self.records.iter().all(|ahead| record.shares_with(ahead))
    }

    /// Appends a record and connects it to the packets of the last one, if it reads them.
    fn push(&mut self, record: &Record, packets: &impl Fn(usize) -> u64) {
        let mut record = record.clone();
        let from = packets(self.count().saturating_sub(1));
        let waits = self.records.last().is_none_or(|ahead| record.waits_for_all(ahead));
        self.read = self.read.after(record.kind, waits);
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
