//! `firstlight check --emit KIND`: the file that runs this check on a cluster, with the given options.

use crate::Outcome;
use crate::cli::{Check, ClusterFile};
use crate::destination;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_folder::write_atomically;

/// The templates, and the time limit of each in seconds; text between `{{` and `}}` is replaced.
const TEMPLATES: &[(ClusterFile, &str, u64)] = &[
    // slurmd kills a HealthCheckProgram after 60 s.
    (ClusterFile::SlurmHealthcheck, include_str!("emit/slurm-healthcheck.sh"), 50),
    (ClusterFile::KubernetesJob, include_str!("emit/kubernetes-job.yaml"), 1800),
    (ClusterFile::Daemonset, include_str!("emit/daemonset.yaml"), 900),
    (ClusterFile::NodeProblemDetector, include_str!("emit/node-problem-detector.json"), 50),
    (ClusterFile::Skypilot, include_str!("emit/skypilot.yaml"), 1800),
    (ClusterFile::SlurmProlog, include_str!("emit/slurm-prolog.sh"), 600),
    (ClusterFile::InitContainer, include_str!("emit/init-container.yaml"), 1800),
];

/// Time limit of node-problem-detector and slurmd in seconds.
const LIMIT: u64 = 60;

pub(super) fn run(
    kind: ClusterFile,
    arguments: &Check,
    output: &Output,
) -> anyhow::Result<Outcome> {
    arguments.output.as_deref().map(destination::file).transpose()?;
    let text = text(kind, arguments)?;
    match &arguments.output {
        Some(file) => write_atomically(file, text.as_bytes())?,
        None => output.text(text.trim_end())?,
    }
    Ok(Outcome::Good)
}

fn text(kind: ClusterFile, arguments: &Check) -> anyhow::Result<String> {
    let (_, template, usual) =
        TEMPLATES.iter().find(|(of, ..)| *of == kind).unwrap_or(&TEMPLATES[0]);
    let short = matches!(kind, ClusterFile::SlurmHealthcheck | ClusterFile::NodeProblemDetector);
    let budget = arguments.budget.unwrap_or(*usual);
    if short && budget >= LIMIT {
        let what = format!("--budget {budget} is too long: Slurm kills the prolog after {LIMIT} s");
        return Err(Failure::hinted(what, "leave --budget out, or give less than 60"));
    }
    let certified = matches!(kind, ClusterFile::SlurmProlog | ClusterFile::InitContainer);
    if certified && !arguments.op.is_empty() {
        let what = "--op is not allowed here: a certificate covers all kernels";
        return Err(Failure::hinted(what, "leave --op out; --quick takes less time"));
    }
    if certified && arguments.redact {
        let what = "--redact is not allowed here: a certificate names its GPUs and files";
        return Err(Failure::hinted(what, "leave --redact out"));
    }
    let mut options = vec!["--budget".to_owned(), budget.to_string()];
    // By default, a check with one minute runs the quick cases.
    if arguments.quick || (short && !arguments.full) {
        options.push("--quick".to_owned());
    }
    if arguments.full {
        options.push("--full".to_owned());
    }
    if !arguments.op.is_empty() {
        options.extend(["--op".to_owned(), arguments.op.join(",")]);
    }
    for (name, seconds) in [
        ("--memory-budget", arguments.memory_budget),
        ("--fabric-budget", arguments.fabric_budget),
        ("--sustain", arguments.sustain),
    ] {
        options.extend(seconds.iter().flat_map(|it| [name.to_owned(), it.to_string()]));
    }
    if arguments.redact {
        options.push("--redact".to_owned());
    }
    let quoted: Vec<String> = options.iter().map(|option| format!("{option:?}")).collect();
    let fill = [
        ("options", options.join(" ")),
        ("quoted options", quoted.join(", ")),
        ("budget", budget.to_string()),
        // The check, and the verification of its certificate before and after.
        ("prolog timeout", (budget + 60).to_string()),
        ("nodes", arguments.fleet.nodes.to_string()),
        ("image", arguments.fleet.image.clone()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
    ];
    Ok(fill.iter().fold((*template).to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{{{name}}}}}"), value)
    }))
}

#[cfg(test)]
mod tests;
