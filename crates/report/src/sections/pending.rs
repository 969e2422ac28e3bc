//! What ended, what is still to do, and what cannot be had here. Pending stays pending, and every count is computed.

use crate::counts::by_reason;
use crate::document::{Block, Prose};
use crate::format;
use crate::run::{BENCH_FILE, FACTS_FILE, MANIFEST_FILE, PARITY_FILE, Run};
use facts::{RunState, Status};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let (done, pending, limits) = (done(run), pending(run), limits(run));
    let words = |number: usize| format::count(number, "entry");
    let intro = Prose::from(format!(
        "Done: {}. Pending: {}. Limits: {}.",
        words(done.len()),
        words(pending.len()),
        words(limits.len())
    ));
    let mut blocks = vec![Block::Paragraph(intro)];
    for (id, title, items, none) in [
        ("done", "Done", done, "No stage ended."),
        ("still-pending", "Pending", pending, "Nothing that could have run here was left out."),
        ("limits", "Limits", limits, "No limit of this machine or its environments was met."),
    ] {
        blocks.push(Block::Heading { id: id.to_owned(), words: Prose::from(title) });
        blocks.push(if items.is_empty() {
            Block::Paragraph(Prose::from(none))
        } else {
            Block::List(items)
        });
    }
    blocks
}

fn done(run: &Run<'_>) -> Vec<Prose> {
    run.manifest
        .stages
        .iter()
        .map(|stage| {
            Prose::new()
                .strong(&stage.name)
                .text(format!(": {} in {} (", stage.outcome, format::duration(stage.millis)))
                .file(MANIFEST_FILE)
                .text(")")
        })
        .collect()
}

/// What could have been done here and was not.
pub(super) fn pending(run: &Run<'_>) -> Vec<Prose> {
    let mut items = Vec::new();
    if run.manifest.state == RunState::Incomplete {
        let words = Prose::new()
            .strong("The end of this run")
            .text(": it is incomplete (")
            .file(MANIFEST_FILE)
            .text(")");
        items.push(words);
    }
    for not_run in &run.manifest.not_run {
        items.push(
            Prose::new()
                .strong(&not_run.what)
                .text(format!(": {} (", not_run.why))
                .file(MANIFEST_FILE)
                .text(")"),
        );
    }
    items.extend(rows_with(run, Status::Skip, "skipped"));
    for why in run.bench.iter().flat_map(|bench| &bench.not_timed) {
        items.push(
            Prose::new().strong("Not timed").text(format!(": {why} (")).file(BENCH_FILE).text(")"),
        );
    }
    items
}

/// What is pending as pairs of a name and a reason, for a terminal.
pub(crate) fn lines(run: &Run<'_>) -> Vec<(String, String)> {
    let manifest =
        run.manifest.not_run.iter().map(|not_run| (not_run.what.clone(), not_run.why.clone()));
    let not_timed = run
        .bench
        .iter()
        .flat_map(|bench| &bench.not_timed)
        .map(|why| ("not timed".to_owned(), why.clone()));
    manifest.chain(not_timed).collect()
}

/// What this machine or its files do not allow.
fn limits(run: &Run<'_>) -> Vec<Prose> {
    let mut items = rows_with(run, Status::NotApplicable, "not applicable here");
    let machine = run.doctor.machine.notes.iter().map(|note| ("Machine", note));
    let envs = run
        .doctor
        .envs
        .iter()
        .flat_map(|env| env.problems.iter().map(|problem| ("Environment", problem)));
    for (what, words) in machine.chain(envs) {
        items.push(
            Prose::new().strong(what).text(format!(": {words} (")).file(FACTS_FILE).text(")"),
        );
    }
    items
}

fn rows_with(run: &Run<'_>, status: Status, word: &str) -> Vec<Prose> {
    let rows = run.parity.iter().flat_map(|parity| &parity.rows).filter(|row| row.status == status);
    by_reason(rows)
        .into_iter()
        .map(|(reason, rows)| {
            Prose::new()
                .strong(format!("{} {word}", format::count(rows.len(), "check")))
                .text(format!(": {reason} ("))
                .file(PARITY_FILE)
                .text(")")
        })
        .collect()
}
