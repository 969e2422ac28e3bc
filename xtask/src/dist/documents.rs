//! Man pages and shell completions, printed by the built program, and the project's documents.

use super::File;
use super::build::Runner;
use super::texts::{self, Texts};
use crate::steps;
use std::fs;
use std::path::Path;

/// Each shell, and the conventional name of its completion file.
const SHELLS: [(&str, &str); 3] =
    [("bash", "firstlight.bash"), ("zsh", "_firstlight"), ("fish", "firstlight.fish")];

/// Every man page and completion script, and the project's documents for this build.
pub(super) fn of(runner: &Runner, program: &Path, texts: Texts) -> anyhow::Result<Vec<File>> {
    let folder = tempfile::tempdir()?;
    steps::output(runner.command(program).args(["man", "-o"]).arg(folder.path()))?;
    let mut files = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        files.push(File::text(&format!("man/{name}"), fs::read(&path)?));
    }
    for (shell, name) in SHELLS {
        let script = steps::output(runner.command(program).args(["completions", shell]))?;
        files.push(File::text(&format!("completions/{name}"), script.into_bytes()));
    }
    let version = steps::output(runner.command(program).arg("--version"))?;
    let texts = texts::packed(texts, version.trim())?;
    files.extend(texts.into_iter().map(|(path, text)| File::text(&path, text.into_bytes())));
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
