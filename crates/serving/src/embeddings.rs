//! Texts that are embedded, and the callers that wait for their vectors.

use crate::job::{EmbeddingJob, Update, Why};
use models::{RequestId, Scheduler};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

/// A text that is not embedded yet.
struct OpenText {
    /// Its place among those of its request.
    index: usize,
    updates: mpsc::Sender<Update>,
    /// Free again with the last text of the request.
    _place: Arc<OwnedSemaphorePermit>,
}

/// Texts that are not embedded yet.
#[derive(Default)]
pub(crate) struct OpenEmbeddings {
    open: BTreeMap<RequestId, OpenText>,
}

impl OpenEmbeddings {
    /// Gives the texts of a request to the scheduler.
    pub(crate) fn begin(&mut self, scheduler: &mut Scheduler<'_>, job: EmbeddingJob) {
        let EmbeddingJob { texts, pooling, updates, place } = job;
        let place = Arc::new(place);
        for (index, tokens) in texts.into_iter().enumerate() {
            match scheduler.submit_embedding(tokens, pooling) {
                Ok(id) => {
                    let (updates, _place) = (updates.clone(), Arc::clone(&place));
                    self.open.insert(id, OpenText { index, updates, _place });
                }
                Err(error) => send(&updates, failed(index, &error.to_string())),
            }
        }
    }

    /// Sends the vector of a text.
    pub(crate) fn hand_out(&mut self, scheduler: &mut Scheduler<'_>, id: RequestId) {
        let done = scheduler.take_embedding(id);
        let Some((OpenText { index, updates, .. }, done)) = self.open.remove(&id).zip(done) else {
            return;
        };
        let update = match done {
            Ok(values) if values.iter().all(|value| value.is_finite()) => {
                Update::Embedded { index, values }
            }
            Ok(_) => failed(index, "the model's hidden states of this text are not numbers"),
            Err(error) => failed(index, &error),
        };
        send(&updates, update);
    }

    /// Drops the texts of callers that have gone, and all of them when the server stops.
    pub(crate) fn forget_who_left(&mut self, scheduler: &mut Scheduler<'_>, abort: bool) {
        let gone = self.open.iter().filter(|(_, text)| abort || text.updates.is_closed());
        let gone: Vec<RequestId> = gone.map(|(id, _)| *id).collect();
        for id in gone {
            scheduler.cancel(id);
            if let Some(OpenText { index, updates, .. }) = self.open.remove(&id) {
                send(&updates, Update::Failed { index, why: Why::Aborted });
            }
        }
    }

    /// Fails every text: the engine is gone.
    pub(crate) fn fail(&mut self, error: &str) {
        for (_, text) in std::mem::take(&mut self.open) {
            send(&text.updates, failed(text.index, error));
        }
    }
}

fn failed(index: usize, error: &str) -> Update {
    Update::Failed { index, why: Why::Engine(error.to_owned()) }
}

/// There is room for one update of each text; a caller that has gone is found before the next step.
fn send(updates: &mpsc::Sender<Update>, update: Update) {
    let _ = updates.try_send(update);
}
