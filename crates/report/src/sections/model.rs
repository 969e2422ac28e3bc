//! Whether the model that was named fits, which kernels its layers need, and which are missing.

use crate::document::{Block, Prose, Table, Tone};
use crate::format;
use crate::run::{FACTS_FILE, Run};
use facts::{Fact, KernelNeed, KernelStatus, LayerGroup, ModelMemory, ModelReport};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let Some(model) = &run.doctor.model else { return Vec::new() };
    let layers: usize = model.layers.iter().map(|group| group.indices.len()).sum();
    let intro = Prose::new()
        .code(&model.architecture)
        .text(format!(" ({}, {}), read from ", model.family, format::count(layers, "layer")))
        .code(&model.config)
        .text(" into ")
        .file(FACTS_FILE)
        .text(".");
    let mut blocks = vec![Block::Paragraph(intro), verdict(&model.memory)];
    blocks.push(Block::Table(memory(model)));
    blocks.push(Block::Table(layer_table(&model.layers)));
    if model.kernels.is_empty() {
        let words = "Its layers need no kernels beyond PyTorch's own.";
        blocks.push(Block::Paragraph(Prose::from(words)));
    } else {
        blocks.push(Block::Table(kernels(&model.kernels)));
    }
    blocks
}

fn verdict(memory: &ModelMemory) -> Block {
    let asked = format!(
        "{} of {} tokens",
        format::count(memory.sequences as usize, "sequence"),
        memory.context_tokens
    );
    let (tone, word, rest) = match (memory.fits, memory.left_bytes) {
        (Some(true), Some(left)) => (
            Tone::Good,
            "It fits",
            format!(": with {asked}, {} are left.", format::bytes(left.unsigned_abs())),
        ),
        (Some(false), Some(left)) => (
            Tone::Bad,
            "It does not fit",
            format!(": with {asked}, {} are missing.", format::bytes(left.unsigned_abs())),
        ),
        _ => (
            Tone::Warn,
            "Whether it fits is not known",
            format!(": nothing here tells how much memory is free for {asked}."),
        ),
    };
    Block::Notice(tone, Prose::new().strong(word).text(rest))
}

fn memory(model: &ModelReport) -> Table {
    let memory = &model.memory;
    let caption = Prose::new()
        .text("Memory, by the config's shapes and the weights' headers, from ")
        .file(FACTS_FILE)
        .text(".");
    let mut table = Table::new(caption, &["What", ">Bytes", "Source"]);
    let mut row = |what: &str, value: String, source: &str| {
        table.row(vec![Prose::from(what), Prose::from(value), Prose::from(source)]);
    };
    let sourced = |fact: &Fact<u64>| (format::bytes(fact.value), fact.source.clone());
    if let Some(fact) = &memory.parameters {
        row("Parameters (a count)", fact.value.to_string(), &fact.source);
    }
    if let Some((value, source)) = memory.weights_bytes.as_ref().map(sourced) {
        row("Weights", value, &source);
    }
    const SHAPES: &str = "shapes of the config";
    row("State of one sequence", format::bytes(memory.state_bytes_per_sequence), SHAPES);
    row("Cache of one token", format::bytes(memory.cache_bytes_per_token), SHAPES);
    row("Workspace", format::bytes(memory.workspace_bytes), "an estimate");
    row("Driver and libraries", format::bytes(memory.runtime_bytes), "an estimate");
    if let Some(bytes) = memory.needed_bytes {
        row("Needed in all", format::bytes(bytes), "the sum");
    }
    if let Some((value, source)) = memory.available.as_ref().map(sourced) {
        row("Free", value, &source);
    }
    if let Some(tokens) = memory.longest_context_tokens {
        row(
            "Longest context (tokens)",
            tokens.to_string(),
            "what is free, by the cache of one token",
        );
    }
    table
}

fn layer_table(groups: &[LayerGroup]) -> Table {
    let caption = Prose::new().text("Layers by kind, from ").file(FACTS_FILE).text(".");
    let mut table = Table::new(caption, &["Kind", ">Layers", "Which"]);
    for group in groups {
        table.row(vec![
            Prose::new().code(&group.kind),
            Prose::from(group.indices.len().to_string()),
            Prose::from(format::ranges(&group.indices)),
        ]);
    }
    table
}

fn kernels(needs: &[KernelNeed]) -> Table {
    let caption =
        Prose::new().text("Kernels that the layers need, from ").file(FACTS_FILE).text(".");
    let head = ["Layers", "Package", "Status", "Why, and what runs otherwise", "Environment"];
    let mut table = Table::new(caption, &head);
    for need in needs {
        let (tone, word) = status(need.status);
        let why = match need.status {
            KernelStatus::Ready => need.reason.clone(),
            _ => format!("{}. {}", need.reason, need.otherwise),
        };
        let env = match &need.env {
            Some(env) => Prose::new().code(env),
            None => Prose::from("none"),
        };
        table.row(vec![
            Prose::new().code(&need.layer),
            Prose::new().code(&need.package),
            Prose::new().chip(tone, word),
            Prose::from(why),
            env,
        ]);
    }
    table
}

/// The status of a kernel package as a word with its tone.
pub(crate) fn status(status: KernelStatus) -> (Tone, &'static str) {
    match status {
        KernelStatus::Ready => (Tone::Good, "ready"),
        KernelStatus::Missing => (Tone::Bad, "missing"),
        KernelStatus::Broken => (Tone::Bad, "broken"),
        KernelStatus::Optional => (Tone::Plain, "optional"),
        KernelStatus::Unusable => (Tone::Warn, "unusable"),
    }
}
