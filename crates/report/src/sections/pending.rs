//! What ended, what is still to do, and what cannot be had here. Pending stays pending, and every count is computed.

use crate::counts::left_out;
use crate::document::{Block, Prose};
use crate::format;
use crate::run::{BENCH_FILE, FACTS_FILE, MANIFEST_FILE, MODEL_SPEED_FILE, PARITY_FILE, Run};
use facts::{RunState, Status};

/// One thing done, pending or impossible.
pub(crate) struct Item {
    /// What.
    pub(crate) what: String,
    /// What came out of it, or why it is not done.
    pub(crate) why: String,
    /// Where that is recorded.
    file: &'static str,
}

fn item(what: impl Into<String>, why: impl Into<String>, file: &'static str) -> Item {
    Item { what: what.into(), why: why.into(), file }
}

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let (done, pending, limits) = (done(run), pending(run), limits(run));
    let words = |items: &[Item]| format::count(items.len(), "entry");
    let intro = format!(
        "Done: {}. Pending: {}. Limits: {}.",
        words(&done),
        words(&pending),
        words(&limits)
    );
    let mut blocks = vec![Block::Paragraph(Prose::from(intro))];
    for (id, title, items, none) in [
        ("done", "Done", done, "No stage ended."),
        ("still-pending", "Pending", pending, "Nothing that could have run here was left out."),
        ("limits", "Limits", limits, "No limit of this machine or its environments was met."),
    ] {
        blocks.push(Block::Heading { id: id.to_owned(), words: Prose::from(title) });
        blocks.push(if items.is_empty() {
            Block::Paragraph(Prose::from(none))
        } else {
            let line = |item: &Item| {
                Prose::new()
                    .strong(&item.what)
                    .text(format!(": {} (", item.why))
                    .file(item.file)
                    .text(")")
            };
            Block::List(items.iter().map(line).collect())
        });
    }
    blocks
}

fn done(run: &Run<'_>) -> Vec<Item> {
    let stages = run.manifest.stages.iter();
    stages
        .map(|stage| {
            item(
                &stage.name,
                format!("{} in {}", stage.outcome, format::duration(stage.millis)),
                MANIFEST_FILE,
            )
        })
        .collect()
}

/// What could have been done here and was not.
pub(crate) fn pending(run: &Run<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    if run.manifest.state == RunState::Incomplete {
        items.push(item("The end of this run", "it is incomplete", MANIFEST_FILE));
    }
    items.extend(
        run.manifest.not_run.iter().map(|not_run| item(&not_run.what, &not_run.why, MANIFEST_FILE)),
    );
    items.extend(checks(run, Status::Skip, "skipped"));
    items.extend(
        run.bench
            .iter()
            .flat_map(|bench| &bench.not_timed)
            .map(|why| item("Not timed", why, BENCH_FILE)),
    );
    items.extend(
        run.model_speed
            .iter()
            .flat_map(|model| &model.not_timed)
            .map(|why| item("Not timed", why, MODEL_SPEED_FILE)),
    );
    items
}

/// What this machine or its files do not allow.
fn limits(run: &Run<'_>) -> Vec<Item> {
    let mut items = checks(run, Status::NotApplicable, "not applicable here");
    items.extend(checks(run, Status::NotRun, "without time"));
    items.extend(run.doctor.machine.notes.iter().map(|note| item("Machine", note, FACTS_FILE)));
    let problems = run.doctor.envs.iter().flat_map(|env| &env.problems);
    items.extend(problems.map(|problem| item("Environment", problem, FACTS_FILE)));
    items
}

/// Rows of a status, one item for each reason.
fn checks(run: &Run<'_>, status: Status, word: &str) -> Vec<Item> {
    let rows = run.parity.map_or(&[][..], |parity| &parity.rows);
    left_out(rows, status)
        .into_iter()
        .map(|left_out| {
            let what = format!("{} {word}", format::count(left_out.rows.len(), "check"));
            item(what, format!("{} ({})", left_out.reason, left_out.ops()), PARITY_FILE)
        })
        .collect()
}
