use super::Style;
use super::layout::{Column, cell, fields, paint, paragraph, plain, render, table, tagged};
use crate::document::Tone;
use facts::{
    InstallPlan, PackageOrigin, PlanRefusal, PlanTarget, PlannedPackage, RejectedCandidate,
};

/// Refused candidates that are shown without `explain`.
const SHOWN: usize = 3;
/// Packages of unknown size that are named.
const NAMED: usize = 3;

/// The chosen packages, notes on them, and the next commands, one line each. With `explain` also all refused
/// candidates, and the source of each choice.
pub fn plan(plan: &InstallPlan, explain: bool, next: &[String], style: Style) -> String {
    let mut out = paint(style, Tone::Plain, &format!("plan for {}", machine(&plan.target)));
    out.push_str("\n\n");
    out.push_str(&fields(style, &choice(plan)));
    out.push('\n');
    out.push_str(&packages(plan, style));
    if !plan.warnings.is_empty() {
        out.push('\n');
        let row = |fact: &facts::Fact<String>| {
            let source = if explain { format!(" [{}]", fact.source) } else { String::new() };
            (cell(Tone::Warn, "!"), format!("{}{source}", fact.value))
        };
        out.push_str(&tagged(style, plan.warnings.iter().map(row).collect()));
    }
    out.push_str(&refused("not taken", &plan.rejected, explain, style));
    if explain {
        out.push_str(&heading("where each choice was read", style));
        let row = |package: &PlannedPackage| (package.name.clone(), package.source.clone());
        out.push_str(&fields(style, &plan.packages.iter().map(row).collect::<Vec<_>>()));
    }
    out.push_str(&commands(next, style));
    out
}

/// The conflicting requirements, the nearest possible plans, and the next commands.
pub fn refusal(refusal: &PlanRefusal, explain: bool, next: &[String], style: Style) -> String {
    let words = format!("no plan for {}", machine(&refusal.target));
    let mut out = paint(style, Tone::Bad, &words);
    out.push('\n');
    out.push_str(&heading("these cannot all hold", style));
    let row = |fact: &facts::Fact<String>| {
        let source = if explain { format!(" [{}]", fact.source) } else { String::new() };
        (plain("-"), format!("{}{source}", fact.value))
    };
    out.push_str(&tagged(style, refusal.conflict.iter().map(row).collect()));
    for conflict in &refusal.further {
        out.push_str(&heading("and without what was asked for, these cannot", style));
        out.push_str(&tagged(style, conflict.iter().map(row).collect()));
    }
    if !refusal.nearest.is_empty() {
        out.push_str(&heading("what would work", style));
        let rows = refusal
            .nearest
            .iter()
            .map(|near| (cell(Tone::Good, ">"), format!("{}: {}", near.change, near.stack)));
        out.push_str(&tagged(style, rows.collect()));
    }
    out.push_str(&refused("what was tried", &refusal.rejected, explain, style));
    out.push_str(&commands(next, style));
    out
}

/// `gh200 (linux aarch64, compute capability 9.0)`.
fn machine(target: &PlanTarget) -> String {
    let name = if target.name == "this" { "this machine" } else { &target.name };
    let mut gpus: Vec<String> =
        target.gpus.iter().map(|gpu| format!("{}.{}", gpu.0, gpu.1)).collect();
    gpus.dedup();
    let gpus = match gpus[..] {
        [] => "no NVIDIA GPU".to_owned(),
        _ => format!("compute capability {}", gpus.join(", ")),
    };
    format!("{name} ({} {}, {gpus})", target.os, target.arch)
}

fn choice(plan: &InstallPlan) -> Vec<(String, String)> {
    let mut rows = vec![("Python".to_owned(), plan.python.clone())];
    rows.extend(plan.cuda.iter().map(|cuda| ("CUDA".to_owned(), cuda.clone())));
    let torch = plan.packages.iter().find(|package| package.name == "torch");
    rows.extend(torch.map(|torch| ("torch".to_owned(), torch.version.clone())));
    rows.extend(download(plan).map(|size| ("download".to_owned(), size)));
    rows
}

/// The download size, and the packages that it does not include.
fn download(plan: &InstallPlan) -> Option<String> {
    let size = |package: &PlannedPackage| package.files.first().and_then(|file| file.bytes);
    let bytes: u64 = plan.packages.iter().filter_map(size).sum();
    let unknown = plan.packages.iter().filter(|package| size(package).is_none());
    let mut missing: Vec<&str> = unknown.map(|package| package.name.as_str()).collect();
    if missing.len() > NAMED {
        missing.truncate(NAMED);
        missing.push("others");
    }
    if !plan.locked {
        missing.push("what these packages need");
    }
    let bytes = (bytes > 0).then(|| crate::format::file_size(bytes))?;
    Some(match missing[..] {
        [] => bytes,
        _ => format!("more than {bytes}: not counted are {}", missing.join(", ")),
    })
}

fn packages(plan: &InstallPlan, style: Style) -> String {
    let columns = [
        Column::word("package"),
        Column::wrapped("version"),
        Column::word("from"),
        Column::wrapped("why"),
    ];
    let mut table = table(style, &columns);
    for package in &plan.packages {
        let version = if package.version.is_empty() { "uv chooses" } else { &package.version };
        let from = match package.origin {
            PackageOrigin::Wheel => plain(&package.index),
            PackageOrigin::Build(_) => cell(Tone::Warn, "source build"),
        };
        table.add_row(vec![plain(&package.name), plain(version), from, plain(&package.because)]);
    }
    render(&table)
}

fn refused(title: &str, rejected: &[RejectedCandidate], explain: bool, style: Style) -> String {
    if rejected.is_empty() {
        return String::new();
    }
    let mut out = heading(title, style);
    let shown = if explain { rejected.len() } else { SHOWN };
    let row = |row: &RejectedCandidate| {
        let source = if explain { format!(" [{}]", row.source) } else { String::new() };
        (row.candidate.clone(), format!("{}{source}", row.reason))
    };
    out.push_str(&fields(style, &rejected.iter().take(shown).map(row).collect::<Vec<_>>()));
    if rejected.len() > shown {
        let more =
            format!("  and {} more: --explain shows each with its reason", rejected.len() - shown);
        out.push_str(&paragraph(style, &more));
    }
    out
}

fn heading(words: &str, style: Style) -> String {
    format!("\n{}\n", paint(style, Tone::Plain, words))
}

/// Commands are not wrapped, so that they can be copied.
fn commands(next: &[String], style: Style) -> String {
    if next.is_empty() {
        return String::new();
    }
    let lines: String = next.iter().map(|line| format!("  {line}\n")).collect();
    format!("{}{lines}", heading("next", style))
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::{Fact, NearestPlan, PlanIndex};

    fn target() -> PlanTarget {
        PlanTarget {
            name: "gh200".into(),
            os: "linux".into(),
            arch: "aarch64".into(),
            glibc: Some("2.35".into()),
            gpus: vec![(9, 0)],
            driver: None,
            cuda_limit: None,
            tegra: false,
            memory_bytes: None,
            source: "a data sheet".into(),
        }
    }

    fn rejected(number: usize) -> RejectedCandidate {
        RejectedCandidate {
            candidate: format!("torch 2.{number}.0 cu130"),
            reason: "no wheel of flash-attn for it, CUDA 13.0, Python 3.12 and aarch64".into(),
            source: "a README".into(),
        }
    }

    fn sample() -> InstallPlan {
        let package = |name: &str, version: &str, index: &str| PlannedPackage {
            name: name.into(),
            version: version.into(),
            index: index.into(),
            because: "profile granite-a10".into(),
            origin: PackageOrigin::Wheel,
            marker: None,
            files: Vec::new(),
            source: "a table".into(),
        };
        InstallPlan {
            schema: facts::SCHEMA,
            target: target(),
            wants: Vec::new(),
            python: "3.12".into(),
            cuda: Some("12.6".into()),
            indexes: Vec::<PlanIndex>::new(),
            packages: vec![
                package("torch", "2.12.1+cu126", "pytorch-cu126"),
                package("flash-attn", "2.8.3+cu12.6torch2.12.1cxx11abiTRUE", "astral-flash-cu126"),
                package("transformers", "", "pypi"),
            ],
            warnings: vec![Fact::new("CUDA 12.6 needs driver 525.60.13 or newer".into(), "NVIDIA")],
            rejected: (13..18).map(rejected).collect(),
            locked: false,
        }
    }

    #[test]
    fn plan_fits_80_columns_and_explains_on_request() {
        let next =
            ["firstlight plan flash-attn --machine gh200 --emit plan.toml -o plan.toml".to_owned()];
        let short = plan(&sample(), false, &next, Style::default());
        assert!(short.lines().all(|line| line.chars().count() <= 80), "{short}");
        for words in [
            "plan for gh200 (linux aarch64, compute capability 9.0)",
            "uv chooses",
            "and 2 more",
            next[0].as_str(),
        ] {
            assert!(short.contains(words), "{words}: {short}");
        }
        assert!(!short.contains("torch 2.17.0 cu130") && !short.contains("a README"), "{short}");
        let long = plan(&sample(), true, &[], Style::default());
        assert!(long.contains("torch 2.17.0 cu130") && long.contains("a README"), "{long}");
        assert!(!long.contains("\nnext\n"), "{long}");
    }

    #[test]
    fn refusal_lists_conflicts_and_nearest_plans() {
        let refused = PlanRefusal {
            target: PlanTarget { gpus: Vec::new(), name: "this".into(), ..target() },
            wants: Vec::new(),
            conflict: vec![Fact::new("vllm is wanted".into(), "requirement")],
            further: Vec::new(),
            nearest: vec![NearestPlan {
                change: "leave out vllm".into(),
                stack: "torch 2.11.0".into(),
            }],
            rejected: vec![rejected(13)],
        };
        let next = ["firstlight plan vllm --machine a100".to_owned()];
        let text = refusal(&refused, false, &next, Style::default());
        assert!(text.ends_with("--machine a100\n"), "{text}");
        assert!(
            text.starts_with("no plan for this machine (linux aarch64, no NVIDIA GPU)\n"),
            "{text}"
        );
        assert!(text.contains("leave out vllm: torch 2.11.0"), "{text}");
        assert!(!text.contains("[requirement]"), "{text}");
        assert!(refusal(&refused, true, &[], Style::default()).contains("[requirement]"));
        let also = vec![vec![Fact::new("vllm needs an NVIDIA GPU".into(), "a guide")]];
        let text = refusal(&PlanRefusal { further: also, ..refused }, false, &[], Style::default());
        let words = "and without what was asked for, these cannot\n-  vllm needs an NVIDIA GPU";
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn download_size_lists_packages_of_unknown_size() {
        let file = |bytes| facts::PlannedFile {
            name: "x-1-py3-none-any.whl".into(),
            url: None,
            sha256: None,
            bytes,
        };
        let mut planned = sample();
        assert_eq!(download(&planned), None);
        planned.packages[1].files = vec![file(Some(184_700_000))];
        let partial = download(&planned).expect("a size");
        assert_eq!(
            partial,
            "more than 184.7 MB: not counted are torch, transformers, what these packages need"
        );
        for package in &mut planned.packages {
            package.files = vec![file(Some(1_000_000))];
        }
        planned.locked = true;
        assert_eq!(download(&planned).expect("a size"), "3.0 MB");
    }
}
