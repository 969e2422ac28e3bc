//! Queries an interpreter about itself if no file has the answer.

use crate::Source;
use crate::source::Command;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Without the user's settings (-I), without site-packages (-S) and without writing bytecode (-B), so that no installed
/// code runs: only the standard library's sysconfig is loaded.
const FLAGS: [&str; 4] = ["-I", "-S", "-B", "-c"];
const QUESTION: &str = "import sys, sysconfig
p = sysconfig.get_paths()
for k, v in (('version', sys.version.split()[0]), ('prefix', sys.prefix), ('implementation', sys.implementation.name),
    ('abiflags', getattr(sys, 'abiflags', '')), ('purelib', p['purelib']), ('platlib', p['platlib'])):
    print(k + '=' + v)";

/// The answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) version: Option<String>,
    pub(super) prefix: Option<PathBuf>,
    pub(super) implementation: String,
    pub(super) abiflags: String,
    pub(super) site_packages: Vec<PathBuf>,
}

/// Queries an interpreter; the error is a message.
pub(super) fn ask(source: &Source, python: &Path) -> Result<Answers, String> {
    let program = python.display().to_string();
    let args = [FLAGS[0], FLAGS[1], FLAGS[2], FLAGS[3], QUESTION];
    let command = Command {
        record: "python-paths",
        program: &program,
        args: &args,
        limit: Duration::from_secs(5),
    };
    let text = source.run(&command).map_err(|error| format!("{program} -I -S -c ...: {error}"))?;
    let answers = parse(&text);
    if answers.prefix.is_none() {
        Err(format!("{program} did not tell its paths"))
    } else {
        Ok(answers)
    }
}

/// Reads the `key=value` lines.
pub(super) fn parse(text: &str) -> Answers {
    let mut answers = Answers::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once('=')) {
        let value = value.trim();
        match key {
            "version" if !value.is_empty() => answers.version = Some(value.to_string()),
            "prefix" if value.starts_with('/') => answers.prefix = Some(PathBuf::from(value)),
            "implementation" => answers.implementation = value.to_string(),
            "abiflags" => answers.abiflags = value.to_string(),
            "purelib" | "platlib" if value.starts_with('/') => {
                let folder = PathBuf::from(value);
                if !answers.site_packages.contains(&folder) {
                    answers.site_packages.push(folder);
                }
            }
            _ => {}
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::{ask, parse};
    use crate::Source;
    use std::path::{Path, PathBuf};

    #[test]
    fn answers() {
        let answers = parse(
            "version=3.13.0\nprefix=/opt/py\nimplementation=cpython\nabiflags=t\npurelib=/opt/py/s\nplatlib=/opt/py/s\nnoise\n",
        );
        assert_eq!(answers.version.as_deref(), Some("3.13.0"));
        assert_eq!(answers.prefix, Some(PathBuf::from("/opt/py")));
        assert_eq!(answers.abiflags, "t");
        assert_eq!(answers.site_packages, [PathBuf::from("/opt/py/s")]);
    }

    #[test]
    fn program_that_is_not_python_is_an_error() {
        let error = ask(&Source::live(), Path::new("true")).unwrap_err();
        assert_eq!(error, "true did not tell its paths");
    }
}
