//! Man pages and shell completions, printed by the built program.

use super::File;
use super::build::Runner;
use crate::steps;
use std::fs;
use std::path::Path;

/// Each shell, and the conventional name of its completion file.
const SHELLS: [(&str, &str); 3] =
    [("bash", "firstlight.bash"), ("zsh", "_firstlight"), ("fish", "firstlight.fish")];

/// Every man page and completion script.
pub(super) fn of(runner: &Runner, program: &Path) -> anyhow::Result<Vec<File>> {
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
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}
