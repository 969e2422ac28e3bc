//! pyenv puts one shell script, a shim, for every program of every Python on PATH. Running it starts several shells;
//! reading pyenv's own files tells the same.

use crate::Source;
use std::path::{Path, PathBuf};

/// The program behind a shim; `None` when the path is none or pyenv would choose by rules not known here.
pub(super) fn resolve(source: &Source, shim: &Path) -> Option<PathBuf> {
    let root = shim.parent().filter(|folder| folder.ends_with("shims"))?.parent()?;
    let versions = root.join("versions");
    let name = shim.file_name()?;
    let chosen = chosen(source, root)?;
    // Several versions may be chosen; the first that has the program is the one that runs.
    chosen.split([':', '\n', ' ']).map(str::trim).filter(|version| !version.is_empty()).find_map(
        |version| {
            let program = versions.join(version).join("bin").join(name);
            source.is_file(&program).then_some(program)
        },
    )
}

/// PYENV_VERSION, then .python-version here and above, then pyenv's global version.
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
