//! Selects the interpreter with which uv resolves and sizes are requested.
//!
//! The plan determines the Python and the machine to resolve for, so any interpreter works. By default uv looks for the
//! plan's release among all interpreters on PATH and starts each; a launcher script (pyenv has one for every release)
//! takes a second each time.

use crate::uv::{Uv, is_script, programs};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The first interpreter on `path` (the variable PATH) that is a binary and that uv accepts, otherwise uv's own choice.
pub(super) fn find(uv: &Uv, path: Option<&OsStr>) -> Option<PathBuf> {
    let named = ["python3", "python"].iter().flat_map(|name| programs(path, name));
    let mut known = named.filter(|file| !is_script(file));
    known.find_map(|file| ask(uv, Some(&file))).or_else(|| ask(uv, None))
}

/// uv's answer about an interpreter, or about all; uv caches it.
fn ask(uv: &Uv, file: Option<&Path>) -> Option<PathBuf> {
    let mut command = uv.command();
    command.args(["python", "find", "--system", "--no-project"]).args(file);
    let found = command.output().ok()?;
    let path = String::from_utf8(found.stdout).ok()?;
    found.status.success().then(|| PathBuf::from(path.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uv::UvVersion;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn launcher_scripts_are_not_started_if_a_binary_exists() {
        let folder = tempfile::tempdir().unwrap();
        let [launchers, broken, programs] = ["launchers", "broken", "programs"].map(|name| {
            fs::create_dir(folder.path().join(name)).unwrap();
            folder.path().join(name)
        });
        let script = |path: &Path, text: &str| {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        };
        script(&launchers.join("python3"), "#!/bin/sh\nexit 1\n");
        fs::write(broken.join("python3"), "no program\n").unwrap();
        fs::write(programs.join("python"), "\x7fELF, as far as this test is concerned\n").unwrap();
        // It accepts the binary, and searches for another one; its requests are recorded.
        let asked = folder.path().join("asked");
        let uv = folder.path().join("uv");
        let text = format!(
            "#!/bin/sh\necho \"$5\" >> {}\ncase $5 in */broken/*) exit 2 ;; '') echo /found ;; *) echo \"$5\" ;; esac\n",
            asked.display()
        );
        script(&uv, &text);
        let uv = Uv { program: uv, version: UvVersion(0, 13, 9) };
        let check = |folders: &[&PathBuf], expect: &Path, questions: usize| {
            let _ = fs::remove_file(&asked);
            let path = std::env::join_paths(folders).unwrap();
            assert_eq!(find(&uv, Some(&path)).as_deref(), Some(expect), "{folders:?}");
            assert_eq!(fs::read_to_string(&asked).unwrap().lines().count(), questions);
        };
        check(&[&launchers, &broken, &programs], &programs.join("python"), 2);
        check(&[&launchers, &broken], Path::new("/found"), 2);
        check(&[&launchers], Path::new("/found"), 1);
    }
}
