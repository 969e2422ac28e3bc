//! The terminal output of a small run.

mod fixture;

use facts::Status;
use fixture::{parity_row, small};
use report::terminal::{self, Style};

/// All four texts of the small run.
fn texts(style: Style) -> Vec<(&'static str, String)> {
    let sample = small();
    vec![
        ("doctor", terminal::doctor(&sample.doctor, style)),
        ("parity", terminal::parity(&sample.parity, style)),
        ("bench", terminal::bench(&sample.bench, style)),
        ("summary", terminal::summary(&sample.run(), style)),
    ]
}

/// Text without its colours.
fn without_colour(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        out.push_str(before);
        rest = after.split_once('m').map_or("", |(_, tail)| tail);
    }
    out + rest
}

#[test]
fn the_texts_are_the_recorded_ones() {
    for (name, text) in texts(Style::default()) {
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("FIRSTLIGHT_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let wanted = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text == wanted,
            "{name} changed; look at it, then run again with FIRSTLIGHT_BLESS=1:\n{text}"
        );
    }
}

#[test]
fn lines_fit_the_width_and_commands_stay_whole() {
    for width in [60, 80, 132] {
        for (name, text) in texts(Style { color: false, width }) {
            for line in text.lines() {
                let copied = line.starts_with("  fix ") || line.starts_with("  see ");
                assert!(copied || line.chars().count() <= width, "{name} at {width}: {line:?}");
                assert_eq!(line, line.trim_end(), "{name}: blanks at a line's end");
            }
        }
    }
    let doctor = terminal::doctor(&small().doctor, Style { color: false, width: 40 });
    let command =
        "uv pip install torch==2.9.0 --torch-backend=cu128 --reinstall-package 'torch' # <pinned>";
    assert!(doctor.contains(&format!("  fix         {command}\n")), "{doctor}");
}

#[test]
fn colour_only_adds_colour() {
    for ((name, plain), (_, coloured)) in
        texts(Style::default()).into_iter().zip(texts(Style { color: true, width: 80 }))
    {
        assert!(!plain.contains('\u{1b}'), "{name} is plain");
        let trimmed: Vec<String> =
            without_colour(&coloured).lines().map(|line| line.trim_end().to_owned()).collect();
        assert_eq!(trimmed, plain.lines().collect::<Vec<_>>(), "{name}");
        assert!(coloured.contains('\u{1b}'), "{name} has colours");
    }
}

#[test]
fn the_five_lines_are_there() {
    let doctor = terminal::doctor(&small().doctor, Style::default());
    let block: Vec<&str> =
        doctor.lines().skip_while(|line| !line.starts_with("  python ")).take(5).collect();
    assert_eq!(
        block,
        [
            "  python      3.10.12",
            "  torch       2.9.0+cpu",
            "  cuda        none: torch is built for the CPU only",
            "  triton      3.5.0",
            "  flash_attn  not installed",
        ]
    );
}

#[test]
fn failures_come_first_with_their_reasons() {
    let text = terminal::parity(&small().parity, Style::default());
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} in {text}"));
    assert!(at("FAIL ") < at("UNPROVEN") && at("UNPROVEN") < at("SKIP") && at("SKIP") < at("N/A"));
    assert!(at("N/A") < at("attention, tiled cpu f32"), "the rows come after the reasons");
    assert!(
        text.contains("4 passed, 1 failed, 1 fell back to other kernels, 1 claims a"),
        "{text}"
    );
}

#[test]
fn a_name_cannot_move_the_cursor() {
    let mut sample = small();
    sample.parity.rows = vec![parity_row(
        "kda",
        "x\u{1b}[2J\u{7}y",
        "v",
        "f32",
        Status::Skip,
        Err("a\nb\u{1b}[31m"),
    )];
    sample.doctor.findings[0].fix = vec!["rm\u{1b}[8m -rf".into()];
    sample.doctor.findings[0].title = "t\u{1b}]0;owned\u{7}".into();
    for text in [
        terminal::parity(&sample.parity, Style::default()),
        terminal::doctor(&sample.doctor, Style::default()),
        report::markdown(&sample.run()),
        report::html(&sample.run()),
    ] {
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    }
}

#[test]
fn native_and_python_kernels_stand_side_by_side() {
    let mut sample = small();
    let native = parity_row("attention", "ffpa/d320", "wide", "bf16", Status::Pass, Ok(1e-3));
    let peer = |name: &str, package: &str, status, outcome| facts::ParityRow {
        peer: Some(package.into()),
        evidence: "fmha_cutlassF x1".into(),
        ..parity_row("attention", "ffpa/d320", name, "bf16", status, outcome)
    };
    let needs = Err("head dim 320 is over 256");
    sample.parity.rows = vec![
        native,
        peer("flash_attn.dense", "flash_attn 2.8.3", Status::NotApplicable, needs),
        peer("ffpa.triton", "ffpa_attn 0.2.4", Status::Fallback, Ok(2e-3)),
        peer("torch.sdpa.efficient", "torch 2.11.0", Status::Pass, Ok(2e-3)),
    ];
    let text = terminal::parity(&sample.parity, Style { color: false, width: 100 });
    let line = text.lines().find(|line| line.contains("ffpa/d320") && line.contains("FALLBACK"));
    let words: Vec<&str> = text
        .lines()
        .find(|line| line.trim_start().starts_with("ffpa/d320"))
        .map(|line| line.split_whitespace().collect())
        .unwrap_or_default();
    assert_eq!(words, ["ffpa/d320", "bf16", "PASS", "N/A", "FALLBACK", "PASS"], "{text}");
    assert!(line.is_some(), "{text}");
    assert!(text.contains("b  ffpa.triton (ffpa_attn 0.2.4)"), "{text}");
    assert!(text.contains("2 passed, 0 failed, 1 fell back"), "a fallback is no pass: {text}");
    assert!(text.contains("there ran fmha_cutlassF x1"), "{text}");
    let summary = terminal::parity_summary(&sample.parity, Style::default());
    let says = "1 of 3 installed kernels is ready here: torch.sdpa.efficient";
    assert!(summary.contains(says), "{summary}");
    assert!(summary.contains("FALLBACK  ffpa.triton: 1 FALLBACK"), "{summary}");
    assert!(summary.contains("N/A       flash_attn.dense: 1 N/A; head dim 320 is over 256"));
    sample.parity.rows.retain(|row| row.peer.is_none());
    for text in [
        terminal::parity(&sample.parity, Style::default()),
        terminal::parity_summary(&sample.parity, Style::default()),
    ] {
        assert!(!text.contains("side by side") && !text.contains("installed"), "{text}");
    }
}
