//! Rows by column name, with errors that name the file, the line and the column.

use csv::{ReaderBuilder, StringRecord, Trim, WriterBuilder};
use facts::BackendKind;

/// Why a CSV of a run folder cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsvError {
    /// The text is not CSV: quotes do not close, or a row has too many or too few cells.
    #[error("{file}: not readable as CSV: {what}")]
    Malformed {
        /// The file.
        file: &'static str,
        /// The error of the CSV reader.
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
    /// A cell does not hold a value of its column's type.
    #[error("{file} line {line}: column `{column}` holds `{value}`, expected {wanted}")]
    BadCell {
        /// The file.
        file: &'static str,
        /// Line in the file, from 1.
        line: u64,
        /// The column.
        column: &'static str,
        /// The text of the cell.
        value: String,
        /// The expected type of value.
        wanted: String,
    },
}

impl CsvError {
    /// How to fix the file.
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
    // Writing to memory cannot fail, and every caller builds rows with one cell per column.
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

/// The rows of a file, each giving its cells by column name.
pub(super) struct Rows {
    file: &'static str,
    header: Vec<String>,
    records: Vec<StringRecord>,
}

impl Rows {
    /// Reads the text and checks that every wanted column is there; other columns are ignored.
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
    /// The words of a cell.
    pub(super) fn text(&self, column: &'static str) -> String {
        let at = self.rows.header.iter().position(|name| name == column);
        at.and_then(|at| self.record.get(at)).unwrap_or_default().to_owned()
    }

    /// The words of a cell that must hold some.
    pub(super) fn word(&self, column: &'static str) -> Result<String, CsvError> {
        let value = self.text(column);
        if value.trim().is_empty() { Err(self.bad(column, "a word")) } else { Ok(value) }
    }

    /// The number of a cell that must hold one.
    pub(super) fn number<T: std::str::FromStr>(
        &self,
        column: &'static str,
        wanted: &str,
    ) -> Result<T, CsvError> {
        self.text(column).trim().parse().map_err(|_| self.bad(column, wanted))
    }

    /// The number of a cell, or nothing when it is empty.
    pub(super) fn optional(&self, column: &'static str) -> Result<Option<f64>, CsvError> {
        if self.text(column).trim().is_empty() {
            return Ok(None);
        }
        self.number(column, "a number or nothing").map(Some)
    }

    /// One of a few words.
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

    /// An error that names this row and the column.
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
