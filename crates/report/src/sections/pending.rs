//! Stages that are done, checks that are pending, and limits of the machine. All counts are computed.

use crate::counts::left_out;
use crate::document::{Block, Prose};
use crate::format;
use crate::run::{BENCH_FILE, FACTS_FILE, MANIFEST_FILE, MODEL_SPEED_FILE, PARITY_FILE, Run};
use facts::{OUT_OF_TIME, RunState, SkippedStage, Status};

/// One entry: done, pending, or impossible here.
pub(crate) struct Item {
    /// Its name.
    pub(crate) what: String,
    /// The result, or the reason why it is not done.
    pub(crate) why: String,
    /// The command that does it, if there is one.
    pub(crate) command: Option<String>,
    /// The file that records it.
    file: &'static str,
}

fn item(what: impl Into<String>, why: impl Into<String>, file: &'static str) -> Item {
    Item { what: what.into(), why: why.into(), command: None, file }
}

impl Item {
    fn by(self, command: Option<String>) -> Self {
        Self { command, ..self }
    }
}

/// The distinct commands of items.
pub(crate) fn commands(items: &[Item]) -> Vec<&str> {
    let mut commands: Vec<&str> = Vec::new();
    for command in items.iter().filter_map(|item| item.command.as_deref()) {
        if !commands.contains(&command) {
            commands.push(command);
        }
    }
    commands
}

/// Options that make a check omit something, and whether they take a value.
const LIMITS: &[(&str, bool)] = &[
    ("--quick", false),
    ("--op", true),
    ("--budget", true),
    ("--gpu", true),
    ("--memory-budget", true),
    ("--fabric-budget", true),
    ("--sustain", true),
    ("--peer-budget", true),
];
/// Options that apply to one run only.
const OF_THE_RUN: &[(&str, bool)] =
    &[("-o", true), ("--output", true), ("--json", false), ("--until", true), ("--part", true)];

/// The command of this run without its limits.
pub(crate) fn rerun(run: &Run<'_>) -> String {
    let command = &run.manifest.command;
    // Commands other than `check` have their own names.
    if command.get(1).map(String::as_str) != Some("check") {
        return "firstlight check".to_owned();
    }
    let mut words = vec!["firstlight".to_owned()];
    let mut rest = command.iter().skip(1);
    while let Some(word) = rest.next() {
        let (name, has_value) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word.as_str(), false),
        };
        match LIMITS.iter().chain(OF_THE_RUN).find(|(known, _)| *known == name) {
            Some((_, takes_value)) if *takes_value && !has_value => {
                rest.next();
            }
            Some(_) => {}
            None => words.push(quoted(word)),
        }
    }
    words.join(" ")
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+%[]~".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// The command that runs what a run omitted.
fn command_of(run: &Run<'_>, not_run: &SkippedStage) -> Option<String> {
    let why = not_run.why.as_str();
    // Notes on how something was measured: nothing is pending.
    if why.starts_with("where kernels were verified") || why.contains("(MIG)") {
        return None;
    }
    let again = rerun(run);
    Some(match why {
        why if why.contains("no environment was named") => format!("{again} --venv DIR"),
        why if why.contains("CUDA_VISIBLE_DEVICES") => {
            format!("env -u CUDA_VISIBLE_DEVICES {again}")
        }
        why if why.contains("--memory-budget tests it") => format!("{again} --memory-budget 10"),
        _ => again,
    })
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
    for (id, title, items) in [
        ("done", "Done", done),
        ("still-pending", "Pending", pending),
        ("limits", "Limits", limits),
    ] {
        if items.is_empty() {
            continue;
        }
        blocks.push(Block::Heading { id: id.to_owned(), words: Prose::from(title) });
        let line = |item: &Item| {
            let line = Prose::new().strong(&item.what).text(format!(": {} (", item.why));
            let line = line.file(item.file).text(")");
            match &item.command {
                Some(command) => line.text(": ").code(command),
                None => line,
            }
        };
        blocks.push(Block::List(items.iter().map(line).collect()));
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

/// Everything that can be done on this machine and was not.
pub(crate) fn pending(run: &Run<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    if run.manifest.state == RunState::Incomplete {
        let end = item("The end of this run", "it is incomplete", MANIFEST_FILE);
        items.push(end.by(Some(rerun(run))));
    }
    items.extend(run.manifest.not_run.iter().map(|not_run| {
        item(&not_run.what, &not_run.why, MANIFEST_FILE).by(command_of(run, not_run))
    }));
    items.extend(checks(run, Status::Skip, "skipped"));
    let timed = |why: &String| {
        let op = why.split([' ', ':']).next().filter(|op| !op.starts_with('-'));
        let command = op.map(|op| format!("firstlight bench {op}"));
        item("Not timed", why, BENCH_FILE).by(command)
    };
    items.extend(run.bench.iter().flat_map(|bench| &bench.not_timed).map(timed));
    items.extend(
        run.model_speed
            .iter()
            .flat_map(|model| &model.not_timed)
            .map(|why| item("Not timed", why, MODEL_SPEED_FILE)),
    );
    items
}

/// Everything that this machine or its files do not allow.
fn limits(run: &Run<'_>) -> Vec<Item> {
    let mut items = checks(run, Status::NotApplicable, "not applicable here");
    items.extend(checks(run, Status::NotRun, "without time"));
    items.extend(run.doctor.machine.notes.iter().map(|note| item("Machine", note, FACTS_FILE)));
    let problems = run.doctor.envs.iter().flat_map(|env| &env.problems);
    items.extend(problems.map(|problem| item("Environment", problem, FACTS_FILE)));
    items
}

/// The rows of a status, one item per reason.
fn checks(run: &Run<'_>, status: Status, word: &str) -> Vec<Item> {
    let rows = run.parity.map_or(&[][..], |parity| &parity.rows);
    left_out(rows, status)
        .into_iter()
        .map(|left_out| {
            let what = format!("{} {word}", format::count(left_out.rows.len(), "check"));
            let mut ops: Vec<&str> = left_out.rows.iter().map(|row| row.op.as_str()).collect();
            ops.dedup();
            let command = match status {
                Status::Skip if left_out.reason == OUT_OF_TIME => Some(rerun(run)),
                Status::Skip => Some(format!("firstlight verify {}", ops.join(" "))),
                _ => None,
            };
            item(what, format!("{} ({})", left_out.reason, left_out.ops()), PARITY_FILE).by(command)
        })
        .collect()
}
