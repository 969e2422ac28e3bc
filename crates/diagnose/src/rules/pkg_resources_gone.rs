use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "pkg-resources-gone",
    title: "a package needs pkg_resources, which newer setuptools releases do not have",
    about: "\
pkg_resources was a part of setuptools that packages used to read versions and files. It was deprecated for years; newer
setuptools releases do not have it, or lack some of its names, and a virtual environment of Python 3.12 or later has no
setuptools until a package installs it.

It shows as one of
  ModuleNotFoundError: No module named 'pkg_resources'
  ImportError: cannot import name 'packaging' from 'pkg_resources'
when a package is imported, or when its setup.py runs.

Install a setuptools that has it, or a newer release of the package that imports it. An isolated build uses the newest
setuptools, not the installed one: give it a build constraint.",
    links: &["https://setuptools.pypa.io/en/latest/pkg_resources.html"],
    texts: &[
        Text::new("No module named 'pkg_resources'", "ModuleNotFoundError: No module named 'pkg_resources'"),
        Text::new("cannot import name 'packaging' from 'pkg_resources'", "ImportError: cannot import name 'packaging' from 'pkg_resources' (/home/user/.venv/lib/python3.10/site-packages/pkg_resources/__init__.py)"),
    ],
    remedy: |seen| {
        let old = if seen.text.contains("'packaging'") { "setuptools<70" } else { "setuptools<81" };
        vec![
            seen.installer().install(&[old.to_owned()], None).into(),
            "# if an isolated build prints the error:".into(),
            format!("echo '{old}' > constraints.txt && export PIP_BUILD_CONSTRAINT=constraints.txt UV_BUILD_CONSTRAINT=constraints.txt"),
        ]
    },
    ..Rule::BLANK
};
