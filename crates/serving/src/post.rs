//! What callers are told goes by a thread of its own: to wake one takes as long as some of the GPU's kernels, and a step of many
//! sequences has many to wake, which the next step is not to wait for.

use crate::job::{Job, Update};
use std::sync::mpsc as threads;
use std::thread::Scope;
use tokio::sync::mpsc;

/// Updates in their order, each with who is told.
type Letters = Vec<(mpsc::Sender<Update>, Update)>;

/// The engine thread's end of it.
pub(crate) struct Post {
    letters: Letters,
    to: threads::Sender<Letters>,
}

impl Post {
    /// Starts the thread, which ends behind the last update once this is dropped.
    pub(crate) fn within<'scope>(scope: &'scope Scope<'scope, '_>) -> Self {
        let (to, from) = threads::channel::<Letters>();
        scope.spawn(move || {
            for (caller, update) in from.iter().flatten() {
                // There is room for all; whoever is gone is found before the next step.
                let _ = caller.try_send(update);
            }
        });
        Self { letters: Vec::new(), to }
    }

    /// Lays an update down for the next [`Post::send`].
    pub(crate) fn add(&mut self, job: &Job, update: Update) {
        self.letters.push((job.updates.clone(), update));
    }

    /// Sends what was laid down.
    pub(crate) fn send(&mut self) {
        if !self.letters.is_empty() {
            // The thread ends behind this one alone.
            let _ = self.to.send(std::mem::take(&mut self.letters));
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        self.send();
    }
}
