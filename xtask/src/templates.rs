//! Downloads transformers and published chat templates from the Python registry into a folder below the target folder.

use crate::steps::{is_available, output, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The renderer of templates, which does not need torch.
const PACKAGES: [&str; 2] = ["transformers==5.23.0", "jinja2==3.1.6"];

/// An sdist with llama.cpp's sources, which have the templates of some seventy models: 77 MB.
const TEMPLATES: &str = "llama-cpp-python==0.3.36";

/// Extracts the templates from the archive in the folder.
const UNPACK: &str = "
import pathlib, sys, tarfile
home = pathlib.Path(sys.argv[1])
[archive] = home.glob('*.tar.gz')
(home / 'templates').mkdir()
with tarfile.open(archive) as source:
    for member in source:
        path = pathlib.PurePosixPath(member.name)
        if path.parent.match('models/templates') and path.suffix == '.jinja':
            (home / 'templates' / path.name).write_bytes(source.extractfile(member).read())
archive.unlink()
";

/// Downloads missing packages and returns the folder: `venv` with transformers, `templates` with the templates.
pub(crate) fn prepare(target: &Path) -> anyhow::Result<PathBuf> {
    let home = target.join("templates");
    let stamp = home.join("complete");
    let wanted = [&PACKAGES[..], &[TEMPLATES]].concat().join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(home);
    }
    if !is_available("python3", "--version") {
        bail!("`python3` was not found\nhint: `apt-get install python3-venv`");
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(home.join("venv")))
        .context("hint: `apt-get install python3-venv`")?;
    let python = || Command::new(home.join("venv/bin/python"));
    let pip = |words: &[&str]| {
        let mut command = python();
        command.args(["-m", "pip"]).args(words).args(["--quiet", "--disable-pip-version-check"]);
        command
    };
    output(pip(&["install", "--retries=1", "--timeout=10"]).args(PACKAGES))?;
    let source = ["download", "--no-deps", "--no-binary", "llama-cpp-python", TEMPLATES];
    output(pip(&source).arg("--dest").arg(&home))?;
    run(python().args(["-c", UNPACK]).arg(&home))?;
    fs::write(&stamp, wanted)?;
    Ok(home)
}
