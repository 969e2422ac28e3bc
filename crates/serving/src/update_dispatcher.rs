//! Sends updates to callers on a separate thread. Waking a caller takes as long as some GPU kernels, and a step of many
//! sequences wakes many callers, so the engine's thread does not do it.

use crate::job::{Job, Update};
use std::sync::mpsc as threads;
use std::thread::Scope;
use tokio::sync::mpsc;

/// Updates in order, each with the channel of its caller.
type PendingUpdates = Vec<(mpsc::Sender<Update>, Update)>;

/// The engine thread's handle.
pub(crate) struct UpdateDispatcher {
    pending: PendingUpdates,
    sender: threads::Sender<PendingUpdates>,
}

impl UpdateDispatcher {
    /// Spawns the thread. It ends after the last update, once this handle is dropped.
    pub(crate) fn spawn_in<'scope>(scope: &'scope Scope<'scope, '_>) -> Self {
        let (sender, receiver) = threads::channel::<PendingUpdates>();
        scope.spawn(move || {
            for (caller, update) in receiver.iter().flatten() {
                // The channel has room for all updates; a disconnected caller is found before the next step.
                let _ = caller.try_send(update);
            }
        });
        Self { pending: Vec::new(), sender }
    }

    /// Queues an update for the next [`UpdateDispatcher::send`].
    pub(crate) fn add(&mut self, job: &Job, update: Update) {
        self.pending.push((job.updates.clone(), update));
    }

    /// Sends the queued updates to the thread.
    pub(crate) fn send(&mut self) {
        if !self.pending.is_empty() {
            // The receiving thread lives as long as this sender.
            let _ = self.sender.send(std::mem::take(&mut self.pending));
        }
    }
}

impl Drop for UpdateDispatcher {
    fn drop(&mut self) {
        self.send();
    }
}
