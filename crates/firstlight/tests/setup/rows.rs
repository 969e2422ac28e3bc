//! Every row of the field reports about planning, installing, packaging, verifying, timing and reporting has a test that
//! carries its id.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use std::collections::BTreeSet;
use std::path::Path;

/// Rows of the five field reports about planning, by their ids.
const PLAN: &[&str] = &[
    "R0-06", "R0-07", "R1-06", "R1-07", "R1-08", "R1-09", "R1-10", "R2-05", "R4-04", "R4-07",
    "R4-08",
];
/// Rows about installing, building and the proof that is printed afterwards.
const INSTALL: &[&str] =
    &["R0-08", "R0-09", "R1-11", "R2-06", "R2-07", "R3-03", "R3-04", "R3-05", "R3-06"];
/// Rows about packaging, tests and remote machines.
const PACKAGING: &[&str] =
    &["R1-14", "R1-15", "R1-16", "R1-17", "R3-10", "R3-11", "R4-20", "R4-21"];
/// Rows about verifying.
const VERIFY: &[&str] = &["R0-10", "R2-08", "R4-09", "R4-10", "R4-11", "R4-12", "R4-13"];
/// Rows about timing.
const BENCH: &[&str] = &["R2-09", "R2-10", "R3-07", "R3-08", "R3-09", "R4-14", "R4-15"];
/// Rows about reports.
const REPORT: &[&str] = &["R0-16", "R1-13", "R4-16", "R4-17", "R4-18", "R4-19"];

/// The ids in the names of test functions: `R2-06` of `fn r2_06_a_forced_build`.
fn tested() -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    let mut pending = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                let tests = text.split("#[test]").skip(1);
                ids.extend(tests.filter_map(id));
            }
        }
    }
    ids
}

/// The id in the name of the function that follows.
fn id(text: &str) -> Option<String> {
    let name = text.split_once("fn r")?.1.split('(').next()?;
    let mut parts = name.splitn(3, '_');
    let (report, row, _) = (parts.next()?, parts.next()?, parts.next()?);
    let digits = |word: &str| word.bytes().all(|byte| byte.is_ascii_digit());
    (report.len() == 1 && row.len() == 2 && digits(report) && digits(row))
        .then(|| format!("R{report}-{row}"))
}

#[test]
fn every_row_has_a_test_named_by_its_id() {
    assert_eq!(id(" fn r2_06_a_forced_build() {"), Some("R2-06".to_owned()));
    assert_eq!(id(" fn rows_are_read() {"), None);
    let tested = tested();
    let rows = [PLAN, INSTALL, PACKAGING, VERIFY, BENCH, REPORT].concat();
    let without: Vec<&&str> = rows.iter().filter(|row| !tested.contains(**row)).collect();
    assert!(without.is_empty(), "no test's name begins with the id of {without:?}");
}
