//! Proves that a wheel's libraries were compiled by its build.

use super::{BuildError, CompilerRun, WheelBuild};
use crate::wheel::Unpacked;
use object::Object;
use std::fs;
use std::path::Path;

/// A library of a wheel, and the compiler run that linked it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkedLibrary {
    /// The file, relative to the environment.
    pub file: String,
    /// The compiler.
    pub tool: String,
    /// The evidence that they are the same.
    pub by: LinkEvidence,
}

impl std::fmt::Display for LinkedLibrary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match self.by {
            LinkEvidence::Bytes => "the same bytes",
            LinkEvidence::BuildId => "the same build ID",
        };
        write!(f, "{} was linked on this machine by {}: {by}", self.file, self.tool)
    }
}

/// Evidence that a file of the wheel is one that was linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkEvidence {
    /// Equal bytes.
    Bytes,
    /// Equal build IDs, written by the linker: symbols were stripped, or the search path was changed afterwards.
    BuildId,
}

/// The run that linked each library of the wheel.
pub(super) fn linked(
    build: &WheelBuild<'_>,
    unpacked: &Unpacked,
    runs: &[CompilerRun],
    log: &Path,
) -> Result<Vec<LinkedLibrary>, BuildError> {
    let read = |path: &Path| {
        fs::read(path).map_err(|source| BuildError::Folder { folder: path.to_owned(), source })
    };
    let mut made = Vec::new();
    for run in runs {
        if let Some(kept) = &run.linked {
            made.push((run, read(kept)?));
        }
    }
    let mut all = Vec::new();
    for file in unpacked.files().filter(|file| is_library(file)) {
        let content = read(&unpacked.prefix.join(file))?;
        let same = |(_, kept): &&(_, Vec<u8>)| *kept == content;
        let id = build_id(&content);
        let like = |(_, kept): &&(_, Vec<u8>)| id.is_some() && build_id(kept) == id;
        let found = made.iter().find(same).map(|made| (made, LinkEvidence::Bytes));
        let found =
            found.or_else(|| made.iter().find(like).map(|made| (made, LinkEvidence::BuildId)));
        let Some(((run, _), by)) = found else {
            return Err(prebuilt(build, &file.display().to_string(), runs, log));
        };
        all.push(LinkedLibrary { file: file.display().to_string(), tool: run.tool.clone(), by });
    }
    if all.is_empty() {
        return Err(BuildError::NothingCompiled {
            package: build.package.to_owned(),
            wheel: unpacked.prefix.clone(),
            log: log.to_owned(),
        });
    }
    Ok(all)
}

/// `x.so`, `libx.so.1`, `libx.dylib`.
fn is_library(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.ends_with(".so") || name.contains(".so.") || name.ends_with(".dylib")
}

fn build_id(content: &[u8]) -> Option<Vec<u8>> {
    object::File::parse(content).ok()?.build_id().ok()?.map(<[u8]>::to_vec)
}

/// Words in the log that indicate a prebuilt wheel, as those setup.py files print them.
const PREBUILT: &[&str] = &["wheel url", "raw wheel path", "prebuilt", "precompiled"];

fn prebuilt(build: &WheelBuild<'_>, file: &str, runs: &[CompilerRun], log: &Path) -> BuildError {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let speaks = |line: &&str| {
        let line = line.to_lowercase();
        PREBUILT.iter().any(|words| line.contains(words))
    };
    let switches: Vec<String> = build
        .recipe
        .env
        .iter()
        .filter(|(name, _)| name.contains("FORCE_BUILD"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let linked = runs.iter().filter(|run| run.linked.is_some()).count();
    let said = text.lines().map(str::trim).find(speaks);
    let said = said.map(|line| format!("; the log says `{line}`")).unwrap_or_default();
    BuildError::Prebuilt {
        package: build.package.to_owned(),
        seen: format!(
            "{file} is not one of the {linked} files that the build's {} compiler runs linked{said}",
            runs.len()
        ),
        switches: match switches.is_empty() {
            true => "none was set".to_owned(),
            false => format!("{} was set without effect", switches.join(" ")),
        },
        log: log.to_owned(),
    }
}
