//! The commit that this program was built from, and the commit of the checkout that it runs in.

use facts::SourceTree;
use std::process::Command;

/// The text of `--version`: the version, and the commit with its date if the build recorded it.
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

/// The commit of the checkout around the working folder, if there is one and git is installed.
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
