//! Every timed sample, in a separate file from the medians because of their number.

use super::fields::{CsvError, Rows, write};
use crate::run::SAMPLES_FILE;
use facts::{BenchReport, BenchRow};

const COLUMNS: &[&str] = &["op", "case", "dtype", "backend", "variant", "sample", "millis"];

/// Every sample of every timed kernel, one a line, in the order they were taken.
pub fn samples_csv(report: &BenchReport) -> String {
    let samples = report.rows.iter().flat_map(|row| {
        row.samples_ms.iter().enumerate().map(|(index, millis)| {
            vec![
                row.op.clone(),
                row.case.clone(),
                row.dtype.clone(),
                row.backend.to_string(),
                row.variant.clone(),
                index.to_string(),
                millis.to_string(),
            ]
        })
    });
    write(COLUMNS, samples)
}

/// Reads the output of [`samples_csv`] into the rows of a report.
///
/// # Errors
/// [`CsvError`] names the line and the column that cannot be read.
pub fn read_samples_csv(text: &str, report: &mut BenchReport) -> Result<(), CsvError> {
    for sample in Rows::read(SAMPLES_FILE, text, COLUMNS)?.iter() {
        let backend = sample.backend()?;
        let millis = sample.number("millis", "a number")?;
        let [op, case, dtype, variant] =
            ["op", "case", "dtype", "variant"].map(|name| sample.text(name));
        let of_row = |row: &&mut BenchRow| {
            row.backend == backend
                && row.op == op
                && row.case == case
                && row.dtype == dtype
                && row.variant == variant
        };
        if let Some(row) = report.rows.iter_mut().find(of_row) {
            row.samples_ms.push(millis);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::row;
    use facts::SCHEMA;

    #[test]
    fn samples_come_back_to_their_rows() {
        let mut other = row("b", &[0.1 + 0.2]);
        other.variant = "chunk.hopper".into();
        let wanted = BenchReport {
            schema: SCHEMA,
            ceilings: Vec::new(),
            rows: vec![row("a", &[3.0, 3.5, 3.5]), other],
            not_timed: Vec::new(),
            not_applicable: Vec::new(),
            not_run: Vec::new(),
            conditions: Vec::new(),
        };
        let mut got = wanted.clone();
        got.rows.iter_mut().for_each(|row| row.samples_ms.clear());
        read_samples_csv(&samples_csv(&wanted), &mut got).unwrap();
        assert_eq!(got, wanted);
        let spoilt = samples_csv(&wanted).replacen("3.5", "soon", 1);
        let error = read_samples_csv(&spoilt, &mut got).unwrap_err().to_string();
        assert!(error.starts_with("samples.csv line 3: column `millis` holds `soon`"), "{error}");
    }
}
