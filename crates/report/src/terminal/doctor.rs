use super::Style;
use super::brief::{IndexCheck, unresolved};
use super::gpus::gpus;
use super::layout::{fields, paint, paragraph};
use super::model::model;
use crate::document::Tone;
use crate::escape;
use crate::format;
use crate::sections::{describe, finding_tone, findings_sentence, machine_kind, version};
use crate::stack::five_lines;
use facts::{Confidence, DoctorReport, Fact, Finding, Machine, PyEnv};

/// The machine, the five lines of each environment, and every finding with evidence, cause, fix and links.
pub fn doctor(report: &DoctorReport, style: Style) -> String {
    doctor_with(report, style, IndexCheck::NotAsked)
}

/// [`doctor`] with the answer of a package index about the remedies.
pub fn doctor_with(report: &DoctorReport, style: Style, index: IndexCheck<'_>) -> String {
    let mut out = format!("{}\n", paint(style, Tone::Plain, "machine"));
    out.push_str(&fields(style, &machine(&report.machine)));
    let side_by_side = gpus(&report.machine, style);
    if !side_by_side.is_empty() {
        out.push('\n');
        out.push_str(&side_by_side);
    }
    for env in &report.envs {
        out.push('\n');
        out.push_str(&paragraph(style, &format!("environment {} ({})", env.root, describe(env))));
        out.push_str(&fields(style, &environment(env)));
    }
    if report.envs.is_empty() {
        out.push_str("\nno Python environment was found\n");
    }
    if let Some(wanted) = &report.model {
        out.push('\n');
        out.push_str(&model(wanted, style));
    }
    out.push('\n');
    out.push_str(&paragraph(style, &findings_sentence(report)));
    for found in &report.findings {
        out.push('\n');
        finding(&mut out, found, style);
    }
    let unresolved = unresolved(report, style, index);
    if !unresolved.is_empty() {
        out.push('\n');
    }
    out + &unresolved
}

/// One finding with its evidence, cause, fix and links, for `explain`.
pub fn one_finding(found: &Finding, style: Style) -> String {
    let mut out = String::new();
    finding(&mut out, found, style);
    out
}

fn field(name: impl Into<String>, value: impl Into<String>) -> (String, String) {
    (name.into(), value.into())
}

/// The main facts; the report has all of them with their sources.
fn machine(machine: &Machine) -> Vec<(String, String)> {
    let value = |fact: &Option<Fact<String>>| fact.as_ref().map(|fact| fact.value.clone());
    let joined =
        |parts: Vec<Option<String>>| parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    let mut rows = vec![field(
        "platform",
        format!(
            "{}, {}, backend {}",
            machine.platform,
            machine_kind(machine.kind),
            machine.backend
        ),
    )];
    let mut add = |name: &str, words: String| {
        if !words.is_empty() {
            rows.push(field(name, words));
        }
    };
    let os = &machine.os;
    let kernel = value(&os.kernel).map(|kernel| format!("kernel {kernel}"));
    add("system", joined(vec![value(&os.name), kernel, value(&os.libc)]));
    let cpu = &machine.cpu;
    let cores = match (&cpu.usable_cores, &cpu.logical_cores) {
        (Some(usable), Some(logical)) => {
            Some(format!("{} of {} cores usable", usable.value, logical.value))
        }
        (Some(cores), None) | (None, Some(cores)) => {
            Some(format::count(cores.value as usize, "core"))
        }
        (None, None) => None,
    };
    let features =
        cpu.features.as_ref().map(|fact| fact.value.join(" ")).filter(|words| !words.is_empty());
    add("processor", joined(vec![value(&cpu.model), cores, features]));
    let memory = &machine.memory;
    let bytes = |fact: &Option<Fact<u64>>, word: &str| {
        fact.as_ref().map(|fact| format!("{}{word}", format::bytes(fact.value)))
    };
    let parts = vec![
        bytes(&memory.total_bytes, ""),
        bytes(&memory.available_bytes, " available"),
        bytes(&memory.limit_bytes, " limit"),
    ];
    add("memory", joined(parts));
    for gpu in &machine.gpus {
        let capability = gpu
            .compute_capability
            .as_ref()
            .map(|fact| format!("compute capability {}", version(fact.value)));
        let used = bytes(&gpu.memory_used_bytes, " in use");
        add(
            &format!("gpu {}", gpu.index),
            joined(vec![
                Some(gpu.name.value.clone()),
                capability,
                bytes(&gpu.memory_total_bytes, ""),
                used,
            ]),
        );
    }
    if machine.gpus.is_empty() {
        add("gpu", "none found".to_owned());
    }
    if let Some(driver) = &machine.driver {
        let limit = driver
            .cuda_limit
            .as_ref()
            .map(|limit| format!("accepts CUDA up to {}", version(limit.value)));
        let shown = driver.version().map(|fact| fact.value.clone());
        add("driver", joined(vec![shown, limit]));
        add("nvml", value(&driver.nvml_error).unwrap_or_default());
    }
    for toolkit in &machine.toolkits {
        let version = value(&toolkit.version).unwrap_or_else(|| "version not found".to_owned());
        let nvcc = if toolkit.has_nvcc { "" } else { ", without nvcc" };
        add("toolkit", format!("CUDA {version} in {}{nvcc}", toolkit.root));
    }
    for note in &machine.notes {
        add("note", note.clone());
    }
    rows
}

fn environment(env: &PyEnv) -> Vec<(String, String)> {
    let mut rows: Vec<_> =
        five_lines(env).into_iter().map(|(name, value, _)| field(name, value)).collect();
    let compiled = format::count(env.native_files.len(), "compiled file");
    rows.push(field("packages", format!("{}, {compiled}", env.dists.len())));
    rows.extend(env.problems.iter().map(|problem| field("problem", problem)));
    rows
}

fn finding(out: &mut String, finding: &Finding, style: Style) {
    let (tone, word) = finding_tone(finding.severity);
    // The word is painted after wrapping, so that colours do not count as columns.
    let title =
        paragraph(style, &format!("{}: {} [{}]", word.to_lowercase(), finding.title, finding.rule));
    out.push_str(&title.replacen(
        &word.to_lowercase(),
        &paint(style, tone, &word.to_lowercase()),
        1,
    ));
    let evidence = finding
        .evidence
        .iter()
        .map(|seen| field("evidence", format!("{} ({})", seen.what, seen.source)));
    let cause = match finding.confidence {
        Confidence::Certain => finding.cause.clone(),
        Confidence::Likely => format!("likely: {}", finding.cause),
        Confidence::Possible => format!("possibly: {}", finding.cause),
    };
    let rows: Vec<_> = evidence.chain([field("cause", cause)]).collect();
    out.push_str(&fields(style, &rows));
    for command in &finding.fix {
        out.push_str(&format!("  fix         {}\n", escape::terminal(command)));
    }
    for link in &finding.links {
        out.push_str(&format!("  see         {}\n", escape::terminal(link)));
    }
}
