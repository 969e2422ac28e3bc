//! Reports have commands for pending work, doubts next to the figures, and no section without content.

mod fixture;

use facts::{
    BackendKind, CeilingDrift, CeilingKind, ConcurrentLoad, Conditions, Moment, SkippedStage,
};
use fixture::{Sample, small};
use report::markdown;

/// A sample whose ceilings of the processor moved while it was timed.
fn moved(ceiling: CeilingKind) -> Sample {
    let mut sample = small();
    let backends: Vec<BackendKind> = sample.bench.rows.iter().map(|row| row.backend).collect();
    sample.bench.conditions = backends
        .into_iter()
        .map(|backend| Conditions {
            backend,
            before: Moment::default(),
            after: Moment::default(),
            meanwhile: ConcurrentLoad::default(),
            ceilings: vec![CeilingDrift { ceiling, before: 227.0, after: 463.0 }],
        })
        .collect();
    sample
}

/// The lines of a section, from its heading to the next one of its level.
fn section<'a>(text: &'a str, title: &str) -> &'a str {
    let start =
        text.find(&format!("</a>{title}\n")).unwrap_or_else(|| panic!("no {title}: {text}"));
    let rest = &text[start..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

#[test]
fn pending_entries_have_their_commands() {
    let mut sample = small();
    sample.manifest.command = [
        "/usr/bin/firstlight",
        "check",
        "--quick",
        "--op",
        "kda",
        "-o",
        "run",
        "--venv",
        "my venv",
    ]
    .map(str::to_owned)
    .to_vec();
    sample.manifest.not_run = [
        ("the standard matrix", "--quick was given"),
        ("the kernels of packages", "no environment was named: `--venv DIR` or `--python EXE`"),
        ("kernels on GPU 1", "not visible to this process: CUDA_VISIBLE_DEVICES selects the GPUs"),
    ]
    .map(|(what, why)| SkippedStage { what: what.to_owned(), why: why.to_owned() })
    .to_vec();
    let text = markdown(&sample.run());
    let again = "firstlight check --venv 'my venv'";
    for command in [again, &format!("env -u CUDA_VISIBLE_DEVICES {again}")] {
        assert!(text.contains(&format!("`{command}`")), "no `{command}` in {text}");
    }
    let summary = section(&text, "Summary");
    assert!(summary.contains(&format!("(#still-pending): `{again}`")), "{summary}");
}

#[test]
fn doubtful_times_are_in_the_summary_and_their_shares_are_not_shown() {
    let quiet = markdown(&small().run());
    let quiet = section(&quiet, "Summary");
    assert!(!quiet.contains("in doubt") && quiet.contains("of the ceiling"), "{quiet}");
    for ceiling in [CeilingKind::Copy, CeilingKind::GemmBf16, CeilingKind::GemmF32] {
        let sample = moved(ceiling);
        let text = markdown(&sample.run());
        let summary = section(&text, "Summary");
        assert!(
            summary.contains("[in doubt](#bench)") && summary.contains("moved by"),
            "{summary}"
        );
        let page = report::html(&sample.run());
        let step = "Time again on a quiet machine: <code>firstlight check";
        assert!(page.contains(step), "{page}");
        let of_ceiling = |row: &&facts::BenchRow| row.against == Some(ceiling);
        let hidden = sample.bench.rows.iter().filter(of_ceiling).count();
        let shown = section(&text, "Speed").matches("in doubt: its ceiling moved").count();
        assert!(shown >= hidden, "{shown} of {hidden}");
    }
}

#[test]
fn shapes_have_a_legend() {
    let page = report::html(&small().run());
    for words in ["The dimensions of the shapes", "B sequences", "T tokens of each sequence"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn sections_without_content_are_left_out() {
    let mut sample = small();
    if let Some(matrix) = &mut sample.doctor.matrix {
        matrix.here = None;
    }
    sample.doctor.machine.notes.clear();
    let text = markdown(&sample.run());
    for words in ["none of the platforms", "</a>What works where", "No limit of this machine"] {
        assert!(!text.contains(words), "{words}: {text}");
    }
}

#[test]
fn charts_without_a_bar_are_left_out() {
    let mut sample = small();
    assert!(report::html(&sample.run()).contains("id=\"figure-bench-"));
    for row in &mut sample.bench.rows {
        row.cache_resident = true;
    }
    let page = report::html(&sample.run());
    assert!(!page.contains("id=\"figure-bench-"), "{page}");
    assert!(page.contains("cache-resident"), "{page}");
}

#[test]
fn run_compared_with_itself_has_each_doubt_once() {
    let sample = moved(CeilingKind::Copy);
    let recorded = || report::Recorded {
        name: "a",
        manifest: None,
        doctor: None,
        parity: None,
        bench: Some(&sample.bench),
        edited: &[],
    };
    let comparison = report::compare(&recorded(), &recorded(), 5.0);
    let mut once = comparison.unclear.clone();
    once.dedup();
    assert_eq!(comparison.unclear, once);
    assert!(!once.is_empty());
}

#[test]
fn changes_of_many_cases_of_a_kernel_share_a_line() {
    let sample = small();
    let row = sample.parity.rows.first().expect("a row").clone();
    let rows = |range: std::ops::Range<usize>| {
        let rows =
            range.map(|case| facts::ParityRow { case: format!("case/{case}"), ..row.clone() });
        facts::ParityReport { schema: facts::SCHEMA, rows: rows.collect() }
    };
    let shown = |base: &facts::ParityReport, run: &facts::ParityReport| {
        let recorded = |name, parity| report::Recorded {
            name,
            manifest: None,
            doctor: None,
            parity: Some(parity),
            bench: None,
            edited: &[],
        };
        let (base, run) = (recorded("a", base), recorded("b", run));
        let gate = report::gate(&run, &base, 5.0, true);
        let style = report::terminal::Style { color: false, width: 200 };
        (report::terminal::gate(&gate, style), gate.failures.len())
    };
    let (text, failures) = shown(&rows(0..9), &rows(0..4));
    assert_eq!(failures, 1, "{text}");
    let line = format!(
        "{} 5 cases {} {} on {} were PASS and are not run",
        row.op, row.dtype, row.variant, row.backend
    );
    assert_eq!(text.matches(&line).count(), 2, "no `{line}` twice in {text}");
    // Few cases are named.
    let (text, failures) = shown(&rows(0..9), &rows(0..6));
    assert_eq!(failures, 3, "{text}");
    assert!(text.contains("case/8") && !text.contains(" cases "), "{text}");
}
