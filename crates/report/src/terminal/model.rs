use super::Style;
use super::layout::{Cell, Column, cell, fields, paragraph, plain, render, table};
use crate::format;
use crate::sections::kernel_status;
use facts::{Fact, KernelNeed, KernelStatus, LayerGroup, ModelReport};

/// A model's layers, the kernels they need and which are missing, and its memory.
pub(super) fn model(report: &ModelReport, style: Style) -> String {
    let mut out = layers(report, style);
    out.push('\n');
    out.push_str(&kernels(&report.kernels, style));
    out.push('\n');
    out.push_str(&fields(style, &memory(report)));
    out
}

/// A model's layers, and its memory as named values.
pub fn fit(report: &ModelReport, memory: &[(String, String)], style: Style) -> String {
    let mut out = layers(report, style);
    out.push('\n');
    out.push_str(&fields(style, memory));
    out
}

/// The model, and its layers by kind.
fn layers(report: &ModelReport, style: Style) -> String {
    let total: usize = report.layers.iter().map(|group| group.indices.len()).sum();
    let title = format!(
        "model {} ({}, {})",
        report.architecture,
        report.family,
        format::count(total, "layer")
    );
    let layers: Vec<(String, String)> =
        report.layers.iter().map(|group| (group.kind.clone(), indices(group))).collect();
    paragraph(style, &title) + &fields(style, &layers)
}

/// `36 layers: 0-4, 6-14`.
fn indices(group: &LayerGroup) -> String {
    format!("{}: {}", format::count(group.indices.len(), "layer"), format::ranges(&group.indices))
}

fn kernels(needs: &[KernelNeed], style: Style) -> String {
    if needs.is_empty() {
        return paragraph(style, "its layers need no kernels beyond PyTorch's own");
    }
    let columns = [
        Column::word("layers"),
        Column::word("package"),
        Column::word("status"),
        Column::wrapped("why, and what runs otherwise"),
    ];
    let mut out = String::new();
    let mut envs: Vec<Option<&str>> = needs.iter().map(|need| need.env.as_deref()).collect();
    envs.dedup();
    for env in envs {
        out.push_str(&paragraph(style, &format!("in {}", env.unwrap_or("no environment"))));
        let mut table = table(style, &columns);
        for need in needs.iter().filter(|need| need.env.as_deref() == env) {
            table.add_row(row(need));
        }
        out.push_str(&render(&table));
    }
    out
}

fn row(need: &KernelNeed) -> Vec<Cell> {
    let (tone, word) = kernel_status(need.status);
    let words = match need.status {
        KernelStatus::Ready => need.reason.clone(),
        _ => format!("{}. {}", need.reason, need.otherwise),
    };
    vec![plain(&need.layer), plain(&need.package), cell(tone, word), plain(words)]
}

fn memory(report: &ModelReport) -> Vec<(String, String)> {
    let memory = &report.memory;
    let field = |name: &str, value: String| (name.to_owned(), value);
    let sourced = |fact: &Fact<u64>| format!("{} ({})", format::bytes(fact.value), fact.source);
    let mut rows = Vec::new();
    if let Some(parameters) = &memory.parameters {
        rows.push(field("parameters", format!("{} ({})", parameters.value, parameters.source)));
    }
    let counted = "for Python's engines, an estimate; `firstlight fit` counts for firstlight's own";
    rows.push(field("counted", counted.to_owned()));
    rows.extend(memory.weights_bytes.as_ref().map(|fact| field("weights", sourced(fact))));
    rows.push(field(
        "state",
        format!("{} a sequence", format::bytes(memory.state_bytes_per_sequence)),
    ));
    rows.push(field("cache", format!("{} a token", format::bytes(memory.cache_bytes_per_token))));
    let estimate = memory.workspace_bytes.saturating_add(memory.runtime_bytes);
    rows.push(field("workspace", format!("{} with the runtime's own", format::bytes(estimate))));
    let asked = format!(
        "{} of {} tokens",
        format::count(memory.sequences as usize, "sequence"),
        memory.context_tokens
    );
    rows.extend(
        memory
            .needed_bytes
            .map(|bytes| field("needs", format!("{} for {asked}", format::bytes(bytes)))),
    );
    rows.extend(memory.available.as_ref().map(|fact| field("free", sourced(fact))));
    let verdict = match (memory.fits, memory.left_bytes) {
        (Some(true), Some(left)) => {
            format!("fits, {} are left", format::bytes(left.unsigned_abs()))
        }
        (Some(false), Some(left)) => {
            format!("does not fit, {} are missing", format::bytes(left.unsigned_abs()))
        }
        _ => "not known: nothing tells how much memory is free".to_owned(),
    };
    rows.push(field("verdict", verdict));
    if let Some(tokens) = memory.longest_context_tokens {
        rows.push(field("longest", format!("{tokens} tokens a sequence")));
    }
    rows
}
