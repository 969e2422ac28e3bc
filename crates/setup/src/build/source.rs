//! Obtains the source of a build.

use super::{BuildError, WheelBuild};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A package's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildSource<'a> {
    /// A source distribution on disk whose hash was verified.
    Archive(&'a Path),
    /// A repository, and a tag, branch or commit of it.
    Git {
        /// Its address, without `git+`.
        url: &'a str,
        /// Tag, branch or commit; the default branch without one.
        reference: Option<&'a str>,
    },
}

impl<'a> BuildSource<'a> {
    /// The repository that a requirement names: `git+https://host/p@v2.8.3`, with or without a preceding `name @ `.
    /// `None` if it names none.
    pub fn git(requirement: &'a str) -> Option<Self> {
        let address = &requirement[requirement.find("git+")? + "git+".len()..];
        let address = address.split(['#', ' ', ';']).next().unwrap_or(address);
        // The `@` of `ssh://git@host` precedes the path.
        let path = address.find("://").map_or(0, |at| at + 3);
        let path = path + address[path..].find('/').unwrap_or(0);
        Some(match address[path..].rsplit_once('@') {
            Some((rest, reference)) => {
                Self::Git { url: &address[..path + rest.len()], reference: Some(reference) }
            }
            None => Self::Git { url: address, reference: None },
        })
    }

    /// Unpacks the source in an empty folder; returns the folder to build.
    pub(super) fn fetch(
        self,
        build: &WheelBuild<'_>,
        folder: &Path,
    ) -> Result<PathBuf, BuildError> {
        let run =
            |program: &Path, arguments: &[&str]| run(build.package, program, folder, arguments);
        match self {
            Self::Archive(archive) => {
                // The environment's Python can read all archive formats of Python packages.
                let module = match archive.extension().is_some_and(|ending| ending == "zip") {
                    true => "zipfile",
                    false => "tarfile",
                };
                let python = build.env.join("bin/python");
                let archive = archive.display().to_string();
                run(&python, &["-I", "-m", module, "-e", &archive, "."])?;
                let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
                let folders: Vec<PathBuf> =
                    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
                match folders.as_slice() {
                    [one] => Ok(one.clone()),
                    _ => Err(BuildError::Source {
                        package: build.package.to_owned(),
                        what: format!("{archive} has {} folders instead of one", folders.len()),
                    }),
                }
            }
            Self::Git { url, reference } => {
                // Unlike `clone --branch`, this also fetches commits.
                let git = Path::new("git");
                run(git, &["init", "--quiet"])?;
                run(git, &["fetch", "--quiet", "--depth", "1", url, reference.unwrap_or("HEAD")])?;
                run(git, &["checkout", "--quiet", "FETCH_HEAD"])?;
                let submodules = ["submodule", "update", "--quiet", "--init", "--recursive"];
                run(git, &[submodules.as_slice(), &["--depth", "1"]].concat())?;
                Ok(folder.to_owned())
            }
        }
    }
}

fn run(package: &str, program: &Path, folder: &Path, arguments: &[&str]) -> Result<(), BuildError> {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    // Without a terminal a private repository has to fail instead of waiting for a password.
    command.env("GIT_TERMINAL_PROMPT", "0");
    let shown = program.display().to_string();
    let done = command.output();
    let done = done.map_err(|source| BuildError::Start { program: shown.clone(), source })?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("without a message");
    let what = format!("`{shown} {}`: {}", arguments.join(" "), last.trim());
    Err(BuildError::Source { package: package.to_owned(), what })
}

#[cfg(test)]
mod tests {
    use super::BuildSource;

    #[test]
    fn requirements_name_repositories() {
        for (requirement, url, reference) in [
            (
                "git+https://host/d/flash-attention.git@v2.8.3",
                "https://host/d/flash-attention.git",
                "v2.8.3",
            ),
            (
                "mamba-ssm @ git+https://host/s/mamba@v2.2.6.post3#egg=x",
                "https://host/s/mamba",
                "v2.2.6.post3",
            ),
            ("git+ssh://git@host/a/b@1a2b3c", "ssh://git@host/a/b", "1a2b3c"),
            ("git+ssh://git@host/a/b", "ssh://git@host/a/b", ""),
            ("git+file:///a/b", "file:///a/b", ""),
        ] {
            let reference = Some(reference).filter(|reference| !reference.is_empty());
            assert_eq!(BuildSource::git(requirement), Some(BuildSource::Git { url, reference }));
        }
        assert_eq!(BuildSource::git("flash-attn==2.8.3"), None);
    }
}
