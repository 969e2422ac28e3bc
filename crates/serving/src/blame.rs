//! A step that failed: who is to blame, where that can be told.

use crate::job::Why;
use crate::worker::{Ending, Worker};
use models::{Failed, ModelError, RequestId};
use std::time::Instant;

/// Ends the sequences that fail alone too; the others go on. Each of them has a token more by then, so that even a fault that
/// comes whenever they run together, and never alone, stops nobody.
///
/// # Errors
/// Those behind which there is nothing to run on ([`ModelError::is_lost`]): every sequence is ended with one.
pub(crate) fn find(worker: &mut Worker<'_>, error: ModelError) -> Result<(), ModelError> {
    let Failed { events, involved } = worker.scheduler.failed();
    worker.hand_out(&events);
    worker.shared.see_error(&error.to_string());
    if error.is_lost() {
        return lose(worker, error);
    }
    for id in involved {
        worker.forget_who_left();
        if let Err(error) = alone(worker, id) {
            if error.is_lost() {
                return lose(worker, error);
            }
            worker.end(id, Ending::Failed(Why::Engine(error.to_string())));
        }
    }
    worker.scheduler.run_alone(None);
    worker.shared.see(worker.scheduler.usage());
    Ok(())
}

/// Runs one sequence alone, up to its next token or its end.
fn alone(worker: &mut Worker<'_>, id: RequestId) -> Result<(), ModelError> {
    worker.scheduler.run_alone(Some(id));
    while worker.open.contains_key(&id) {
        let began = Instant::now();
        let events = match worker.scheduler.step() {
            Ok(events) => events,
            Err(error) => {
                let Failed { events, .. } = worker.scheduler.failed();
                worker.hand_out(&events);
                return Err(error);
            }
        };
        let told = events.iter().any(|event| event.request() == id);
        worker.stepped(began, &events);
        if told {
            break;
        }
        worker.forget_who_left();
    }
    Ok(())
}

/// Ends everything.
fn lose(worker: &mut Worker<'_>, error: ModelError) -> Result<(), ModelError> {
    let all: Vec<RequestId> = worker.open.keys().copied().collect();
    worker.embeddings.fail(&error.to_string());
    for id in all {
        worker.end(id, Ending::Failed(Why::Engine(error.to_string())));
    }
    Err(error)
}
