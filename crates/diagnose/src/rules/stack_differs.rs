use super::Rule;
use facts::{Confidence, Finding, FleetReport, Severity, StackDifference, StackFile};
use std::collections::BTreeMap;

pub(super) const RULE: Rule = Rule {
    id: "stack-differs",
    title: "one node of a fleet has other files than the others",
    about: "\
Identically installed nodes can diverge: a driver was updated on some of them, an environment was installed a day later,
or a library was replaced. A job that runs on all of them then fails on one, computes other values there, or hangs in a
collective.

Detected by comparing file contents, not versions: the SHA-256 of firstlight itself, of the driver's libraries, of the C
library, of NCCL, cuBLASLt, cuDNN and NVRTC, and of each compiled file of each Python environment, by its name. If most
ranks agree, the ranks that differ are named. Files that were not read in time are listed as not read, never as equal.

Install the same driver and the same locked plan on all nodes.",
    remedy: |_| vec!["firstlight apply plan.toml --venv .venv".to_owned()],
    check_fleet: Some(check),
    ..Rule::BLANK
};

/// Maximum number of files in a finding.
const LISTED: usize = 8;

fn check(fleet: &FleetReport) -> Vec<Finding> {
    let mut by_odd: BTreeMap<&[u32], Vec<&StackDifference>> = BTreeMap::new();
    for differs in &fleet.stack {
        by_odd.entry(&differs.odd).or_default().push(differs);
    }
    by_odd.into_iter().map(|(odd, files)| finding(fleet, odd, &files)).collect()
}

fn finding(fleet: &FleetReport, odd: &[u32], files: &[&StackDifference]) -> Finding {
    let compared = fleet.stack_compared;
    let first = files.first().map_or("", |differs| differs.what.as_str());
    let which = match files.len() {
        1 => first.to_owned(),
        more => format!("{first} and {} more", more - 1),
    };
    let title = match odd {
        [] => format!("the ranks differ in {which}, of {compared} files, and no majority agrees"),
        odd => {
            let name = |rank: &u32| {
                let host = fleet
                    .ranks
                    .iter()
                    .find(|part| part.rank == *rank)
                    .map(|part| part.host.as_str());
                format!("rank {rank} ({})", host.unwrap_or_default())
            };
            let ranks: Vec<String> = odd.iter().map(name).collect();
            let verb = if odd.len() == 1 { "has" } else { "have" };
            format!("{} {verb} another {which} than most ranks", ranks.join(", "))
        }
    };
    let mut draft = RULE.finding(Severity::Warning, Confidence::Certain, title);
    for differs in files.iter().take(LISTED) {
        for form in &differs.forms {
            let ranks: Vec<String> = form.ranks.iter().map(u32::to_string).collect();
            let has = form.file.as_ref().map_or("not there".to_owned(), described);
            let whose = if ranks.len() == 1 { "rank" } else { "ranks" };
            let what = format!("{} of {whose} {}: {has}", differs.what, ranks.join(", "));
            let source = form.file.as_ref().map_or("stack.json of each rank", |file| &file.path);
            draft = draft.evidence(what, source);
        }
    }
    let paths =
        files.iter().flat_map(|differs| &differs.forms).filter_map(|form| form.file.as_ref());
    let path = paths.map(|file| facts::quote(&file.path)).next().unwrap_or_default();
    draft
        .cause("The nodes were not installed from the same files, or one was changed since.")
        .fix([
            "# compare on both nodes, then install the same driver and the same plan on all:"
                .to_owned(),
            format!("sha256sum {path}"),
            "firstlight apply plan.toml --venv .venv".to_owned(),
        ])
        .finish()
}

fn described(file: &StackFile) -> String {
    let version = file.version.as_ref().map(|version| format!("{version}, ")).unwrap_or_default();
    let hash = file.sha256.as_deref().map_or("not read", |hash| hash.get(..12).unwrap_or(hash));
    format!("{version}{} bytes, {hash}", file.bytes)
}
