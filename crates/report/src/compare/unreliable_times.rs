//! Runs whose times were affected by other load.

use super::ComparedRun;
use super::surroundings::hardware;
use crate::conditions::{MOVED_PCT, disturbances, of};
use crate::format;
use facts::{BackendKind, CeilingDrift, CeilingKind};

/// The times of two runs that are in doubt.
#[derive(Debug, Default)]
pub(super) struct UnreliableTimes {
    /// Backends whose times in the base are in doubt.
    base: Vec<BackendKind>,
    /// Backends whose times in the run are in doubt.
    run: Vec<BackendKind>,
    /// The reasons, one sentence each.
    pub(super) sentences: Vec<String>,
}

impl UnreliableTimes {
    pub(super) fn of(base: &ComparedRun<'_>, run: &ComparedRun<'_>) -> Self {
        let mut doubts = Self::default();
        for (recorded, at) in [(base, &mut doubts.base), (run, &mut doubts.run)] {
            for conditions in recorded.bench.iter().flat_map(|bench| &bench.conditions) {
                let found = disturbances(conditions);
                if !found.is_empty() {
                    at.push(conditions.backend);
                }
                let (name, backend) = (recorded.name, conditions.backend);
                for why in found {
                    let sentence = format!("{name}, {backend}: {why}");
                    // A run compared with itself has each reason once.
                    if !doubts.sentences.contains(&sentence) {
                        doubts.sentences.push(sentence);
                    }
                }
            }
        }
        for backend in [BackendKind::Cpu, BackendKind::Cuda, BackendKind::Metal] {
            if let Some(why) = memory_change(base, run, backend) {
                doubts.base.push(backend);
                doubts.run.push(backend);
                doubts.sentences.push(why);
            }
        }
        doubts
    }

    /// Whether the times of the base, and those of the run, are in doubt.
    pub(super) fn on(&self, backend: BackendKind) -> (bool, bool) {
        (self.base.contains(&backend), self.run.contains(&backend))
    }
}

/// The memory bandwidth of one machine differs between the runs, for example because an unseen process uses it.
/// Ceilings are comparable only between runs that recorded their conditions.
fn memory_change(
    base: &ComparedRun<'_>,
    run: &ComparedRun<'_>,
    backend: BackendKind,
) -> Option<String> {
    (of(base.bench, backend).is_some() && of(run.bench, backend).is_some()).then_some(())?;
    if hardware(base) != hardware(run) {
        return None;
    }
    let copy = |recorded: &ComparedRun<'_>| {
        let ceilings = recorded.bench?.ceilings.iter().find(|it| it.backend == backend)?;
        let raised = ceilings.raised.iter().find(|raised| raised.ceiling == CeilingKind::Copy);
        Some(raised.map_or(ceilings.copy_gbps, |raised| raised.measured))
    };
    let twice = CeilingDrift { ceiling: CeilingKind::Copy, before: copy(base)?, after: copy(run)? };
    (twice.moved_pct() > MOVED_PCT).then(|| {
        format!(
            "{backend}: the memory copy of one run is {} slower than the other's, on the same machine: {} and {} GB/s",
            format::percent(twice.moved_pct()),
            format::significant(twice.before, 4),
            format::significant(twice.after, 4)
        )
    })
}
