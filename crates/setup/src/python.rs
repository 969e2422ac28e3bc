//! The installed Pythons: a plan for another one cannot be applied here.

use crate::uv::{Uv, is_script};
use facts::CompactSort;
use knowledge::{Minor, dotted};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Releases of Python whose interpreters are on `path` (the variable PATH), among pyenv's or among those that uv installed,
/// from their file names only: starting each would take seconds if they are launcher scripts of another tool.
pub fn installed(path: Option<&OsStr>, data: Option<&Path>) -> Vec<Minor> {
    let mut found: Vec<Minor> =
        interpreters(path, data).into_iter().map(|(release, _)| release).collect();
    found.compact_sort();
    found.dedup();
    found
}

/// The interpreters of a release (`3.12`), as [`installed`] finds them. uv's own search ends at a launcher script that
/// fails, such as pyenv's for a version that is not active.
pub fn candidates(release: &str, path: Option<&OsStr>, data: Option<&Path>) -> Vec<PathBuf> {
    let found = interpreters(path, data).into_iter();
    found.filter(|(minor, _)| dotted(*minor) == release).map(|(_, file)| file).collect()
}

/// The folder of programs' data, in which uv keeps the interpreters that it installed.
pub fn data_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")))
}

/// Interpreters that are binaries, with their releases.
fn interpreters(path: Option<&OsStr>, data: Option<&Path>) -> Vec<(Minor, PathBuf)> {
    let on_path = path.into_iter().flat_map(std::env::split_paths).filter(|it| it.is_absolute());
    let on_path: Vec<PathBuf> = on_path.collect();
    // pyenv puts its shims on PATH, next to the folder of its versions.
    let shims = on_path.iter().filter(|folder| folder.ends_with("shims"));
    let by_pyenv: Vec<PathBuf> =
        shims.filter_map(|folder| Some(folder.parent()?.join("versions"))).collect();
    let installations = by_pyenv.into_iter().chain(data.map(|data| data.join("uv/python")));
    let each = installations.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let each: Vec<PathBuf> = each.map(|entry| entry.path().join("bin")).collect();
    on_path.iter().chain(&each).flat_map(|folder| in_folder(folder)).collect()
}

fn in_folder(folder: &Path) -> Vec<(Minor, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let programs = entries.map(|entry| entry.path()).filter_map(|file| {
        let name = file.file_name()?.to_str()?;
        let release = match name {
            // Its name has no release, but the resolved one has.
            "python3" | "python" => release(fs::canonicalize(&file).ok()?.file_name()?.to_str()?),
            _ => release(name),
        };
        let release = release.filter(|_| file.is_file() && !is_script(&file))?;
        Some((release, file))
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
    let find = |python: &str| ask(&["python", "find", "--system", "--no-project", python]);
    let by_path = || {
        let path = std::env::var_os("PATH");
        let files = candidates(python, path.as_deref(), data_folder().as_deref());
        files.iter().find_map(|file| find(file.to_str()?))
    };
    if let Some(found) = find(python).or_else(by_path) {
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

/// The command that installs a release with this uv, which may not be on PATH.
pub fn install(uv: Option<&Path>, python: &str) -> String {
    let uv = uv.map_or("uv".to_owned(), |uv| facts::quote(&uv.display().to_string()));
    format!("{uv} python install {python}")
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
        // pyenv's versions, of which none is active.
        let version = place("versions/3.12.4/bin");
        fs::write(version.join("python3.12"), "\x7fELF").unwrap();
        assert_eq!(found(None), [(3, 11), (3, 12)]);
        assert_eq!(candidates("3.12", Some(&path), None), [version.join("python3.12")]);
        let both = candidates("3.11", Some(&path), None);
        assert!(both.contains(&bin.join("python3.11")) && both.contains(&bin.join("python3")));
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
