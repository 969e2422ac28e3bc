//! The reduced models of each backend.

use super::finished_rows::FinishedRows;
use crate::cli::Check;
use crate::commands::check_gpu::families;
use crate::progress::Progress;
use facts::{BackendKind, ParityRow};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The models of one backend: their rows, and the duration.
type Verified = (BackendKind, Vec<ParityRow>, Duration);

/// Reduced models that are being verified.
pub(super) struct Running<'scope>(Vec<ScopedJoinHandle<'scope, Verified>>);

/// Starts verifying the reduced models of each backend, all at the same time and concurrently with the matrix of
/// kernels: a GPU's steps need one core, and each backend's models use a separate device that counts their launches.
pub(super) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    backends: &[BackendKind],
    (arguments, until): (&'env Check, Option<Instant>),
    finished: &'env FinishedRows,
) -> Running<'scope> {
    let on = |backend: BackendKind| {
        scope.spawn(move || {
            let since = Instant::now();
            let rows = families(backend, &arguments.op, until, |_, _, _| ());
            rows.iter().for_each(|row| finished.add(row));
            (backend, rows, since.elapsed())
        })
    };
    Running(backends.iter().copied().map(on).collect())
}

impl Running<'_> {
    /// Waits for them; returns their rows in the backends' order.
    pub(super) fn join(self) -> Vec<Verified> {
        let _progress = Progress::start("models");
        let join = |running: ScopedJoinHandle<'_, _>| {
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        self.0.into_iter().map(join).collect()
    }
}
