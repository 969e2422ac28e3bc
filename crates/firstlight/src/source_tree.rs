//! Which commit this binary and this run belong to.

use facts::SourceTree;
use std::process::Command;

/// What `--version` says: the version, and the commit with its date where the build knew it.
pub(crate) const VERSION: &str = match option_env!("FIRSTLIGHT_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The commit this binary was built from, recorded by the build script.
pub(crate) fn built_from() -> Option<SourceTree> {
    let commit = option_env!("FIRSTLIGHT_COMMIT")?;
    Some(SourceTree {
        commit: commit.to_owned(),
        dirty: option_env!("FIRSTLIGHT_DIRTY") != Some("false"),
    })
}

/// The checkout the working folder belongs to, where it is one and git is there to ask.
pub(crate) fn run_in() -> Option<SourceTree> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(SourceTree { commit, dirty: !changes.is_empty() })
}
