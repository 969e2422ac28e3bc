//! Formats rows for the terminal and for the record.

use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The terminal's line of one row.
pub(super) fn line(row: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let broken = row["broken"]
        .as_array()
        .and_then(|all| all.first())
        .map_or("imports".to_owned(), |first| {
            format!("{}: {}", text(&first[0]), shortened(&text(&first[1]), 70))
        });
    let named = row["findings"].as_array().into_iter().flatten();
    let mut errors: Vec<String> =
        named.filter(|it| it["severity"] == "error").map(|it| text(&it["rule"])).collect();
    errors.dedup();
    let seconds = row["doctor_seconds"].as_f64().unwrap_or_default();
    let fix = match row.get("fix") {
        None => String::new(),
        Some(fix) => format!(" | fix: {}", after(fix)),
    };
    let rules = if errors.is_empty() { "no error".to_owned() } else { errors.join(" ") };
    format!(
        "{:<6} {:<34} {seconds:>6.3} s | {broken} | {rules}{fix}",
        text(&row["verdict"]),
        text(&row["name"])
    )
}

/// The outcome of a fix, in two or three words.
fn after(fix: &Value) -> String {
    let outcome = fix["outcome"].as_str().unwrap_or_default();
    let broken = fix["broken_after"].as_array().map_or(0, Vec::len);
    let same = if fix["unchanged"] == true { ", unchanged" } else { "" };
    match broken {
        0 => format!("{outcome}, imports{same}"),
        _ => format!("{outcome}, {broken} broken{same}"),
    }
}

fn shortened(text: &str, letters: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(letters) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

/// The count of each verdict, and the share of broken environments whose cause was named.
pub(super) fn totals(rows: &[Value]) -> String {
    let count = |word: &str| rows.iter().filter(|row| row["verdict"] == word).count();
    let (hits, misses) = (count("hit"), count("MISS"));
    let pristine = |row: &&Value| {
        !row["name"].as_str().unwrap_or_default().contains('/') && row["verdict"].is_string()
    };
    let slowest = rows.iter().filter_map(|row| row["doctor_seconds"].as_f64()).fold(0.0, f64::max);
    let mut out = format!(
        "{} environments and variants, {} of them untouched, {} not built\nbroken: {}, named {hits}, missed {misses}{}\n\
         not broken: {}, quiet {}, damaged files that nothing imports {}, false errors {} ({} in untouched ones)\n\
         slowest warm doctor: {slowest:.3} s\n",
        rows.len(),
        rows.iter().filter(pristine).count(),
        rows.iter().filter(|row| row.get("not_built").is_some()).count(),
        hits + misses,
        if hits + misses > 0 {
            format!(" ({:.1} %)", 100.0 * hits as f64 / (hits + misses) as f64)
        } else {
            String::new()
        },
        count("quiet") + count("beyond") + count("FALSE"),
        count("quiet"),
        count("beyond"),
        count("FALSE"),
        rows.iter().filter(pristine).filter(|row| row["verdict"] == "FALSE").count(),
    );
    for tool in ["pip check", "collect_env", "rigsolve"] {
        let broken =
            rows.iter().filter(|row| row["broken"].as_array().is_some_and(|it| !it.is_empty()));
        let asked: Vec<&Value> = broken.filter(|row| row["others"][tool]["ran"] == true).collect();
        if !asked.is_empty() {
            let named = asked.iter().filter(|row| row["others"][tool]["names"] == true).count();
            let _ = writeln!(out, "{tool}: named {named} of {} broken ones", asked.len());
        }
    }
    let fixes: Vec<&Value> = rows.iter().filter_map(|row| row.get("fix")).collect();
    if !fixes.is_empty() {
        let imports = |fix: &&&Value| fix["broken_after"].as_array().is_some_and(Vec::is_empty);
        let worse = fixes.iter().filter(|fix| !imports(fix) && fix["unchanged"] != true).count();
        let _ = writeln!(
            out,
            "fixes: {}, imports that work {}, unchanged {}, neither {worse}",
            fixes.len(),
            fixes.iter().filter(imports).count(),
            fixes.iter().filter(|fix| !imports(fix) && fix["unchanged"] == true).count(),
        );
    }
    out
}

/// One row of the recorded table.
pub(super) fn markdown(row: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().replace('|', "/");
    if let Some(why) = row.get("not_built") {
        return format!(
            "| {} | not built: {} | | | | | | | | |\n",
            text(&row["name"]),
            shortened(&text(why), 120)
        );
    }
    let broken =
        row["broken"].as_array().and_then(|all| all.first()).map_or("all".to_owned(), |first| {
            format!("not {}: {}", text(&first[0]), shortened(&text(&first[1]), 90))
        });
    let findings = row["findings"].as_array().into_iter().flatten();
    let mut errors: Vec<String> =
        findings.filter(|it| it["severity"] == "error").map(|it| text(&it["rule"])).collect();
    errors.dedup();
    let seconds = |key: &str| row[key].as_f64().map(|seconds| format!("{seconds:.3}"));
    let warm = [seconds("doctor_seconds"), seconds("doctor_median_seconds")];
    let warm = warm.into_iter().flatten().collect::<Vec<_>>().join(" / ");
    let other = |tool: &str| match &row["others"][tool] {
        said if said["names"] == true => "names it",
        said if said["complains"] == true => "complains",
        said if said["ran"] == true => "-",
        _ => "",
    };
    format!(
        "| {} | {broken} | {} | {} | {warm} | {} | {} | {} | {} | {} |\n",
        text(&row["name"]),
        errors.join(" "),
        text(&row["verdict"]),
        other("pip check"),
        other("collect_env"),
        other("rigsolve"),
        row.get("fix").map(after).unwrap_or_default(),
        built(row),
    )
}

/// The commit of the doctor's build, and of the build that made the fix if it differs.
fn built(row: &Value) -> String {
    let commit = |text: &Value| {
        let text = text.as_str().unwrap_or_default();
        let commit = text.split_once('(').map_or(text, |(_, rest)| rest);
        commit.split(' ').next().unwrap_or_default().trim_end_matches(')').to_owned()
    };
    match row.get("fixed_by") {
        Some(fixed) => format!("{}, fix {}", commit(&row["doctor"]), commit(fixed)),
        None => commit(&row["doctor"]),
    }
}

/// Every file below a folder with its size and modification time, to detect changes.
pub(super) fn listing(root: &Path) -> anyhow::Result<BTreeMap<PathBuf, (u64, i64, i64)>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let about = path.symlink_metadata()?;
            if about.is_dir() {
                pending.push(path);
            } else {
                found.insert(path, (about.len(), about.mtime(), about.mtime_nsec()));
            }
        }
    }
    Ok(found)
}
