//! pyenv puts a shell script, a shim, on PATH for every program of every Python. Running it starts several shells;
//! pyenv's files have the same information.

use crate::Source;
use std::path::{Path, PathBuf};

/// The program of a shim; `None` if the path is not a shim or pyenv would choose by other rules.
pub(super) fn resolve(source: &Source, shim: &Path) -> Option<PathBuf> {
    let root = shim.parent().filter(|folder| folder.ends_with("shims"))?.parent()?;
    let versions = root.join("versions");
    let name = shim.file_name()?;
    let chosen = chosen(source, root)?;
    // Several versions may be selected; the first that has the program runs.
    chosen.split([':', '\n', ' ']).map(str::trim).filter(|version| !version.is_empty()).find_map(
        |version| {
            let program = versions.join(version).join("bin").join(name);
            source.is_file(&program).then_some(program)
        },
    )
}

/// PYENV_VERSION, then .python-version in this folder and its parents, then pyenv's global version.
fn chosen(source: &Source, root: &Path) -> Option<String> {
    if let Some(version) = source.var("PYENV_VERSION") {
        return Some(version.to_string());
    }
    let local = source
        .working_folder()
        .ancestors()
        .find_map(|folder| source.word(folder.join(".python-version")));
    local.or_else(|| source.word(root.join("version")))
}
