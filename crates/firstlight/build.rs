//! Records the commit this binary is built from, so that a report can name it.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn main() {
    // Outside a checkout (a source archive) there is nothing to record, and nothing to watch.
    println!("cargo:rerun-if-changed=build.rs");
    let Some(folder) = git(&["rev-parse", "--absolute-git-dir"]) else { return };
    for file in ["HEAD", "index", "logs/HEAD"] {
        let path = Path::new(&folder).join(file);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        println!("cargo:rustc-env=FIRSTLIGHT_COMMIT={commit}");
        let changes = git(&["status", "--porcelain", "--untracked-files=no"]);
        let dirty = changes.is_none_or(|changes| !changes.is_empty());
        println!("cargo:rustc-env=FIRSTLIGHT_DIRTY={dirty}");
        // The date of the commit and not of the build: the same sources give the same program.
        let date = git(&["log", "-1", "--format=%cs"]).unwrap_or_default();
        let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
        let (short, edited) = (&commit[..commit.len().min(9)], if dirty { ", edited" } else { "" });
        println!("cargo:rustc-env=FIRSTLIGHT_VERSION={version} ({short} {date}{edited})");
    }
}
