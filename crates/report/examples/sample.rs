//! Prints a report of invented data: `cargo run -p report --example sample > sample.html`.
//! With `md`, `doctor`, `parity`, `bench` or `summary` as its argument it prints that instead; `incomplete` and
//! `doctor-only` print the page of such a run.

#![allow(clippy::print_stdout, reason = "an example prints")]

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use facts::{BackendKind, ParityRow, RunState, SkippedStage, Status};
use fixture::{Sample, bench_row, parity_row, small};
use report::terminal::{self, Style};

fn main() {
    let mut sample = large();
    let what = std::env::args().nth(1).unwrap_or_default();
    let style = Style { color: std::env::args().nth(2).is_some(), width: 80 };
    let text = match what.as_str() {
        "md" => report::markdown(&sample.run()),
        "doctor" => terminal::doctor(&sample.doctor, style),
        "parity" => terminal::parity(&sample.parity, style),
        "bench" => terminal::bench(&sample.bench, style),
        "summary" => terminal::summary(&sample.run(), style),
        "doctor-only" => report::html(&sample.doctor_only()),
        "incomplete" => {
            sample.manifest.state = RunState::Incomplete;
            sample.manifest.finished = None;
            report::html(&sample.run())
        }
        _ => report::html(&sample.run()),
    };
    print!("{text}");
}

/// Pseudo-random numbers that are the same on every run.
fn invented(seed: u64, low: f64, high: f64) -> f64 {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
    low * (high / low).powf(mixed as f64 / (1u64 << 53) as f64)
}

fn large() -> Sample {
    let mut sample = small();
    sample.manifest.host = "SAMPLE DATA, not a measurement".into();
    let suites: [(&str, &[&str]); 5] = [
        (
            "attention",
            &[
                "edge/t1",
                "edge/no-visible-key",
                "edge/tq-below-tk",
                "ffpa/d320-gqa16x4",
                "ffpa/d384",
                "ffpa/d512",
                "ffpa/d640-tail",
                "varlen/empty-sequence",
                "varlen/three",
                "window/256",
            ],
        ),
        (
            "kda",
            &[
                "fla/chunk-63",
                "fla/chunk-500",
                "fla/chunk-1024",
                "fla/varlen-15",
                "gates/slow",
                "gates/fast",
                "gates/mixed",
                "state/continued",
                "decode/b32",
            ],
        ),
        (
            "ssd",
            &["mamba/dim2048", "mamba/dim4096", "mamba/varlen-300", "state/continued", "decode/b7"],
        ),
        ("conv1d", &["width/2", "width/3", "width/4", "varlen/padding", "update/ring"]),
        ("nsa", &["fla/t63", "fla/t111", "fla/t1024", "selection/ranges", "decode/t300"]),
    ];
    let mut rows: Vec<ParityRow> = Vec::new();
    let mut seed = 1;
    for (op, cases) in suites {
        for case in cases {
            for (dtype, low, high) in [("f32", 8e-8, 3e-6), ("bf16", 1e-3, 7e-3)] {
                seed += 1;
                let variant = if dtype == "f32" { "tiled-avx2" } else { "tiled-avx512-bf16" };
                rows.push(parity_row(
                    op,
                    case,
                    variant,
                    dtype,
                    Status::Pass,
                    Ok(invented(seed, low, high)),
                ));
            }
            let mut absent = parity_row(
                op,
                case,
                "",
                "bf16",
                Status::NotApplicable,
                Err("no CUDA kernels are built in this version"),
            );
            absent.backend = BackendKind::Cuda;
            rows.push(absent);
        }
    }
    rows[4] = parity_row(
        "attention",
        "edge/no-visible-key",
        "tiled-avx512-bf16",
        "bf16",
        Status::Fail,
        Err("output `o` holds NaN at [0, 3, 2, 17]"),
    );
    rows[4].rel_err = Some(f64::NAN);
    rows[4].launches = 1;
    rows[19].status = Status::Fail;
    rows[19].reason =
        "relative error 3.1e-2 is above the 2.0e-2 allowed for bf16; worst at o[0, 211, 3, 40]"
            .into();
    rows[19].rel_err = Some(3.1e-2);
    rows[40] = parity_row(
        "kda",
        "gates/slow",
        "tiled-avx512-bf16",
        "bf16",
        Status::Skip,
        Err("the time allowed by --quick was used up"),
    );
    rows[40].backend = BackendKind::Cpu;
    sample.parity.rows = rows;

    let mut timings = Vec::new();
    for (i, tokens) in [256u64, 512, 1024, 2048, 4096].into_iter().enumerate() {
        for (j, (dtype, low, high)) in
            [("f32", 48.0, 66.0), ("bf16", 38.0, 52.0)].into_iter().enumerate()
        {
            let share = invented(90 + (i * 2 + j) as u64, low, high);
            let case = format!("prefill-{tokens}");
            timings.push(bench_row(
                "attention",
                &case,
                &[("B", 1), ("T", tokens), ("H", 16), ("D", 128)],
                dtype,
                0.2 * (tokens as f64 / 256.0).powi(2),
                Some(share),
            ));
        }
    }
    for (i, (op, case, share)) in [
        ("kda", "prefill-2048", Some(34.2)),
        ("kda", "decode-b64", Some(71.8)),
        ("ssd", "prefill-2048", Some(44.1)),
        ("ssd", "decode-b64", Some(82.5)),
        ("conv1d", "prefill-2048", Some(104.6)),
        ("conv1d", "decode-b64", Some(58.0)),
        ("nsa", "prefill-1024", Some(21.7)),
        ("nsa", "decode-b8", None),
    ]
    .into_iter()
    .enumerate()
    {
        for dtype in ["f32", "bf16"] {
            let share = share.map(|share: f64| share * if dtype == "f32" { 1.0 } else { 0.83 });
            timings.push(bench_row(
                op,
                case,
                &[("B", 1 + i as u64), ("H", 16), ("D", 128)],
                dtype,
                invented(i as u64 + 3, 0.04, 90.0),
                share,
            ));
        }
    }
    sample.bench.rows = timings;
    sample.bench.ceilings[0].gemm_gflops.bf16 = Some(412.75);
    sample
        .manifest
        .not_run
        .push(SkippedStage { what: "CUDA kernels".into(), why: "this version has none".into() });
    sample
}
