//! A step that failed: what had happened by then, and finding the request that is to blame.

use super::{Event, RequestId, Scheduler};

/// What a step leaves that failed.
#[derive(Debug, Default)]
pub struct Failed {
    /// What had happened by then.
    pub events: Vec<Event>,
    /// Requests that had a slot, oldest first: one of them may be to blame.
    pub involved: Vec<RequestId>,
}

impl Scheduler<'_> {
    /// Lets one request run and nobody else, or all of them again. Those that ran wait meanwhile, as after a preemption. Behind
    /// a step that failed this finds the request that fails alone too.
    pub fn run_alone(&mut self, request: Option<RequestId>) {
        self.alone = request;
        if request.is_some() {
            self.stop_all(&mut Vec::new());
        }
    }

    /// What the last step that failed leaves. Its events are given out here, with their logits, and no more by the next step,
    /// which gives them without.
    pub fn failed(&mut self) -> Failed {
        Failed {
            events: std::mem::take(&mut self.due),
            involved: std::mem::take(&mut self.involved),
        }
    }

    /// Gives a slot to the one request that may run. It has all pages, which are enough for it.
    pub(super) fn admit_alone(&mut self, alone: RequestId) {
        // It waits no longer while its prompt is read.
        let Some(at) = self.waiting.iter().position(|live| live.id == alone) else { return };
        let Some(slot) = self.free_slots.pop_first() else { return };
        if let Some(mut live) = self.waiting.remove(at) {
            live.slot = slot;
            if live.saved.is_some() && !self.restore_request(&mut live) {
                live.lose_slot();
            }
            self.running.push(live);
        }
    }

    /// Sends every request back to those that wait. Nothing is kept either: the engine may have lost every sequence.
    pub(super) fn stop_all(&mut self, events: &mut Vec<Event>) {
        while let Some(live) = self.running.pop() {
            self.send_back(live, events);
        }
        self.restart_embeddings();
        self.drop_all();
    }
}
