use super::{Rule, Text};
use crate::host;

pub(super) const RULE: Rule = Rule {
    id: "incomplete-python",
    title: "this Python was built without a part of the standard library",
    about: "\
Standard library modules that need a system library (_lzma, _bz2, _ctypes, _sqlite3, _ssl) are left out if its headers
are missing while Python is compiled, as pyenv and asdf do. The build still succeeds, with only a warning in its log;
much later a package imports the module.

It shows as
  ModuleNotFoundError: No module named '_lzma'
and no package on PyPI has it.

Install the headers and build this Python again, or use a prebuilt one (uv's, the distribution's), and recreate the
environment from it.",
    links: &["https://github.com/pyenv/pyenv/wiki#suggested-build-environment"],
    texts: &[
        Text::new("No module named '_lzma'", "ModuleNotFoundError: No module named '_lzma'"),
        Text::new("No module named '_bz2'", "ModuleNotFoundError: No module named '_bz2'"),
        Text::new("No module named '_ctypes'", "ModuleNotFoundError: No module named '_ctypes'"),
        Text::new("No module named '_sqlite3'", "ModuleNotFoundError: No module named '_sqlite3'"),
        Text::new("No module named '_ssl'", "ModuleNotFoundError: No module named '_ssl'"),
    ],
    remedy: |seen| {
        vec![
            host::install_package(
                seen.machine(),
                "liblzma-dev libbz2-dev libffi-dev libsqlite3-dev libssl-dev zlib1g-dev",
                "xz-devel bzip2-devel libffi-devel sqlite-devel openssl-devel zlib-devel",
            ),
            "# then build it again, or install a prebuilt one:".into(),
            "pyenv install --force $(pyenv version-name)".into(),
            "uv python install".into(),
        ]
    },
    ..Rule::BLANK
};
