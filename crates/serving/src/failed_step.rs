//! Finds the requests that make a step fail.

use crate::job::SequenceError;
use crate::worker::{Ending, Worker};
use models::{FailedStep, ModelError, RequestId};
use std::time::Instant;

/// Runs each sequence of the failed step alone and ends those that fail alone. The others continue; each has one more
/// token by then, so that a fault that occurs only when they run together ends none of them.
///
/// # Errors
/// Errors after which the engine cannot run ([`ModelError::is_lost`]): every sequence is ended with the error.
pub(crate) fn isolate_failing_requests(
    worker: &mut Worker<'_>,
    error: ModelError,
) -> Result<(), ModelError> {
    let FailedStep { events, involved } = worker.scheduler.failed();
    worker.send_updates(&events);
    worker.shared.record_error(&error.to_string());
    if error.is_lost() {
        return end_all(worker, error);
    }
    for id in involved {
        worker.end_cancelled();
        if let Err(error) = step_alone(worker, id) {
            if error.is_lost() {
                return end_all(worker, error);
            }
            worker.end(id, Ending::Failed(SequenceError::Engine(error.to_string())));
        }
    }
    worker.scheduler.run_alone(None);
    worker.shared.set_usage(worker.scheduler.usage());
    Ok(())
}

/// Steps one sequence alone until its next token or its end.
fn step_alone(worker: &mut Worker<'_>, id: RequestId) -> Result<(), ModelError> {
    worker.scheduler.run_alone(Some(id));
    while worker.open.contains_key(&id) {
        let began = Instant::now();
        let events = match worker.scheduler.step() {
            Ok(events) => events,
            Err(error) => {
                let FailedStep { events, .. } = worker.scheduler.failed();
                worker.send_updates(&events);
                return Err(error);
            }
        };
        let progressed = events.iter().any(|event| event.request() == id);
        worker.finish_step(began, &events);
        if progressed {
            break;
        }
        worker.end_cancelled();
    }
    Ok(())
}

/// Ends every sequence with the error.
fn end_all(worker: &mut Worker<'_>, error: ModelError) -> Result<(), ModelError> {
    let all: Vec<RequestId> = worker.open.keys().copied().collect();
    worker.embeddings.fail(&error.to_string());
    for id in all {
        worker.end(id, Ending::Failed(SequenceError::Engine(error.to_string())));
    }
    Err(error)
}
