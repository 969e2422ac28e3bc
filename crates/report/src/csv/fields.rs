//! Rows by column name, with errors that have the file, line and column.

use csv::{ReaderBuilder, StringRecord, Trim, WriterBuilder};
use facts::BackendKind;

/// Why a CSV file of a run folder cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// The text is not CSV: an unclosed quote, or a row with too many or too few cells.
    #[error("{file}: not readable as CSV: {what}")]
    Malformed {
        /// The file.
        file: &'static str,
        /// The CSV reader's message.
        what: String,
    },
    /// A column is missing.
    #[error("{file}: no column `{column}` in the first line")]
    MissingColumn {
        /// The file.
        file: &'static str,
        /// The column.
        column: &'static str,
        /// All columns.
        wanted: String,
    },
    /// A cell does not have the type of its column.
    #[error("{file} line {line}: column `{column}` holds `{value}`, expected {wanted}")]
    BadCell {
        /// The file.
        file: &'static str,
        /// Line in the file, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// The content of the cell.
        value: String,
        /// The expected content.
        wanted: String,
    },
}

impl CsvError {
    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Malformed { .. } => {
                "keep one cell for each column of the first line, or run `firstlight check` again"
                    .to_owned()
            }
            Self::MissingColumn { wanted, .. } => format!("the columns are {wanted}"),
            Self::BadCell { .. } => "correct that cell, or run `firstlight check` again".to_owned(),
        }
    }
}

/// Writes a header and rows.
pub(super) fn write(columns: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    // Writing to memory cannot fail, and callers make rows with one cell per column.
    let mut put = |cells: &[String]| {
        writer.write_record(cells).expect("a CSV row of the header's width goes into memory")
    };
    put(&columns.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    for row in rows {
        put(&row);
    }
    let bytes = writer.into_inner().expect("flushing into memory cannot fail");
    String::from_utf8(bytes).expect("cells are UTF-8")
}

/// A number, or an empty cell if it was not measured.
pub(super) fn optional(value: Option<f64>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The rows of a file, with cells by column name.
pub(super) struct Rows {
    file: &'static str,
    header: Vec<String>,
    records: Vec<StringRecord>,
}

impl Rows {
    /// Reads the text and checks that all required columns exist; others are ignored.
    pub(super) fn read(
        file: &'static str,
        text: &str,
        wanted: &'static [&'static str],
    ) -> Result<Self, CsvError> {
        let malformed = |error: csv::Error| CsvError::Malformed { file, what: error.to_string() };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reader = ReaderBuilder::new().trim(Trim::Headers).from_reader(text.as_bytes());
        let header: Vec<String> =
            reader.headers().map_err(malformed)?.iter().map(str::to_owned).collect();
        for column in wanted {
            if !header.iter().any(|name| name == column) {
                return Err(CsvError::MissingColumn { file, column, wanted: wanted.join(", ") });
            }
        }
        let records = reader.records().collect::<Result<_, _>>().map_err(malformed)?;
        Ok(Self { file, header, records })
    }

    /// The rows in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.records.iter().map(|record| Row { rows: self, record })
    }
}

/// One row.
pub(super) struct Row<'a> {
    rows: &'a Rows,
    record: &'a StringRecord,
}

impl Row<'_> {
    /// The text of a cell.
    pub(super) fn text(&self, column: &'static str) -> String {
        let at = self.rows.header.iter().position(|name| name == column);
        at.and_then(|at| self.record.get(at)).unwrap_or_default().to_owned()
    }

    /// The text of a cell that must not be empty.
    pub(super) fn word(&self, column: &'static str) -> Result<String, CsvError> {
        let value = self.text(column);
        if value.trim().is_empty() { Err(self.bad(column, "a word")) } else { Ok(value) }
    }

    /// The number in a cell.
    pub(super) fn number<T: std::str::FromStr>(
        &self,
        column: &'static str,
        wanted: &str,
    ) -> Result<T, CsvError> {
        self.text(column).trim().parse().map_err(|_| self.bad(column, wanted))
    }

    /// The number in a cell; `None` if it is empty.
    pub(super) fn optional(&self, column: &'static str) -> Result<Option<f64>, CsvError> {
        if self.text(column).trim().is_empty() {
            return Ok(None);
        }
        self.number(column, "a number or nothing").map(Some)
    }

    /// The value of a cell that has one of these words.
    pub(super) fn one_of<T: Copy>(
        &self,
        column: &'static str,
        choices: &[(&str, T)],
    ) -> Result<T, CsvError> {
        let value = self.text(column);
        let found = choices.iter().find(|(word, _)| *word == value.trim());
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.bad(column, &words.join(" or "))
        })
    }

    /// The `backend` column.
    pub(super) fn backend(&self) -> Result<BackendKind, CsvError> {
        self.one_of(
            "backend",
            &[BackendKind::Cpu, BackendKind::Cuda, BackendKind::Metal]
                .map(|kind| (kind.as_str(), kind)),
        )
    }

    /// An error with this row's line and the column.
    pub(super) fn bad(&self, column: &'static str, wanted: &str) -> CsvError {
        CsvError::BadCell {
            file: self.rows.file,
            line: self.record.position().map_or(0, csv::Position::line),
            column,
            value: self.text(column),
            wanted: wanted.to_owned(),
        }
    }
}
