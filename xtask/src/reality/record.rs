//! Writes the record of a date in the repository: the newest result of each environment of the list.

use super::table;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The record of a date. Runs of parts of the list add to it, and a newer row replaces an older one.
pub(super) struct Record {
    folder: PathBuf,
    date: String,
    /// Names of all environments and variants, in the order of the list.
    names: Vec<String>,
    /// Folders of this machine and their replacements in the record.
    folders: Vec<(String, &'static str)>,
    earlier: Vec<Value>,
}

impl Record {
    pub(super) fn open(
        root: &Path,
        date: &str,
        names: Vec<String>,
        work: &Path,
    ) -> anyhow::Result<Self> {
        let folder = root.join("benchmarks/reality");
        let path = folder.join(format!("{date}.json"));
        let mut earlier = Vec::new();
        if path.exists() {
            let mut document: Value = serde_json::from_str(&fs::read_to_string(&path)?)
                .with_context(|| path.display().to_string())?;
            earlier = document["rows"].as_array_mut().map(std::mem::take).unwrap_or_default();
        }
        let mut folders = vec![(work.display().to_string(), "/tmp/reality")];
        // Python's errors contain the interpreter's folder, which pyenv and uv have in the home folder.
        let home = std::env::var("HOME").ok().filter(|home| home.len() > 1);
        folders.extend(home.map(|home| (home + "/", "/home/user/")));
        Ok(Self { folder, date: date.to_owned(), names, folders, earlier })
    }

    /// Writes the JSON and the table.
    pub(super) fn write(&self, rows: &[Value]) -> anyhow::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let (rows, left_out) = self.merged(rows);
        let document = json!({ "date": self.date, "rows": rows, "left_out": left_out });
        let file = |ending: &str| self.folder.join(format!("{}.{ending}", self.date));
        let anywhere = |text: String| {
            self.folders.iter().fold(text, |text, (folder, name)| text.replace(folder, name))
        };
        fs::write(file("json"), anywhere(serde_json::to_string_pretty(&document)? + "\n"))?;
        fs::write(file("md"), anywhere(self.table(&rows, &left_out)))?;
        Ok(())
    }

    /// The newest row of an environment or variant from earlier runs.
    pub(super) fn row(&self, name: &str) -> Option<&Value> {
        self.earlier.iter().rev().find(|row| row["name"] == name)
    }

    /// The newest row of everything on the list, and the names without a row. A row without a fix or without results of other tools
    /// takes them from an earlier row, with the build that made the fix.
    fn merged(&self, rows: &[Value]) -> (Vec<Value>, Vec<String>) {
        let mut newest: BTreeMap<&str, Value> = BTreeMap::new();
        for row in self.earlier.iter().chain(rows) {
            let Some(name) = row["name"].as_str() else { continue };
            let mut row = row.clone();
            if let Some(earlier) = newest.get(name).filter(|_| row.get("not_built").is_none()) {
                if let (None, Some(others)) = (row.get("others"), earlier.get("others")) {
                    row["others"] = others.clone();
                }
                if let (None, Some(fix)) = (row.get("fix"), earlier.get("fix")) {
                    row["fix"] = fix.clone();
                    row["fixed_by"] = earlier.get("fixed_by").unwrap_or(&earlier["doctor"]).clone();
                }
            }
            newest.insert(name, row);
        }
        let (known, left): (Vec<&String>, Vec<&String>) =
            self.names.iter().partition(|name| newest.contains_key(name.as_str()));
        let known = known.iter().map(|name| newest[name.as_str()].clone()).collect();
        (known, left.into_iter().cloned().collect())
    }

    fn table(&self, rows: &[Value], left_out: &[String]) -> String {
        let date = &self.date;
        let mut doctors = BTreeMap::<&str, usize>::new();
        for row in rows {
            *doctors.entry(row["doctor"].as_str().unwrap_or("unknown")).or_default() += 1;
        }
        let doctors: Vec<String> =
            doctors.iter().map(|(doctor, rows)| format!("{doctor}: {rows} rows")).collect();
        let mut out = format!(
            "# The doctor against reality, {date}\n\n`cargo xtask reality --fix --record {date}`: environments of the Python \
             registry, untouched and with small edits, without a GPU; libcuda is a stand-in. A hit names the right package at \
             error. Warm: the shortest of seven and their median. Judged by {}.\n\n```\n{}```\n\n| environment | what imports | doctor | verdict | warm s | pip check | \
             collect_env | rigsolve | fix | build |\n|---|---|---|---|---|---|---|---|---|---|\n",
            doctors.join(", "),
            table::totals(rows)
        );
        for row in rows {
            out.push_str(&table::markdown(row));
        }
        if !left_out.is_empty() {
            let _ =
                write!(out, "\nOn the list and not part of this record: {}\n", left_out.join(", "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_runs_are_merged_and_newer_rows_replace_older_ones() {
        let folder = tempfile::tempdir().unwrap();
        let open = || {
            let names = ["a", "a/x", "b"].map(str::to_owned).to_vec();
            Record::open(folder.path(), "2026-11-23", names, Path::new("/home/user/x")).unwrap()
        };
        let row = |name: &str, verdict: &str| json!({ "name": name, "doctor": "1 (abc)", "verdict": verdict });
        open().write(&[row("a/x", "MISS"), row("gone", "hit")]).unwrap();
        open().write(&[row("a", "quiet"), row("a/x", "hit")]).unwrap();
        let (rows, left) = open().merged(&[]);
        assert_eq!(rows, [row("a", "quiet"), row("a/x", "hit")]);
        assert_eq!(left, ["b"]);
        let path = folder.path().join("benchmarks/reality/2026-11-23.md");
        let table = fs::read_to_string(path).unwrap();
        assert!(table.contains("not part of this record: b\n"), "{table}");
        assert!(table.contains("Judged by 1 (abc): 2 rows."), "{table}");
        let mended = json!({ "name": "a/x", "doctor": "1 (abc)", "fix": { "outcome": "mended" }, "others": 1 });
        open().write(&[mended]).unwrap();
        open().write(&[json!({ "name": "a/x", "doctor": "1 (def)", "verdict": "hit" })]).unwrap();
        let kept = json!({
            "name": "a/x", "doctor": "1 (def)", "verdict": "hit", "others": 1, "fix": { "outcome": "mended" },
            "fixed_by": "1 (abc)"
        });
        assert_eq!(open().merged(&[]).0[1], kept);
        open().write(&[json!({ "name": "b", "not_built": "no /home/user/x/b" })]).unwrap();
        let json = fs::read_to_string(folder.path().join("benchmarks/reality/2026-11-23.json"));
        assert!(json.unwrap().contains("no /tmp/reality/b"));
    }
}
