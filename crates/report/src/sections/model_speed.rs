//! The speed of the model that was timed, and the limit by memory bandwidth.

use crate::document::{Block, Prose, Table, Tone};
use crate::format;
use crate::run::{MODEL_SPEED_FILE, PARITY_FILE, Run};
use facts::CompactSort;
use facts::{ModelSpeed, ModelSpeedReport, Status};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let Some(model) = run.model_speed else { return Vec::new() };
    let intro = Prose::new()
        .text(format!("{} (", subject(model)))
        .file(MODEL_SPEED_FILE)
        .text("). A model is timed only after its engine agreed with float32 on the processor in the same run (")
        .file(PARITY_FILE)
        .text("), and only by kernels that ran in that check.");
    let mut blocks = vec![Block::Paragraph(intro)];
    if !model.speeds.is_empty() {
        let caption = Prose::new()
            .text("Tokens a second of all sequences together, mean and standard deviation, from ")
            .file(MODEL_SPEED_FILE)
            .text(".");
        // Numbers are right-aligned.
        let heads = HEADS.map(|head| match head {
            "test" | "by" => head.to_owned(),
            _ => format!(">{head}"),
        });
        let mut table = Table::new(caption, &heads);
        let rows = model.speeds.iter();
        rows.for_each(|speed| table.row(cells(model, speed).map(Prose::from).to_vec()));
        blocks.push(Block::Table(table));
        blocks.push(Block::Paragraph(Prose::from(limits(model))));
        blocks.push(Block::Paragraph(Prose::from(ran(model))));
        let sentences = comparisons(model).into_iter().map(Prose::from).collect::<Vec<_>>();
        blocks.extend(sentences.into_iter().map(Block::Paragraph));
    }
    let not_timed = model.not_timed.iter().map(|why| {
        Block::Notice(Tone::Bad, Prose::new().strong("Not timed").text(format!(": {why}")))
    });
    blocks.extend(not_timed);
    blocks
}

/// The model and the device that was timed.
pub(crate) fn subject(model: &ModelSpeedReport) -> String {
    let weights = if model.random { "random weights" } else { "weights of its folder" };
    let loaded = match model.load_seconds {
        Some(seconds) => format!(", loaded in {}", format::duration(seconds * 1e3)),
        None => String::new(),
    };
    let states = model.states.as_ref().map(|held| format!(" with states in {held}"));
    let states = states.unwrap_or_default();
    format!(
        "{}: {}, {}, {} million parameters, {weights}, {}{states} on {} ({}){loaded}",
        model.model,
        model.family,
        format::count(model.layers as usize, "layer"),
        format::significant(model.parameters as f64 / 1e6, 4),
        model.dtype,
        model.device,
        model.backend,
    )
}

/// Columns of the table; the first ones are text.
pub(crate) const HEADS: [&str; 9] =
    ["test", "by", "sequences", "tokens/s", "+-", "samples", "of limit", "first token", "cold"];

/// A row of the table.
pub(crate) fn cells(model: &ModelSpeedReport, speed: &ModelSpeed) -> [String; 9] {
    let absent = || format::ABSENT.to_owned();
    let rate = |rate: f64| format::significant(rate, 4);
    let of_first = |millis: fn(&facts::FirstToken) -> f64| {
        speed.first_token.as_ref().map_or_else(absent, |first| format::duration(millis(first)))
    };
    [
        speed.test.clone(),
        match (&speed.peer, status(model, speed)) {
            (None, _) => "firstlight".to_owned(),
            (Some(peer), Status::Pass) => peer.clone(),
            (Some(peer), status) => format!("{peer}, {status}"),
        },
        speed.sequences.to_string(),
        rate(speed.mean_tokens_per_second),
        speed.deviation_tokens_per_second.map_or_else(absent, |x| format::significant(x, 2)),
        speed.samples_tokens_per_second.len().to_string(),
        speed.limit.map_or_else(absent, |limit| format::percent(limit.percent)),
        of_first(|first| first.warm_ms),
        of_first(|first| first.cold_ms),
    ]
}

/// The limit that the percentages of decoding refer to.
pub(crate) fn limits(model: &ModelSpeedReport) -> String {
    let limit = |speed: &ModelSpeed| {
        // The limit depends on the test only, not on the implementation.
        speed.limit.filter(|_| speed.peer.is_none()).map(|limit| {
            format!(
                "{} moves {} a step, of which memory that reads {} GB/s allows {} tokens/s",
                speed.test,
                format::file_size(limit.bytes_per_step),
                format::significant(limit.read_gbps, 4),
                format::significant(limit.tokens_per_second, 4)
            )
        })
    };
    let limits: Vec<String> = model.speeds.iter().filter_map(limit).collect();
    match limits.as_slice() {
        [] => "No decoding was timed, which memory would limit.".to_owned(),
        limits => format!("Limits, measured in the same run: {}.", limits.join("; ")),
    }
}

/// The status of the check of a test with its own prompts; the engine's speed is shown only if it passed.
fn status(model: &ModelSpeedReport, speed: &ModelSpeed) -> Status {
    let Some(peer) = &speed.peer else { return Status::Pass };
    let of_test = |case: &str| case.rsplit('/').next() == Some(speed.test.as_str());
    let mut rows = model.checks.iter().filter(|row| row.variant == *peer && of_test(&row.case));
    rows.next().map_or(Status::NotApplicable, |row| row.status)
}

/// The engine's speeds compared with those of installed packages, one sentence per test. A package that ran without its
/// own kernels is shown and not compared.
pub(crate) fn comparisons(model: &ModelSpeedReport) -> Vec<String> {
    let of_peers = model.speeds.iter().filter_map(|speed| Some((speed.peer.as_ref()?, speed)));
    of_peers
        .filter_map(|(peer, speed)| {
            let mut own = model.speeds.iter().filter(|own| own.peer.is_none());
            let own = own.find(|own| own.test == speed.test)?;
            Some(match status(model, speed) {
                Status::Pass => format!(
                    "{}: firstlight is {} times as fast as {peer}.",
                    speed.test,
                    format::significant(own.mean_tokens_per_second / speed.mean_tokens_per_second, 3)
                ),
                status => format!(
                    "{}: {peer} ran without its fast path ({status}), so its speed is compared with nothing.",
                    speed.test
                ),
            })
        })
        .collect()
}

/// The kernels that ran during the timing.
pub(crate) fn ran(model: &ModelSpeedReport) -> String {
    let mut kernels: Vec<&str> =
        model.speeds.iter().flat_map(|speed| speed.launches.keys().map(String::as_str)).collect();
    kernels.compact_sort();
    kernels.dedup();
    format!("Kernels that ran, each of them in the checks too: {}.", kernels.join(", "))
}
