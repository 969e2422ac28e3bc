//! Handling of a failed step, and running requests alone to find the one that causes the failure.

use super::{RequestId, Scheduler, SchedulerEvent};

/// The result of a failed step.
#[derive(Debug, Default)]
pub struct FailedStep {
    /// Events from before the failure.
    pub events: Vec<SchedulerEvent>,
    /// Requests that had a slot, oldest first: one of them may have caused the failure.
    pub involved: Vec<RequestId>,
}

impl Scheduler<'_> {
    /// Admits only one request, or all of them again. Running requests are preempted. Used after a failed step to find
    /// the request that also fails alone.
    pub fn run_alone(&mut self, request: Option<RequestId>) {
        self.alone = request;
        if request.is_some() {
            self.stop_all(&mut Vec::new());
        }
    }

    /// The result of the last failed step. Its events are returned with their logits; otherwise the next step returns
    /// them without.
    pub fn failed(&mut self) -> FailedStep {
        FailedStep {
            events: std::mem::take(&mut self.due),
            involved: std::mem::take(&mut self.involved),
        }
    }

    /// Gives a slot to the only request that may run. It may use all blocks, which suffice for it.
    pub(super) fn admit_alone(&mut self, alone: RequestId) {
        // It does not wait for another request's snapshot.
        let Some(at) = self.waiting.iter().position(|live| live.id == alone) else { return };
        let Some(slot) = self.free_slots.pop_first() else { return };
        if let Some(mut live) = self.waiting.remove(at) {
            live.slot = slot;
            if live.saved.is_some() && !self.restore_request(&mut live) {
                live.release_slot();
            }
            self.running.push(live);
        }
    }

    /// Puts every request back into the queue. Kept sequences and snapshots are dropped: the engine may have lost every
    /// sequence.
    pub(super) fn stop_all(&mut self, events: &mut Vec<SchedulerEvent>) {
        while let Some(live) = self.running.pop() {
            self.requeue(live, events);
        }
        self.restart_embeddings();
        self.drop_all();
    }
}
