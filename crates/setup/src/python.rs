//! The installed Pythons: a plan for another one cannot be applied here.

use crate::uv::{Uv, is_script};
use facts::CompactSort;
use knowledge::{Minor, dotted};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Releases of Python whose interpreters are on `path` (the variable PATH) or among those that uv installed, from their
/// file names only: starting each would take seconds if they are launcher scripts of another tool.
pub fn installed(path: Option<&OsStr>, data: Option<&Path>) -> Vec<Minor> {
    let on_path = path.into_iter().flat_map(std::env::split_paths).filter(|it| it.is_absolute());
    let by_uv = data.map(|data| data.join("uv/python"));
    let by_uv = by_uv.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let folders = on_path.chain(by_uv.map(|entry| entry.path().join("bin")));
    let mut found: Vec<Minor> = folders.flat_map(|folder| in_folder(&folder)).collect();
    found.compact_sort();
    found.dedup();
    found
}

fn in_folder(folder: &Path) -> Vec<Minor> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let programs = entries.map(|entry| entry.path()).filter_map(|file| {
        let name = file.file_name()?.to_str()?;
        match name {
            // Its name has no release, but the resolved one has.
            "python3" | "python" => release(fs::canonicalize(&file).ok()?.file_name()?.to_str()?),
            _ => release(name),
        }
        .filter(|_| file.is_file() && !is_script(&file))
    });
    programs.collect()
}

/// `python3.12`, but not `python3.12-config`.
fn release(name: &str) -> Option<Minor> {
    let minor = name.strip_prefix("python3.")?;
    Some((3, minor.parse().ok()?))
}

/// The source of the interpreter of a release, on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InterpreterSource {
    /// uv finds it on this machine.
    Here(PathBuf),
    /// It is not installed, and uv can download it under this name.
    ByUv(String),
    /// It is not installed, and uv cannot download it; with the interpreters that uv finds instead.
    Nowhere(Vec<String>),
}

/// Queries uv, as an apply will do.
pub fn query_interpreter(uv: &Uv, python: &str) -> InterpreterSource {
    let ask = |words: &[&str]| {
        let output = uv.command().args(words).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let listed = |words: &[&str]| {
        let text = ask(words).unwrap_or_default();
        let names = text.lines().filter_map(|line| line.split_whitespace().next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    if let Some(found) = ask(&["python", "find", "--system", "--no-project", python]) {
        return InterpreterSource::Here(PathBuf::from(found.trim()));
    }
    let downloads = listed(&["python", "list", "--offline", "--only-downloads", python]);
    match downloads.into_iter().find(|name| name.starts_with("cpython-")) {
        Some(name) => InterpreterSource::ByUv(name),
        None => {
            InterpreterSource::Nowhere(listed(&["python", "list", "--offline", "--only-installed"]))
        }
    }
}

/// The remedy where there is no Python, which runs the HTTP client and pip.
pub const INSTALL: &str = "install Python 3: `sudo apt-get install --yes python3-pip` (Debian, Ubuntu) or `sudo dnf install --assumeyes python3-pip` (Red Hat, Fedora)";

/// The command that installs a release with uv.
pub fn install(python: &str) -> String {
    format!("uv python install {python}")
}

/// Releases as text: `3.10, 3.11`.
pub fn words(pythons: &[Minor]) -> String {
    pythons.iter().map(|python| dotted(*python)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uv::UvVersion;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn interpreters_are_known_by_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| {
            let place = folder.path().join(name);
            fs::create_dir_all(&place).unwrap();
            place
        };
        let (bin, shims, by_uv) =
            (place("bin"), place("shims"), place("data/uv/python/cpython-3.13.1-linux/bin"));
        for file in [bin.join("python3.11"), by_uv.join("python3.13"), bin.join("python3.9-config")]
        {
            fs::write(file, "\x7fELF").unwrap();
        }
        symlink(bin.join("python3.11"), bin.join("python3")).unwrap();
        symlink("gone", bin.join("python3.10")).unwrap();
        fs::write(shims.join("python3.12"), "#!/bin/sh\n").unwrap();
        let path = std::env::join_paths([&shims, &bin]).unwrap();
        let found = |data: Option<&Path>| installed(Some(&path), data);
        assert_eq!(found(None), [(3, 11)]);
        assert_eq!(found(Some(&folder.path().join("data"))), [(3, 11), (3, 13)]);
        assert_eq!(installed(None, None), []);
        assert_eq!(words(&[(3, 9), (3, 12)]), "3.9, 3.12");
    }

    #[test]
    fn origin_of_a_python_is_parsed_from_uv() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("uv");
        let text = "#!/bin/sh\ncase \"$*\" in\n*find*3.11) echo /usr/bin/python3.11 ;;\n*find*) exit 2 ;;\n\
                    *downloads*3.12) echo 'pypy-3.12.1-linux  <download available>'; echo 'cpython-3.12.16-linux  <download available>' ;;\n\
                    *downloads*) echo 'pypy-3.9.1-linux  <download available>' ;;\n*) echo 'cpython-3.11.2-linux  /usr/bin/python3.11' ;;\nesac\n";
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let uv = Uv { program, version: UvVersion(0, 13, 9) };
        assert_eq!(
            query_interpreter(&uv, "3.11"),
            InterpreterSource::Here("/usr/bin/python3.11".into())
        );
        assert_eq!(
            query_interpreter(&uv, "3.12"),
            InterpreterSource::ByUv("cpython-3.12.16-linux".to_owned())
        );
        let there = vec!["cpython-3.11.2-linux".to_owned()];
        assert_eq!(query_interpreter(&uv, "3.99"), InterpreterSource::Nowhere(there));
    }
}
