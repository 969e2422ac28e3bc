//! A run compared with the figures of a field report (R3-09): every number and sentence follows from the rows.

mod fixture;

use facts::{BenchReport, BenchRow};
use fixture::{bench_row, small};
use report::terminal::{self, Style};
use report::{baseline, baselines};

/// Rows at the report's shape: ours takes `millis`, and torch's efficient kernel 10 ms.
fn run(heads: u64, millis: f64) -> BenchReport {
    let row = |channels: u64, variant: &str, peer: Option<&str>, millis: f64| {
        let shape = [("B", 1), ("H", heads), ("Tq", 8192), ("Tk", 8192), ("D", channels)];
        let case = format!("prefill-8192-d{channels}");
        BenchRow {
            variant: variant.to_owned(),
            peer: peer.map(str::to_owned),
            gflops: 1e6 / millis,
            ..bench_row("attention", &case, &shape, "bf16", millis, None)
        }
    };
    let torch = Some("torch 2.11.0");
    let of = |channels| {
        [
            row(channels, "hopper_wide", None, millis),
            row(channels, "torch.sdpa.efficient", torch, 10.0),
        ]
    };
    BenchReport { rows: [of(320), of(1024)].concat(), ..small().bench }
}

fn shown(report: &BenchReport) -> String {
    let beside = baseline(report, "gh200-ffpa").expect("the baseline is there");
    terminal::baseline(&beside, Style { color: false, width: 100 })
}

#[test]
fn r3_09_a_field_report_is_kept_and_compared_by_data() {
    let text = shown(&run(48, 4.0));
    for words in [
        "320  bf16  firstlight                250     2.50×  2.01×  1.91×",
        "1024  bf16  firstlight                250     2.50×  1.48×  1.64×",
        "320  bf16  torch.sdpa.efficient      100         –  2.01×  1.91×",
        "a: FFPA f16 accumulation, as reported",
        "reported: SDPA efficient 92.0 to 110 TFLOP/s at D 320 to 1024 (field report of FFPA on a GH200",
        "here: firstlight 250 TFLOP/s, 2.50 times torch's efficient attention",
        "here: torch.sdpa.efficient 100 TFLOP/s",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    // Other times, other sentences.
    let text = shown(&run(48, 8.0));
    assert!(text.contains("here: firstlight 125 TFLOP/s, 1.25 times"), "{text}");
    // Rows of another shape are not compared.
    let text = shown(&run(32, 4.0));
    assert!(
        text.contains("no row of this run is of that shape") && !text.contains("250"),
        "{text}"
    );
    assert_eq!(baseline(&run(48, 4.0), "no-such-baseline"), None);
    assert!(baselines().contains_key("gh200-ffpa"));
}
