use super::{Rule, Text};
use crate::host;

pub(super) const RULE: Rule = Rule {
    id: "incomplete-python",
    title: "this Python was built without a part of its own library",
    about: "\
Modules of Python's own library that need a system's library (_lzma, _bz2, _ctypes, _sqlite3, _ssl) are left out where
its headers were not there while Python was compiled, as pyenv and asdf do it. The build ends well and says so in a
line that nobody reads; years later a package imports the module.

It shows as
  ModuleNotFoundError: No module named '_lzma'
and no package of PyPI brings it.

Install the headers and build this Python again, or take one that is built already (uv's, the distribution's), and
make the environment anew from it.",
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
            "# then build it again, or take one that is built already:".into(),
            "pyenv install --force $(pyenv version-name)".into(),
            "uv python install".into(),
        ]
    },
    ..Rule::BLANK
};
