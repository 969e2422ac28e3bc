//! Texts whose embeddings are not computed yet, and the callers that wait for them.

use crate::job::{EmbeddingJob, SequenceError, Update};
use models::{RequestId, Scheduler};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// A text that is not embedded yet.
struct PendingText {
    /// Its index in the request.
    index: usize,
    updates: mpsc::Sender<Update>,
    /// Released with the last text of the request.
    _permit: Arc<OwnedSemaphorePermit>,
}

/// Texts that are not embedded yet.
#[derive(Default)]
pub(crate) struct PendingEmbeddings {
    pending: BTreeMap<RequestId, PendingText>,
}

impl PendingEmbeddings {
    /// Submits the texts of a request to the scheduler.
    pub(crate) fn submit(&mut self, scheduler: &mut Scheduler<'_>, job: EmbeddingJob) {
        let EmbeddingJob { texts, pooling, updates, permit } = job;
        let permit = Arc::new(permit);
        for (index, tokens) in texts.into_iter().enumerate() {
            match scheduler.submit_embedding(tokens, pooling) {
                Ok(id) => {
                    let (updates, _permit) = (updates.clone(), Arc::clone(&permit));
                    self.pending.insert(id, PendingText { index, updates, _permit });
                }
                Err(error) => send(&updates, failed(index, &error.to_string())),
            }
        }
    }

    /// Sends the embedding of a text.
    pub(crate) fn finish(&mut self, scheduler: &mut Scheduler<'_>, id: RequestId) {
        let done = scheduler.take_embedding(id);
        let Some((PendingText { index, updates, .. }, done)) = self.pending.remove(&id).zip(done)
        else {
            return;
        };
        let update = match done {
            Ok(values) if values.iter().all(|value| value.is_finite()) => {
                Update::Embedded { index, values }
            }
            Ok(_) => failed(index, "the model's hidden states of this text are NaN or infinite"),
            Err(error) => failed(index, &error),
        };
        send(&updates, update);
    }

    /// Drops the texts of disconnected callers, or all texts if the server stops.
    pub(crate) fn end_cancelled(&mut self, scheduler: &mut Scheduler<'_>, abort: bool) {
        let gone = self.pending.iter().filter(|(_, text)| abort || text.updates.is_closed());
        let gone: Vec<RequestId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            scheduler.cancel(id);
            if let Some(PendingText { index, updates, .. }) = self.pending.remove(&id) {
                send(&updates, Update::Failed { index, why: SequenceError::Aborted });
            }
        }
    }

    /// Fails every text because the engine is lost.
    pub(crate) fn fail(&mut self, error: &str) {
        for (_, text) in std::mem::take(&mut self.pending) {
            send(&text.updates, failed(text.index, error));
        }
    }
}

fn failed(index: usize, error: &str) -> Update {
    Update::Failed { index, why: SequenceError::Engine(error.to_owned()) }
}

/// The channel has room for one update per text; a disconnected caller's texts are dropped before the next step.
fn send(updates: &mpsc::Sender<Update>, update: Update) {
    let _ = updates.try_send(update);
}
