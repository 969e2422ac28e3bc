//! Reads the tables under `data/`, which are embedded in the program and parsed once.
//!
//! Each file defines its sources in `[source.NAME]`, with `what` and `date`, and the key `source` of each row names one of
//! them. A row without a source does not parse, so its table fails every test that reads it.

use crate::{Citation, Minor};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use toml::{Table, Value};

/// The rows under one key of a table.
///
/// # Panics
/// If the table is invalid. The tables are part of the program, and the tests read all of them.
pub(crate) fn rows<Row: DeserializeOwned>(text: &str, key: &str) -> Vec<Row> {
    try_rows(text, key).unwrap_or_else(|wrong| panic!("the table of `{key}`: {wrong}"))
}

fn try_rows<Row: DeserializeOwned>(text: &str, key: &str) -> Result<Vec<Row>, String> {
    let mut table: Table = text.parse().map_err(|wrong: toml::de::Error| wrong.to_string())?;
    let sources = match table.remove("source") {
        Some(Value::Table(sources)) => sources,
        _ => return Err("it has no [source.NAME]".to_owned()),
    };
    let Some(Value::Array(rows)) = table.remove(key) else {
        return Err("the key is absent or not a list".to_owned());
    };
    rows.into_iter().map(|row| cited(row, &sources)).collect()
}

/// Keys of a row whose value is the name of a source. The first is required.
const SOURCES: [&str; 2] = ["source", "gpu_mib_source"];

/// Replaces the names of a row's sources by the sources and deserializes it.
fn cited<Row: DeserializeOwned>(mut row: Value, sources: &Table) -> Result<Row, String> {
    let shown = format!("{row:?}");
    if row.get(SOURCES[0]).and_then(Value::as_str).is_none() {
        return Err(format!("no source in {shown}"));
    }
    for key in SOURCES {
        let Some(name) = row.get(key).and_then(Value::as_str) else { continue };
        let Some(source) = sources.get(name).cloned() else {
            return Err(format!("no [source.{name}], which {shown} names"));
        };
        let parsed: Citation =
            source.clone().try_into().map_err(|wrong| format!("{wrong}: {shown}"))?;
        parsed.check().map_err(|wrong| format!("{wrong}: {shown}"))?;
        if let Value::Table(row) = &mut row {
            row.insert(key.to_owned(), source);
        }
    }
    row.try_into().map_err(|wrong| format!("{wrong}: {shown}"))
}

/// Deserializes `12.8` as (12, 8).
pub(crate) fn minor<'de, D: Deserializer<'de>>(from: D) -> Result<Minor, D::Error> {
    let text = String::deserialize(from)?;
    parse_minor(&text).ok_or_else(|| D::Error::custom(format!("`{text}` is not like 12.8")))
}

/// The same for an optional key.
pub(crate) fn optional_minor<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Minor>, D::Error> {
    minor(from).map(Some)
}

/// The same for a list.
pub(crate) fn minors<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Minor>, D::Error> {
    let all = Vec::<String>::deserialize(from)?;
    let parse = |text: &String| {
        parse_minor(text).ok_or_else(|| D::Error::custom(format!("`{text}` is not like 12.8")))
    };
    all.iter().map(parse).collect()
}

/// Parses exactly two numbers: `12.8`, but neither `12` nor `12.8.1`.
pub(crate) fn parse_minor(text: &str) -> Option<Minor> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Row {
        #[serde(deserialize_with = "minor")]
        cuda: Minor,
        source: Citation,
    }

    #[test]
    fn rejects_rows_without_a_source_and_a_date() {
        // `build` precedes the sources: in TOML a key after a table header belongs to that table.
        let read = |source: &str, row: &str| {
            try_rows::<Row>(&format!("build = [{row}]\n{source}\n"), "build").map(|rows| {
                rows.iter().map(|row| (row.cuda, row.source.to_string())).collect::<Vec<_>>()
            })
        };
        let good = "[source.page]\nwhat = \"the install page\"\ndate = \"2026-11-21\"";
        let rows = read(good, "{ cuda = \"12.8\", source = \"page\" }").expect("reads");
        assert_eq!(
            rows,
            [((12, 8), "table of firstlight: the install page (2026-11-21)".to_owned())]
        );
        for (source, row, words) in [
            (good, "{ cuda = \"12.8\" }", "no source in"),
            (good, "{ cuda = \"12.8\", source = \"other\" }", "no [source.other]"),
            (good, "{ cuda = \"12\", source = \"page\" }", "not like 12.8"),
            ("", "{ cuda = \"12.8\", source = \"page\" }", "no [source.NAME]"),
            (
                "[source.page]\nwhat = \"the install page\"",
                "{ cuda = \"12.8\", source = \"page\" }",
                "date",
            ),
            (
                "[source.page]\nwhat = \"the install page\"\ndate = \"2026\"",
                "{ cuda = \"12.8\", source = \"page\" }",
                "no date",
            ),
            (
                "[source.page]\nwhat = \"page\"\ndate = \"2026-11-21\"",
                "{ cuda = \"12.8\", source = \"page\" }",
                "no document",
            ),
        ] {
            let wrong = read(source, row).expect_err(row);
            assert!(wrong.contains(words), "{wrong}");
        }
    }
}
