use super::fields::{CsvError, Rows, optional, write};
use crate::run::PARITY_FILE;
use facts::{ParityReport, ParityRow, SCHEMA, Status};

const COLUMNS: &[&str] = &[
    "op",
    "case",
    "backend",
    "variant",
    "dtype",
    "status",
    "reason",
    "rel_err",
    "max_err",
    "tolerance",
    "launches",
    "millis",
    // Last, because older runs lack these columns.
    "peer",
    "evidence",
    "bits",
];

/// Number of last columns that a table may lack.
const LATER: usize = 3;

/// The parity matrix as CSV, one row per case; an error that was not computed is an empty cell.
pub fn parity_csv(report: &ParityReport) -> String {
    write(COLUMNS, report.rows.iter().map(cells))
}

fn cells(row: &ParityRow) -> Vec<String> {
    vec![
        row.op.clone(),
        row.case.clone(),
        row.backend.to_string(),
        row.variant.clone(),
        row.dtype.clone(),
        row.status.as_str().to_owned(),
        row.reason.clone(),
        optional(row.rel_err),
        optional(row.max_err),
        row.tolerance.to_string(),
        row.launches.to_string(),
        row.millis.to_string(),
        row.peer.clone().unwrap_or_default(),
        row.evidence.clone(),
        row.bits.clone().unwrap_or_default(),
    ]
}

/// Reads the output of [`parity_csv`]. Columns may be in any order; unknown ones are ignored.
///
/// # Errors
/// [`CsvError`] with the line and the column that cannot be read.
pub fn read_parity_csv(text: &str) -> Result<ParityReport, CsvError> {
    let statuses = Status::ALL.map(|status| (status.as_str(), status));
    let rows = Rows::read(PARITY_FILE, text, &COLUMNS[..COLUMNS.len() - LATER])?
        .iter()
        .map(|row| {
            Ok(ParityRow {
                op: row.word("op")?,
                case: row.word("case")?,
                backend: row.backend()?,
                variant: row.text("variant"),
                dtype: row.text("dtype"),
                status: row.one_of("status", &statuses)?,
                reason: row.text("reason"),
                rel_err: row.optional("rel_err")?,
                max_err: row.optional("max_err")?,
                tolerance: row.number("tolerance", "a number")?,
                launches: row.number("launches", "a whole number")?,
                millis: row.number("millis", "a number")?,
                peer: Some(row.text("peer")).filter(|peer| !peer.is_empty()),
                evidence: row.text("evidence"),
                bits: Some(row.text("bits")).filter(|bits| !bits.is_empty()),
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(ParityReport { schema: SCHEMA, rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use facts::BackendKind;

    fn row(status: Status, reason: &str, rel_err: Option<f64>) -> ParityRow {
        ParityRow {
            op: "attention".into(),
            case: "ffpa/d320-gqa16x4".into(),
            backend: BackendKind::Cpu,
            variant: "tiled-avx512".into(),
            dtype: "bf16".into(),
            status,
            reason: reason.into(),
            rel_err,
            max_err: rel_err.map(|value| value * 3.0),
            tolerance: 0.02,
            launches: u64::from(rel_err.is_some()),
            millis: 12.3456789,
            peer: None,
            evidence: String::new(),
            bits: None,
        }
    }

    #[test]
    fn rows_round_trip() {
        let report = ParityReport {
            schema: SCHEMA,
            rows: vec![
                row(Status::Pass, "", Some(0.1 + 0.2)),
                ParityRow { bits: Some("1f".repeat(32)), ..row(Status::Pass, "", Some(5e-324)) },
                row(
                    Status::Fail,
                    "error 0.5, \"allowed\" 0.02;\nsecond line, with comma",
                    Some(f64::INFINITY),
                ),
                row(Status::Skip, "|pipe| é – <b>", None),
                ParityRow {
                    peer: Some("flash_attn 2.8.3".into()),
                    evidence: "pytorch_flash::flash_fwd_kernel x2, other; x1".into(),
                    ..row(Status::Fallback, "none of its kernels ran", Some(1e-3))
                },
                row(Status::NotApplicable, "no such form", None),
            ],
        };
        let text = parity_csv(&report);
        assert_eq!(read_parity_csv(&text).unwrap(), report);
        assert_eq!(parity_csv(&read_parity_csv(&text).unwrap()), text);
        let skip = text.lines().find(|line| line.contains("pipe")).unwrap();
        assert!(skip.contains(",,,0.02,"), "what was not compared is an empty cell: {skip}");
        let nan = parity_csv(&ParityReport {
            schema: SCHEMA,
            rows: vec![row(Status::Fail, "", Some(f64::NAN))],
        });
        assert!(read_parity_csv(&nan).unwrap().rows[0].rel_err.unwrap().is_nan());
    }

    #[test]
    fn empty_matrix_has_a_header() {
        let text = parity_csv(&ParityReport { schema: SCHEMA, rows: vec![] });
        assert_eq!(text, COLUMNS.join(",") + "\n");
        assert_eq!(read_parity_csv(&text).unwrap().rows, vec![]);
    }

    #[test]
    fn invalid_file_is_reported_by_line_and_column() {
        let good = parity_csv(&ParityReport {
            schema: SCHEMA,
            rows: vec![row(Status::Pass, "", Some(0.25))],
        });
        let check = |from: &str, to: &str, expect: &str| {
            assert!(good.contains(from), "{from}");
            let error = read_parity_csv(&good.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().starts_with(expect), "{error}");
            assert!(!error.hint().is_empty(), "{error}");
        };
        check(
            "PASS",
            "pass",
            "parity.csv line 2: column `status` holds `pass`, expected PASS or FAIL or FALLBACK or SKIP or N/A",
        );
        check(
            "0.25",
            "a lot",
            "parity.csv line 2: column `rel_err` holds `a lot`, expected a number or nothing",
        );
        check(",0.02,", ",,", "parity.csv line 2: column `tolerance` holds ``, expected a number");
        check(
            ",1,",
            ",-1,",
            "parity.csv line 2: column `launches` holds `-1`, expected a whole number",
        );
        check(
            "cpu",
            "tpu",
            "parity.csv line 2: column `backend` holds `tpu`, expected cpu or cuda or metal",
        );
        check("attention", "", "parity.csv line 2: column `op` holds ``, expected a word");
        check("rel_err", "error", "parity.csv: no column `rel_err` in the first line");
        check(",PASS", "", "parity.csv: not readable as CSV: ");
        assert!(
            read_parity_csv("").unwrap_err().to_string().starts_with("parity.csv: no column `op`")
        );
    }
}
