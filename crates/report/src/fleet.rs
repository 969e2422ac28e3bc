//! The checks of a fleet's ranks as a separate document.

use crate::document::{Block, Document, Prose, Section, Table, Tone};
use crate::format;
use crate::run::{Documents, MANIFEST_FILE};
use crate::sections::{finding_card, finding_tone};
use facts::CompactSort;
use facts::{
    FleetReport, GpuSpeed, RankPart, RunManifest, RunState, SkippedStage, StackDifference,
};
use std::collections::BTreeMap;

/// The file with the results of a fleet's ranks: a [`FleetReport`] as JSON.
pub const FLEET_FILE: &str = "fleet.json";

/// Maximum rows of a table that are shown; the file has all.
const LISTED: usize = 100;

/// `report.md` and `report.html` of a fleet. The same input gives the same bytes.
pub fn fleet_report(fleet: &FleetReport, manifest: &RunManifest) -> Documents {
    let section = |id, title, blocks| Section { id, title, blocks };
    let banner = (manifest.state == RunState::Incomplete).then(|| {
        let words = " A rank was lost or the check is still running: nothing below is complete (";
        let words = Prose::new().strong("Incomplete.").text(words).file(MANIFEST_FILE).text(").");
        (Tone::Bad, words)
    });
    let hosts: std::collections::BTreeSet<&str> =
        fleet.ranks.iter().map(|rank| rank.host.as_str()).collect();
    let document = Document {
        title: format!("fleet of {}", format::count(fleet.ranks.len(), "rank")),
        subtitle: Prose::from(format!(
            "{} on {} · {}",
            fleet.launcher,
            format::count(hosts.len(), "host"),
            format::time(&manifest.started)
        )),
        verdict: Some(verdict(fleet)),
        banner,
        sections: vec![
            section("findings", "Between the ranks", findings(fleet)),
            section("ranks", "Ranks", ranks(fleet)),
            section("found", "What the ranks found", found(fleet)),
            section("stack", "Stacks", stack(fleet)),
            section("bits", "Bits", bits(fleet)),
            section("speed", "Speed", speed(fleet)),
            section("pending", "Not done", pending(fleet)),
        ],
    };
    Documents {
        markdown: crate::markdown::render_within(&document, 300),
        html: crate::html::render(&document),
    }
}

/// The outcome in one sentence.
pub(crate) fn sentence(fleet: &FleetReport) -> String {
    let broke = fleet.ranks.iter().filter(|rank| rank.broke.is_some()).count();
    let failed: u32 = fleet.ranks.iter().map(|rank| rank.failed).sum();
    let passed: u32 = fleet.ranks.iter().map(|rank| rank.passed).sum();
    let unread: u32 = fleet.ranks.iter().map(|rank| rank.unread).sum();
    let mut words = format!(
        "{}, {} between them: {passed} checks passed, {failed} failed",
        format::count(fleet.ranks.len(), "rank"),
        format::count(fleet.findings.len(), "finding"),
    );
    if broke > 0 {
        words += &format!("; {} did not finish", format::count(broke, "rank"));
    }
    if unread > 0 {
        words += &format!("; {} of the stacks not read", format::count(unread as usize, "file"));
    }
    words + "."
}

fn verdict(fleet: &FleetReport) -> (Tone, Prose) {
    let broke = fleet.ranks.iter().any(|rank| rank.broke.is_some() || rank.failed > 0);
    let worst = fleet.findings.iter().map(|finding| finding_tone(finding.severity).0);
    let bad = broke || worst.clone().any(|tone| tone == Tone::Bad);
    let left_out = fleet.ranks.iter().any(|rank| rank.unread > 0 || rank.passed == 0);
    let tone = match (bad, left_out || worst.clone().any(|tone| tone == Tone::Warn)) {
        (true, _) => Tone::Bad,
        (false, true) => Tone::Warn,
        (false, false) => Tone::Good,
    };
    (tone, Prose::from(sentence(fleet)))
}

fn from_file(words: impl Into<String>) -> Prose {
    Prose::new().text(format!("{}, from ", words.into())).file(FLEET_FILE).text(".")
}

fn findings(fleet: &FleetReport) -> Vec<Block> {
    if fleet.findings.is_empty() {
        return vec![Block::Paragraph(Prose::from(
            "No rule found a rank that is not as the others are.",
        ))];
    }
    let cards = fleet.findings.iter().enumerate();
    cards.map(|(place, finding)| finding_card(place, finding, FLEET_FILE)).collect()
}

fn ranks(fleet: &FleetReport) -> Vec<Block> {
    let heads = ["Rank", "Host", "Verdict", ">Passed", ">Failed", ">Timed", "Folder"];
    let mut table = Table::new(from_file("The result of each rank's check"), &heads);
    for rank in fleet.ranks.iter().take(LISTED) {
        let RankPart { host, verdict, passed, failed, timed, folder, broke, .. } = rank;
        let verdict = match broke {
            Some(why) => Prose::new().chip(Tone::Bad, "BROKE").text(format!(" {why}")),
            None if verdict.is_empty() => Prose::from("not done"),
            None => Prose::from(verdict.as_str()),
        };
        let folder = match folder.as_str() {
            "" => Prose::from(format::ABSENT),
            folder => Prose::new().file(format!("{folder}/report.html")),
        };
        table.row(vec![
            Prose::from(rank.rank.to_string()),
            Prose::new().code(host),
            verdict,
            Prose::from(passed.to_string()),
            Prose::from(failed.to_string()),
            Prose::from(timed.to_string()),
            folder,
        ]);
    }
    vec![Block::Table(table)]
}

/// `ranks 0-2, 5`.
fn numbers(ranks: &[u32]) -> String {
    let words = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{words} {}", format::ranges(ranks))
}

fn found(fleet: &FleetReport) -> Vec<Block> {
    if fleet.found.is_empty() {
        return vec![Block::Paragraph(Prose::from(
            "No rank found an error or a warning about its own machine.",
        ))];
    }
    let mut items = Vec::new();
    for found in &fleet.found {
        let mut by_title: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (rank, title) in &found.titles {
            by_title.entry(title).or_default().push(*rank);
        }
        let (tone, word) = finding_tone(found.severity);
        for (title, ranks) in by_title {
            let words = format!(" {}: {title} ", numbers(&ranks));
            items.push(Prose::new().chip(tone, word).text(words).code(&found.rule));
        }
    }
    vec![Block::List(items)]
}

fn stack(fleet: &FleetReport) -> Vec<Block> {
    let compared = format::count(fleet.stack_compared as usize, "file");
    if fleet.stack.is_empty() {
        let words = match fleet.stack_compared {
            0 => "No file was compared between ranks.".to_owned(),
            _ => format!(
                "{compared} compared by SHA-256 are the same on all ranks that have them read."
            ),
        };
        return vec![Block::Paragraph(Prose::from(words))];
    }
    let words = format!("{} of {compared} differ", fleet.stack.len());
    let heads = ["File", "Ranks", "Release", ">Bytes", "SHA-256"];
    let mut table = Table::new(from_file(words), &heads);
    for StackDifference { what, odd, forms } in fleet.stack.iter().take(LISTED) {
        for form in forms {
            let is_odd = form.ranks.iter().all(|rank| odd.contains(rank));
            let ranks = Prose::from(numbers(&form.ranks));
            let ranks =
                if is_odd { Prose::new().chip(Tone::Warn, numbers(&form.ranks)) } else { ranks };
            let of = |value: Option<String>| {
                Prose::from(value.unwrap_or_else(|| format::ABSENT.to_owned()))
            };
            let file = form.file.as_ref();
            let hash = file.map_or("not there", |file| {
                file.sha256.as_deref().map_or("not read", |hash| &hash[..hash.len().min(12)])
            });
            table.row(vec![
                Prose::new().code(what),
                ranks,
                of(file.and_then(|file| file.version.clone())),
                of(file.map(|file| file.bytes.to_string())),
                Prose::new().code(hash),
            ]);
        }
    }
    vec![Block::Table(table)]
}

fn bits(fleet: &FleetReport) -> Vec<Block> {
    let lines = fleet.kinds.iter().filter(|kind| kind.compared > 0).map(|kind| {
        let differ = kind.differing.len();
        let tone = if differ > 0 { Tone::Bad } else { Tone::Good };
        let words = format!(
            " {} x {}: the bits of {} compared, {differ} of them differ",
            kind.gpus.len(),
            kind.name,
            format::count(kind.compared as usize, "check"),
        );
        Prose::new().chip(tone, if differ > 0 { "DIFFERENT" } else { "SAME" }).text(words)
    });
    match lines.collect::<Vec<_>>() {
        none if none.is_empty() => {
            let words = "No two GPUs of one name were checked, so that no bits were compared; those of processors are not.";
            vec![Block::Paragraph(Prose::from(words))]
        }
        lines => vec![Block::List(lines)],
    }
}

fn speed(fleet: &FleetReport) -> Vec<Block> {
    let heads = ["Device", "Rank", "Host", ">Kernels", ">Time by siblings'", "Slowest op"];
    let mut table =
        Table::new(from_file("Median time of the same kernels by that of the siblings"), &heads);
    let speeds = fleet.kinds.iter().flat_map(|kind| &kind.speed);
    let mut speeds: Vec<&GpuSpeed> = speeds.filter(|speed| speed.median.is_some()).collect();
    speeds.compact_sort_by(|a, b| {
        b.median.partial_cmp(&a.median).unwrap_or(std::cmp::Ordering::Equal)
    });
    for speed in speeds.into_iter().take(LISTED) {
        let Some(device) = fleet.devices.get(speed.gpu as usize) else { continue };
        let index = device.gpu.map(|index| format!("GPU {index}, ")).unwrap_or_default();
        let slowest = speed.by_op.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let slowest = slowest.map(|(op, ratio)| format!("{op} {ratio:.3}")).unwrap_or_default();
        table.row(vec![
            Prose::from(format!("{index}{}", device.name)),
            Prose::from(device.rank.to_string()),
            Prose::new().code(&device.host),
            Prose::from(speed.rows.to_string()),
            Prose::from(speed.median.map_or(String::new(), |median| format!("{median:.3}"))),
            Prose::from(slowest),
        ]);
    }
    if table.rows.is_empty() {
        return vec![Block::Paragraph(Prose::from(
            "No two devices of one name timed the same kernels.",
        ))];
    }
    vec![Block::Table(table)]
}

fn pending(fleet: &FleetReport) -> Vec<Block> {
    let mut left: BTreeMap<(&str, &str), Vec<u32>> = BTreeMap::new();
    for rank in &fleet.ranks {
        for SkippedStage { what, why } in &rank.not_run {
            left.entry((what, why)).or_default().push(rank.rank);
        }
    }
    if left.is_empty() {
        return vec![Block::Paragraph(Prose::from("No rank that finished omitted anything."))];
    }
    let line = |((what, why), ranks): ((&str, &str), Vec<u32>)| {
        Prose::from(format!("{}: {what}: {why}", numbers(&ranks)))
    };
    vec![Block::List(left.into_iter().map(line).collect())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{Confidence, Finding, RankFinding, SCHEMA, Severity, StackFile, StackForm};

    fn report() -> FleetReport {
        let part = |rank: u32| RankPart {
            rank,
            host: format!("node-{rank}"),
            folder: format!("rank-{rank}"),
            verdict: "processor verified, no GPU".to_owned(),
            passed: 5,
            timed: 2,
            not_run: vec![SkippedStage {
                what: "the standard matrix".into(),
                why: "--quick was given".into(),
            }],
            ..RankPart::default()
        };
        let file = |hash: &str| StackFile {
            what: "nccl".into(),
            path: "/usr/lib/libnccl.so.2".into(),
            version: Some("2".into()),
            bytes: 7,
            sha256: Some(hash.repeat(16)),
        };
        let form =
            |hash, ranks: &[u32]| StackForm { file: Some(file(hash)), ranks: ranks.to_vec() };
        FleetReport {
            schema: SCHEMA,
            launcher: "Slurm".into(),
            ranks: vec![
                part(0),
                part(1),
                RankPart { broke: Some("killed".into()), folder: String::new(), ..part(2) },
            ],
            devices: Vec::new(),
            kinds: Vec::new(),
            stack_compared: 9,
            stack: vec![StackDifference {
                what: "nccl".into(),
                odd: vec![1],
                forms: vec![form("aaaa", &[0, 2]), form("bbbb", &[1])],
            }],
            findings: vec![Finding {
                rule: "stack-differs".into(),
                severity: Severity::Warning,
                title: "rank 1 (node-1) has another nccl than most ranks".into(),
                evidence: Vec::new(),
                cause: "it was changed".into(),
                fix: vec!["sha256sum /usr/lib/libnccl.so.2".into()],
                remedy: Vec::new(),
                confidence: Confidence::Certain,
                links: Vec::new(),
            }],
            found: vec![RankFinding {
                severity: Severity::Error,
                rule: "xid".into(),
                titles: BTreeMap::from([(0, "Xid 79".to_owned()), (1, "Xid 79".to_owned())]),
            }],
        }
    }

    fn manifest(state: RunState) -> RunManifest {
        RunManifest {
            schema: SCHEMA,
            state,
            command: Vec::new(),
            version: String::new(),
            built_from: None,
            run_in: None,
            host: "node-0".into(),
            started: "2026-11-25T10:00:00Z".into(),
            finished: None,
            stages: Vec::new(),
            not_run: Vec::new(),
            coverage: None,
            artefacts: Vec::new(),
        }
    }

    #[test]
    fn report_names_ranks_that_differ() {
        let text = fleet_report(&report(), &manifest(RunState::Complete)).markdown;
        for words in [
            "# firstlight: fleet of 3 ranks",
            "Slurm on 3 hosts",
            "3 ranks, 1 finding between them: 15 checks passed, 0 failed; 1 rank did not finish.",
            "rank 1 (node-1) has another nccl than most ranks",
            "ranks 0-1: Xid 79",
            "| `nccl` | rank 1 | 2 | 7 | `bbbbbbbbbbbb` |",
            "**BROKE** killed",
            "ranks 0-2: the standard matrix: --quick was given",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
        assert!(!text.contains("Incomplete."));
        let lost = fleet_report(&report(), &manifest(RunState::Incomplete)).markdown;
        assert!(lost.contains("**Incomplete.** A rank was lost"), "{lost}");
    }

    #[test]
    fn missing_comparisons_are_reported() {
        let bare =
            FleetReport { stack_compared: 0, stack: Vec::new(), findings: Vec::new(), ..report() };
        let text = fleet_report(&bare, &manifest(RunState::Complete)).markdown;
        for words in [
            "No file was compared between ranks.",
            "so that no bits were compared",
            "No two devices of one name",
        ] {
            assert!(text.contains(words), "no {words} in {text}");
        }
    }
}
