//! Counts of parity rows by the outcome that they prove.

use crate::document::{Prose, Tone};
use crate::format;
use crate::verdict::evidence_gap;
use facts::CompactSort;
use facts::{BackendKind, ParityRow, Status};

/// The number of rows of each status. A row that claims PASS without evidence is `unproven`, never a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) pass: usize,
    pub(crate) fail: usize,
    pub(crate) fallback: usize,
    pub(crate) unproven: usize,
    pub(crate) skip: usize,
    pub(crate) not_applicable: usize,
    pub(crate) not_run: usize,
}

impl Counts {
    /// Counts rows.
    pub(crate) fn of<'a>(rows: impl IntoIterator<Item = &'a ParityRow>) -> Self {
        let mut counts = Self::default();
        for row in rows {
            counts.add(row);
        }
        counts
    }

    fn add(&mut self, row: &ParityRow) {
        match row.status {
            Status::Pass if evidence_gap(row).is_some() => self.unproven += 1,
            Status::Pass => self.pass += 1,
            Status::Fail => self.fail += 1,
            Status::Fallback => self.fallback += 1,
            Status::Skip => self.skip += 1,
            Status::NotApplicable => self.not_applicable += 1,
            Status::NotRun => self.not_run += 1,
        }
    }

    /// All rows.
    pub(crate) fn total(self) -> usize {
        self.pass + self.bad() + self.skip + self.not_applicable + self.not_run
    }

    /// Rows that fail, fell back or are unproven.
    pub(crate) fn bad(self) -> usize {
        // A fallback proves nothing about the requested kernel.
        self.fail + self.fallback + self.unproven
    }

    /// `400 passed, 2 failed, 6 were skipped and 4 do not apply here`; always as four counts.
    pub(crate) fn sentence(self) -> String {
        let verb = |number: usize, one: &str, many: &str| {
            format!("{number} {}", if number == 1 { one } else { many })
        };
        let mut words = format!("{} passed, {} failed", self.pass, self.fail);
        if self.fallback > 0 {
            words.push_str(&format!(", {} fell back to other kernels", self.fallback));
        }
        if self.unproven > 0 {
            words.push_str(&format!(
                ", {} a pass without evidence",
                verb(self.unproven, "claims", "claim")
            ));
        }
        words.push_str(&format!(
            ", {} skipped and {} not apply here",
            verb(self.skip, "was", "were"),
            verb(self.not_applicable, "does", "do")
        ));
        if self.not_run > 0 {
            words.push_str(&format!("; for {} no time was left", self.not_run));
        }
        words
    }
}

/// Rows of one kernel: same op, backend, variant and storage type.
#[derive(Debug, Clone)]
pub(crate) struct Group<'a> {
    pub(crate) op: &'a str,
    pub(crate) backend: BackendKind,
    pub(crate) variant: &'a str,
    pub(crate) dtype: &'a str,
    pub(crate) counts: Counts,
    /// The rows, in the order of the run; never empty.
    pub(crate) rows: Vec<&'a ParityRow>,
    /// The compared row whose error is the largest part of what is allowed.
    pub(crate) worst: Option<&'a ParityRow>,
    pub(crate) launches: u64,
}

/// Rows by kernel, in the order in which kernels first appear, with the kernels of an op together.
pub(crate) fn groups(rows: &[ParityRow]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for op in ops(rows) {
        for row in rows.iter().filter(|row| row.op == op) {
            let same = |group: &&mut Group<'_>| {
                group.op == op
                    && group.backend == row.backend
                    && group.variant == row.variant
                    && group.dtype == row.dtype
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.add(row),
                None => {
                    let mut group = Group {
                        op,
                        backend: row.backend,
                        variant: &row.variant,
                        dtype: &row.dtype,
                        counts: Counts::default(),
                        rows: Vec::new(),
                        worst: None,
                        launches: 0,
                    };
                    group.add(row);
                    groups.push(group);
                }
            }
        }
    }
    groups
}

impl<'a> Group<'a> {
    fn add(&mut self, row: &'a ParityRow) {
        self.counts.add(row);
        self.rows.push(row);
        self.launches += row.launches;
        let worse = match (share(row), self.worst.and_then(share)) {
            (Some(new), Some(old)) => new > old || (new.is_nan() && !old.is_nan()),
            (new, old) => new.is_some() && old.is_none(),
        };
        if worse {
            self.worst = Some(row);
        }
    }
}

/// A row's error as a part of what is allowed; `None` when nothing was compared.
fn share(row: &ParityRow) -> Option<f64> {
    row.rel_err.map(|error| error / row.tolerance)
}

/// `1.8e-3 / 5.0e-3`: the error that is the largest part of what is allowed, and what is allowed.
pub(crate) fn largest_error<'a>(rows: impl IntoIterator<Item = &'a ParityRow>) -> String {
    let compared = rows.into_iter().filter_map(|row| Some((share(row)?, row)));
    let largest = compared.max_by(|(a, _), (b, _)| a.total_cmp(b));
    largest.map_or_else(
        || format::ABSENT.to_owned(),
        |(_, row)| {
            format!("{} / {}", format::error_or_dash(row.rel_err), format::error(row.tolerance))
        },
    )
}

/// Ops in order of first appearance.
pub(crate) fn ops(rows: &[ParityRow]) -> Vec<&str> {
    let mut ops: Vec<&str> = Vec::new();
    for row in rows {
        if !ops.contains(&row.op.as_str()) {
            ops.push(&row.op);
        }
    }
    ops
}

/// The status to show: a PASS without evidence is UNPROVEN.
pub(crate) fn status(row: &ParityRow) -> (Tone, &'static str) {
    match row.status {
        Status::Pass if evidence_gap(row).is_some() => (Tone::Bad, "UNPROVEN"),
        Status::Pass => (Tone::Good, "PASS"),
        Status::Fail => (Tone::Bad, "FAIL"),
        Status::Fallback => (Tone::Bad, "FALLBACK"),
        Status::Skip => (Tone::Warn, "SKIP"),
        Status::NotApplicable => (Tone::Plain, "N/A"),
        Status::NotRun => (Tone::Plain, "NOT RUN"),
    }
}

/// Why a row is not a pass; empty for a pass.
pub(crate) fn reason(row: &ParityRow) -> String {
    match evidence_gap(row) {
        Some(gap) => format!("says PASS, but {gap}"),
        None if row.status != Status::Pass && row.reason.trim().is_empty() => {
            "no reason was recorded".to_owned()
        }
        None => row.reason.clone(),
    }
}

/// Rows that are not passes: failures, then skips, then rows that do not apply; within each in the order of the run.
pub(crate) fn not_passed(rows: &[ParityRow]) -> Vec<&ParityRow> {
    let rank = |row: &ParityRow| match status(row).1 {
        "FAIL" => 0,
        "FALLBACK" => 1,
        "UNPROVEN" => 2,
        "SKIP" => 3,
        "N/A" => 4,
        _ => 5,
    };
    let mut found: Vec<&ParityRow> = rows.iter().filter(|row| status(row).1 != "PASS").collect();
    found.compact_sort_by_key(|row| rank(row));
    found
}

/// Rows that are not passes for the same reason.
pub(crate) struct LeftOut<'a> {
    pub(crate) reason: String,
    /// Never empty.
    pub(crate) rows: Vec<&'a ParityRow>,
}

impl LeftOut<'_> {
    /// How many rows of each op: `attention 10, kda 9`.
    pub(crate) fn ops(&self) -> String {
        let mut counts: Vec<(&str, usize)> = Vec::new();
        for row in &self.rows {
            match counts.iter_mut().find(|(op, _)| *op == row.op) {
                Some((_, count)) => *count += 1,
                None => counts.push((&row.op, 1)),
            }
        }
        counts.iter().map(|(op, count)| format!("{op} {count}")).collect::<Vec<_>>().join(", ")
    }
}

/// Rows of a status by their reason: a machine without a GPU has one reason for many rows.
pub(crate) fn left_out(rows: &[ParityRow], wanted: Status) -> Vec<LeftOut<'_>> {
    by_reason(rows.iter().filter(|row| row.status == wanted))
}

/// Rows by their reason, in order of first appearance.
pub(crate) fn by_reason<'a>(rows: impl IntoIterator<Item = &'a ParityRow>) -> Vec<LeftOut<'a>> {
    let mut found: Vec<LeftOut<'_>> = Vec::new();
    for row in rows {
        let reason = reason(row);
        match found.iter_mut().find(|known| known.reason == reason) {
            Some(known) => known.rows.push(row),
            None => found.push(LeftOut { reason, rows: vec![row] }),
        }
    }
    found
}

/// A status whose count has a column: its head, its count, its tone.
pub(crate) type CountColumn = (&'static str, fn(Counts) -> usize, Tone);

/// Columns of counts. Those for fallbacks, unproven passes and checks without time exist only if some row needs them.
pub(crate) fn count_columns(all: Counts) -> Vec<CountColumn> {
    let columns: [CountColumn; 7] = [
        ("PASS", |counts| counts.pass, Tone::Good),
        ("FAIL", |counts| counts.fail, Tone::Bad),
        ("FALLBACK", |counts| counts.fallback, Tone::Bad),
        ("UNPROVEN", |counts| counts.unproven, Tone::Bad),
        ("SKIP", |counts| counts.skip, Tone::Warn),
        ("N/A", |counts| counts.not_applicable, Tone::Plain),
        ("NOT RUN", |counts| counts.not_run, Tone::Plain),
    ];
    let needed = |(head, count, _): &CountColumn| {
        !matches!(*head, "FALLBACK" | "UNPROVEN" | "NOT RUN") || count(all) > 0
    };
    columns.into_iter().filter(needed).collect()
}

/// A count as a cell; zero is a dash.
pub(crate) fn cell(number: usize, tone: Tone) -> Prose {
    match (number, tone) {
        (0, _) => Prose::from(format::ABSENT),
        (number, Tone::Bad) => Prose::new().chip(Tone::Bad, number.to_string()),
        (number, _) => Prose::from(number.to_string()),
    }
}
