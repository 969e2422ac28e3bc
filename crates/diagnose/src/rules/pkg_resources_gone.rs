use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "pkg-resources-gone",
    title: "a package asks setuptools for pkg_resources, which it no longer has",
    about: "\
pkg_resources was a part of setuptools that packages used to read versions and files. setuptools announced its end for
years; newer releases do not have it, nor some of the names that lay in it, and a virtual environment of Python 3.12
or later has no setuptools at all until something installs it.

It shows as one of
  ModuleNotFoundError: No module named 'pkg_resources'
  ImportError: cannot import name 'packaging' from 'pkg_resources'
when a package is imported, or when its setup.py runs.

Install a setuptools that has it, or a newer release of the package that asks. A build in isolation takes the newest
setuptools whatever is installed: constrain it there.",
    links: &["https://setuptools.pypa.io/en/latest/pkg_resources.html"],
    texts: &[
        Text::new("No module named 'pkg_resources'", "ModuleNotFoundError: No module named 'pkg_resources'"),
        Text::new("cannot import name 'packaging' from 'pkg_resources'", "ImportError: cannot import name 'packaging' from 'pkg_resources' (/home/user/.venv/lib/python3.10/site-packages/pkg_resources/__init__.py)"),
    ],
    remedy: |seen| {
        let old = if seen.text.contains("'packaging'") { "setuptools<70" } else { "setuptools<81" };
        vec![
            seen.installer().install(&[old.to_owned()], None).into(),
            "# where a build in isolation says so:".into(),
            format!("echo '{old}' > constraints.txt && export PIP_BUILD_CONSTRAINT=constraints.txt UV_BUILD_CONSTRAINT=constraints.txt"),
        ]
    },
    ..Rule::BLANK
};
