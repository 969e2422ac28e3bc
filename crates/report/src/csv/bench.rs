//! A time is meaningful only with the ceilings of the same run, so `bench.csv` has them too: its `record` column
//! distinguishes kernels (`kernel`), ceilings (`ceiling`), and kernels that were not timed (`not timed`, with the
//! reason in `note`).

use super::fields::{CsvError, Row, Rows, optional, write};
use crate::run::BENCH_FILE;
use facts::{
    BackendKind, BenchReport, BenchRow, CeilingKind, Ceilings, GemmCeilings, RaisedCeiling,
    RooflineBound, SCHEMA, SkippedTiming,
};
use std::collections::BTreeMap;

const COLUMNS: &[&str] = &[
    "record",
    "op",
    "case",
    "shape",
    "dtype",
    "backend",
    "variant",
    "samples",
    "median_ms",
    "p95_ms",
    "gflops",
    "gbps",
    "bound",
    "pct_of_ceiling",
    "verified_rel_err",
    "reference_ms",
    "note",
    // Last, because older runs lack these columns.
    "replays",
    "peer",
    "evidence",
    "dense_ms",
    "ceiling",
    "cache_resident",
];

/// Number of last columns that a table may lack.
const LATER: usize = 6;

#[derive(Clone, Copy, PartialEq)]
enum Record {
    Ceiling,
    Raised,
    Kernel,
    NotTimed,
    NotApplicable,
    NotRun,
}

const RECORDS: [(&str, Record); 6] = [
    ("ceiling", Record::Ceiling),
    ("raised", Record::Raised),
    ("kernel", Record::Kernel),
    ("not timed", Record::NotTimed),
    ("not applicable", Record::NotApplicable),
    ("not run", Record::NotRun),
];
const BOUNDS: [(&str, RooflineBound); 2] =
    [("compute", RooflineBound::Compute), ("memory", RooflineBound::Memory)];

/// Ceilings, timings and untimed kernels as CSV. The shape is one cell, `B=1 D=128 T=2048`; a value that was not
/// measured is an empty cell.
pub fn bench_csv(report: &BenchReport) -> String {
    let ceilings = report.ceilings.iter().flat_map(ceiling);
    let kernels = report.rows.iter().map(kernel);
    let notes = |record: &'static str, lines: &[String]| -> Vec<Vec<String>> {
        let line = |why: &String| named(&[("record", record.into()), ("note", why.clone())]);
        lines.iter().map(line).collect()
    };
    let not_timed = notes("not timed", &report.not_timed);
    let not_applicable = notes("not applicable", &report.not_applicable);
    let not_run = report.not_run.iter().map(|left| {
        named(&[
            ("record", "not run".into()),
            ("case", left.case.clone()),
            ("peer", left.peer.clone()),
            ("note", left.why.clone()),
        ])
    });
    write(COLUMNS, ceilings.chain(kernels).chain(not_timed).chain(not_applicable).chain(not_run))
}

/// The rates of one backend.
fn ceiling(ceilings: &Ceilings) -> Vec<Vec<String>> {
    let common = |op: &str| {
        vec![
            ("record", "ceiling".to_owned()),
            ("op", op.to_owned()),
            ("backend", ceilings.backend.to_string()),
        ]
    };
    let mut copy = common("copy");
    copy.push(("gbps", ceilings.copy_gbps.to_string()));
    let mut rows = vec![named(&copy)];
    if let Some(rate) = ceilings.read_gbps {
        let mut read = common("read");
        read.push(("gbps", rate.to_string()));
        rows.push(named(&read));
    }
    let gemm = &ceilings.gemm_gflops;
    for (dtype, rate) in [("f32", gemm.f32), ("bf16", gemm.bf16)] {
        if let Some(rate) = rate {
            let mut cells = common("gemm");
            cells.push(("dtype", dtype.to_owned()));
            cells.push(("gflops", rate.to_string()));
            cells.push(("note", ceilings.gemm_by.clone().unwrap_or_default()));
            rows.push(named(&cells));
        }
    }
    rows.extend(ceilings.raised.iter().map(|raised| {
        named(&[
            ("record", "raised".to_owned()),
            ("op", raised.ceiling.as_str().to_owned()),
            ("backend", ceilings.backend.to_string()),
            (unit(raised.ceiling), raised.measured.to_string()),
            ("note", raised.by.clone()),
        ])
    }));
    rows
}

/// The column of a ceiling's rate.
fn unit(ceiling: CeilingKind) -> &'static str {
    match ceiling {
        CeilingKind::Copy | CeilingKind::Read => "gbps",
        CeilingKind::GemmF32 | CeilingKind::GemmBf16 => "gflops",
    }
}

fn kinds() -> [(&'static str, CeilingKind); 4] {
    CeilingKind::ALL.map(|kind| (kind.as_str(), kind))
}

fn kernel(row: &BenchRow) -> Vec<String> {
    let shape: Vec<String> =
        row.shape.iter().map(|(name, size)| format!("{name}={size}")).collect();
    named(&[
        ("record", "kernel".into()),
        ("op", row.op.clone()),
        ("case", row.case.clone()),
        ("shape", shape.join(" ")),
        ("dtype", row.dtype.clone()),
        ("backend", row.backend.to_string()),
        ("variant", row.variant.clone()),
        ("samples", row.samples.to_string()),
        ("replays", row.replays.to_string()),
        ("median_ms", row.median_ms.to_string()),
        ("p95_ms", row.p95_ms.to_string()),
        ("gflops", row.gflops.to_string()),
        ("gbps", row.gbps.to_string()),
        ("bound", if row.bound == RooflineBound::Compute { "compute" } else { "memory" }.into()),
        ("pct_of_ceiling", optional(row.pct_of_ceiling)),
        ("verified_rel_err", row.verified_rel_err.to_string()),
        ("reference_ms", optional(row.reference_ms)),
        ("peer", row.peer.clone().unwrap_or_default()),
        ("evidence", row.evidence.clone()),
        ("dense_ms", optional(row.dense_ms)),
        ("ceiling", row.against.map_or("", CeilingKind::as_str).into()),
        ("cache_resident", if row.cache_resident { "yes" } else { "" }.into()),
    ])
}

/// A row with these cells; the others are empty.
fn named(cells: &[(&str, String)]) -> Vec<String> {
    COLUMNS
        .iter()
        .map(|column| {
            cells
                .iter()
                .find(|(name, _)| name == column)
                .map(|(_, value)| value.clone())
                .unwrap_or_default()
        })
        .collect()
}

/// Reads the output of [`bench_csv`]. Columns may be in any order; unknown ones are ignored.
///
/// # Errors
/// [`CsvError`] with the line and the column that cannot be read, or if the ceilings are missing.
pub fn read_bench_csv(text: &str) -> Result<BenchReport, CsvError> {
    let mut ceilings: Vec<Ceilings> = Vec::new();
    let (mut kernels, mut not_run) = (Vec::new(), Vec::new());
    let (mut not_timed, mut not_applicable) = (Vec::new(), Vec::new());
    let wanted = &COLUMNS[..COLUMNS.len() - LATER];
    for row in Rows::read(BENCH_FILE, text, wanted)?.iter() {
        match row.one_of("record", &RECORDS)? {
            Record::Kernel => kernels.push(read_kernel(&row)?),
            Record::NotTimed => not_timed.push(row.word("note")?),
            Record::NotApplicable => not_applicable.push(row.word("note")?),
            Record::NotRun => not_run.push(SkippedTiming {
                case: row.word("case")?,
                peer: row.word("peer")?,
                why: row.word("note")?,
            }),
            Record::Ceiling => read_ceiling(&row, &mut ceilings)?,
            Record::Raised => read_raised(&row, &mut ceilings)?,
        }
    }
    // A run that ran out of time before has neither ceilings nor times.
    if ceilings.is_empty() && !kernels.is_empty() {
        return Err(CsvError::Malformed {
            file: BENCH_FILE,
            what: "the row with record `ceiling` and op `copy` is missing".to_owned(),
        });
    }
    Ok(BenchReport {
        schema: SCHEMA,
        ceilings,
        rows: kernels,
        not_timed,
        not_applicable,
        not_run,
        // Samples are in a separate file.
        conditions: Vec::new(),
    })
}

/// Adds a rate to the ceilings of its backend; the copy rate is first.
fn read_ceiling(row: &Row<'_>, ceilings: &mut Vec<Ceilings>) -> Result<(), CsvError> {
    // Runs recorded before several backends existed do not name theirs.
    let backend = if row.text("backend").is_empty() { BackendKind::Cpu } else { row.backend()? };
    if row.text("op") == "copy" {
        ceilings.push(Ceilings {
            backend,
            copy_gbps: row.number("gbps", "a number")?,
            gemm_gflops: GemmCeilings { f32: None, bf16: None },
            gemm_by: None,
            read_gbps: None,
            raised: Vec::new(),
        });
        return Ok(());
    }
    let op = row.text("op");
    let of_backend = ceilings.iter_mut().find(|ceilings| ceilings.backend == backend);
    let (Some(ceilings), "read" | "gemm") = (of_backend, op.as_str()) else {
        return Err(row.bad("op", "copy, or read or gemm after the copy of its backend"));
    };
    if op == "read" {
        ceilings.read_gbps = Some(row.number("gbps", "a number")?);
        return Ok(());
    }
    let rate = Some(row.number("gflops", "a number")?);
    match row.text("dtype").as_str() {
        "f32" => ceilings.gemm_gflops.f32 = rate,
        "bf16" => ceilings.gemm_gflops.bf16 = rate,
        _ => return Err(row.bad("dtype", "f32 or bf16")),
    }
    let by = row.text("note");
    if !by.is_empty() {
        ceilings.gemm_by = Some(by);
    }
    Ok(())
}

/// Adds a raised ceiling to its backend's ceilings.
fn read_raised(row: &Row<'_>, ceilings: &mut [Ceilings]) -> Result<(), CsvError> {
    let backend = row.backend()?;
    let Some(ceilings) = ceilings.iter_mut().find(|ceilings| ceilings.backend == backend) else {
        return Err(row.bad("backend", "one whose ceilings stand above"));
    };
    let ceiling = row.one_of("op", &kinds())?;
    let measured = row.number(unit(ceiling), "a number")?;
    ceilings.raised.push(RaisedCeiling { ceiling, measured, by: row.word("note")? });
    Ok(())
}

fn read_kernel(row: &Row<'_>) -> Result<BenchRow, CsvError> {
    Ok(BenchRow {
        op: row.word("op")?,
        case: row.text("case"),
        shape: read_shape(row)?,
        dtype: row.text("dtype"),
        backend: row.backend()?,
        variant: row.text("variant"),
        samples: row.number("samples", "a whole number")?,
        replays: match row.text("replays").as_str() {
            "" => 1,
            _ => row.number("replays", "a whole number")?,
        },
        samples_ms: Vec::new(),
        median_ms: row.number("median_ms", "a number")?,
        p95_ms: row.number("p95_ms", "a number")?,
        gflops: row.number("gflops", "a number")?,
        gbps: row.number("gbps", "a number")?,
        bound: row.one_of("bound", &BOUNDS)?,
        pct_of_ceiling: row.optional("pct_of_ceiling")?,
        against: match row.text("ceiling").as_str() {
            "" => None,
            _ => Some(row.one_of("ceiling", &kinds())?),
        },
        cache_resident: row.text("cache_resident") == "yes",
        verified_rel_err: row.number("verified_rel_err", "a number")?,
        reference_ms: row.optional("reference_ms")?,
        dense_ms: row.optional("dense_ms")?,
        peer: Some(row.text("peer")).filter(|peer| !peer.is_empty()),
        evidence: row.text("evidence"),
    })
}

fn read_shape(row: &Row<'_>) -> Result<BTreeMap<String, u64>, CsvError> {
    row.text("shape")
        .split_whitespace()
        .map(|part| {
            let (name, size) = part.split_once('=')?;
            Some((name.to_owned(), size.parse().ok()?))
        })
        .collect::<Option<_>>()
        .ok_or_else(|| row.bad("shape", "sizes such as `B=1 T=2048`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> BenchReport {
        let row = BenchRow {
            op: "kda".into(),
            case: "prefill-2048".into(),
            shape: [("B", 1), ("T", 2048), ("H", 16)]
                .map(|(name, size)| (name.to_owned(), size))
                .into(),
            dtype: "f32".into(),
            backend: BackendKind::Cpu,
            variant: "chunk, \"avx2\"".into(),
            samples: 21,
            replays: 20,
            samples_ms: Vec::new(),
            median_ms: 10.0 / 3.0,
            p95_ms: 4.0,
            gflops: 81.7,
            gbps: 3.3,
            bound: RooflineBound::Compute,
            pct_of_ceiling: Some(42.125),
            against: Some(CeilingKind::GemmF32),
            cache_resident: false,
            verified_rel_err: 3.1e-7,
            reference_ms: Some(812.5),
            dense_ms: Some(0.0625),
            peer: None,
            evidence: String::new(),
        };
        let unmeasured = BenchRow {
            pct_of_ceiling: None,
            bound: RooflineBound::Memory,
            against: None,
            cache_resident: true,
            reference_ms: None,
            dense_ms: None,
            peer: Some("torch 2.11.0".into()),
            evidence: "fmha_cutlassF_bf16 x1".into(),
            shape: BTreeMap::new(),
            ..row.clone()
        };
        BenchReport {
            schema: SCHEMA,
            ceilings: vec![
                Ceilings {
                    backend: BackendKind::Cpu,
                    copy_gbps: 21.5,
                    gemm_gflops: GemmCeilings { f32: Some(180.25), bf16: None },
                    gemm_by: None,
                    read_gbps: Some(24.5),
                    raised: vec![RaisedCeiling {
                        ceiling: CeilingKind::GemmF32,
                        measured: 170.5,
                        by: "attention prefill-2048 f32 flash.avx512".into(),
                    }],
                },
                Ceilings {
                    backend: BackendKind::Cuda,
                    copy_gbps: 4300.0,
                    gemm_gflops: GemmCeilings { f32: None, bf16: Some(7.5e5) },
                    gemm_by: Some("cuBLASLt".into()),
                    read_gbps: None,
                    raised: Vec::new(),
                },
            ],
            rows: vec![row, unmeasured],
            not_timed: vec!["nsa bf16: failed parity, so no time is printed".into()],
            not_applicable: vec!["kda prefill: fla.chunk_kda needs a GPU".into()],
            not_run: vec![SkippedTiming {
                case: "kda decode-b8 bf16".into(),
                peer: "fla.chunk_kda".into(),
                why: "the 37 s for the peers of kda were spent".into(),
            }],
            conditions: Vec::new(),
        }
    }

    #[test]
    fn ceilings_kernels_and_untimed_kernels_round_trip() {
        let text = bench_csv(&report());
        assert_eq!(read_bench_csv(&text).unwrap(), report());
        assert_eq!(bench_csv(&read_bench_csv(&text).unwrap()), text);
        assert!(
            text.contains(",memory,,3.1e-7,") || text.contains(",memory,,0.00000031,"),
            "None is an empty cell: {text}"
        );
        let bare = BenchReport { rows: vec![], not_timed: vec![], not_run: vec![], ..report() };
        assert_eq!(read_bench_csv(&bench_csv(&bare)).unwrap(), bare);
    }

    #[test]
    fn invalid_file_is_reported_by_line_and_column() {
        let good = bench_csv(&report());
        let check = |from: &str, to: &str, expect: &str| {
            assert!(good.contains(from), "{from} in {good}");
            let error = read_bench_csv(&good.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.starts_with(expect), "{error}");
        };
        check(
            "T=2048",
            "T=long",
            "bench.csv line 8: column `shape` holds `B=1 H=16 T=long`, expected sizes",
        );
        check(
            "ceiling,copy",
            "ceiling,swap",
            "bench.csv line 2: column `op` holds `swap`, expected copy, or read or gemm after",
        );
        check(
            "compute",
            "disk",
            "bench.csv line 8: column `bound` holds `disk`, expected compute or memory",
        );
        check(
            "kernel,",
            "kernels,",
            "bench.csv line 8: column `record` holds `kernels`, expected ceiling or raised or kernel or not timed or not applicable or not run",
        );
        check(
            "42.125",
            "half",
            "bench.csv line 8: column `pct_of_ceiling` holds `half`, expected a number or nothing",
        );
        let without = |start: &str| {
            let gone = |line: &&str| !line.starts_with(start) && !line.starts_with("raised");
            let kept: Vec<&str> = good.lines().filter(gone).collect();
            read_bench_csv(&kept.join("\n")).unwrap_err().to_string()
        };
        assert!(without("ceiling").contains("op `copy` is missing"));
        assert!(without("ceiling,copy").contains("or gemm after the copy of its backend"));
    }
}
