//! The reduced models of each backend.

use crate::cli::Check;
use crate::commands::check_gpu::families;
use crate::progress::Progress;
use facts::{BackendKind, ParityRow};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The reduced models' rows of each backend, in the backends' order. They run at the same time: a GPU's steps need one core.
pub(super) fn of(
    backends: &[BackendKind],
    arguments: &Check,
    until: Option<Instant>,
) -> Vec<(BackendKind, Vec<ParityRow>, Duration)> {
    let progress = Progress::start("models");
    let on = |backend: BackendKind| {
        let since = Instant::now();
        let rows = families(backend, &arguments.op, until, |name, at, of| {
            progress.say(format!("{name} on {backend}, {} of {of}", at + 1));
        });
        (backend, rows, since.elapsed())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = backends.iter().map(|backend| scope.spawn(|| on(*backend))).collect();
        let join = |running: ScopedJoinHandle<'_, _>| {
            running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        running.into_iter().map(join).collect()
    })
}
