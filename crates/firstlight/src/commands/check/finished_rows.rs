//! The finished rows of a check that is still verifying. They are saved from time to time and on a signal to stop, so
//! that a report can be written of the finished part.

use crate::redact::Redaction;
use crate::run_folder::{RunFolder, write_atomically};
use facts::{CompactSort, ParityReport, ParityRow, SCHEMA};
use report::{PARITY_FILE, parity_csv};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval between writes.
const APART: Duration = Duration::from_secs(5);

pub(super) struct FinishedRows(Mutex<Rows>);

struct Rows {
    file: PathBuf,
    redaction: Redaction,
    rows: Vec<ParityRow>,
    saved: Instant,
    /// Whether the run's own table replaces the file.
    closed: bool,
}

impl FinishedRows {
    pub(super) fn of(folder: &RunFolder) -> Self {
        Self(Mutex::new(Rows {
            file: folder.path().join(PARITY_FILE),
            redaction: folder.redaction().clone(),
            rows: Vec::new(),
            saved: Instant::now(),
            closed: false,
        }))
    }

    /// Adds a row.
    pub(super) fn add(&self, row: &ParityRow) {
        let mut rows = self.rows();
        rows.rows.push(row.clone());
        if rows.saved.elapsed() >= APART {
            // A full disk is reported when the finished table is written.
            let _ = rows.save();
        }
    }

    /// Writes the rows, unless there are none or the finished table is written.
    pub(super) fn save(&self) -> anyhow::Result<()> {
        self.rows().save()
    }

    /// Leaves the file to the finished table.
    pub(super) fn close(&self) {
        self.rows().closed = true;
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows {
    fn save(&mut self) -> anyhow::Result<()> {
        if self.closed || self.rows.is_empty() {
            return Ok(());
        }
        let mut rows = self.rows.clone();
        // The ops alternate while they run, and the report lists them one after the other.
        rows.compact_sort_by(|one, other| (&one.op, one.backend).cmp(&(&other.op, other.backend)));
        let table = parity_csv(&ParityReport { schema: SCHEMA, rows });
        write_atomically(&self.file, self.redaction.of(&table).as_bytes())?;
        self.saved = Instant::now();
        Ok(())
    }
}
