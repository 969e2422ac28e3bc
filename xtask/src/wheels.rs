//! Downloads published packages for tests from the Python and npm registries into folders below the target folder.

use crate::steps::{is_available, output, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A pip that reads the metadata of a wheel without downloading the wheel.
const PIP: &str = "pip==25.3";

/// Wheels to unpack, 85 MB: compiled packages of three projects, and NVIDIA's cuobjdump, with which their GPU code is
/// compared.
const WHEELS: [&str; 4] = [
    "bitsandbytes==0.49.2",
    "xformers==0.0.28.post3",
    "torchvision==0.20.1",
    "nvidia-cuda-cuobjdump==13.5.37",
];

/// A wheel of 531 MB of which only the metadata is downloaded.
const METADATA: &str = "torch==2.11.0";

/// Selects wheels for one Python and x86-64 Linux, independent of the host.
const PLATFORM: [&str; 12] = [
    "--no-deps",
    "--only-binary=:all:",
    "--python-version=3.12",
    "--platform=manylinux1_x86_64",
    "--platform=manylinux2014_x86_64",
    "--platform=manylinux_2_17_x86_64",
    "--platform=manylinux_2_24_x86_64",
    "--platform=manylinux_2_28_x86_64",
    "--quiet",
    "--disable-pip-version-check",
    "--retries=2",
    "--timeout=20",
];

/// Downloads missing packages and returns the folder: `site` with the unpacked packages, `torch.json` with pip's report.
pub(crate) fn prepare(target: &Path) -> anyhow::Result<PathBuf> {
    let home = target.join("wheels");
    let stamp = home.join("complete");
    let wanted = [&WHEELS[..], &[METADATA, PIP]].concat().join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(home);
    }
    if !is_available("python3", "--version") {
        bail!("`python3` was not found\nhint: `apt-get install python3-venv`");
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(home.join("pip")))
        .context("hint: `apt-get install python3-venv`")?;
    let pip = |words: &[&str]| {
        let mut command = Command::new(home.join("pip/bin/python"));
        command.args(["-m", "pip"]).args(words);
        command
    };
    output(
        pip(&["install", "--quiet", "--disable-pip-version-check", PIP])
            .args(["--retries=1", "--timeout=10"]),
    )?;
    let site = home.join("site");
    output(pip(&["install", "--target"]).arg(&site).args(PLATFORM).args(WHEELS))?;
    let report = home.join("torch.json");
    output(
        pip(&["install", "--dry-run", "--use-feature=fast-deps", "--ignore-installed", "--target"])
            .arg(home.join("nothing"))
            .arg("--report")
            .arg(&report)
            .args(PLATFORM)
            .arg(METADATA),
    )?;
    fs::write(&stamp, wanted)?;
    Ok(home)
}

/// OpenAI's and Anthropic's Python clients.
const CLIENTS: &str = "openai==3.54.0 anthropic==2.14.0";

/// A Python with OpenAI's and Anthropic's clients, below the target folder.
pub(crate) fn client(target: &Path) -> anyhow::Result<PathBuf> {
    python_with(&target.join("openai-client"), CLIENTS)
}

/// Array libraries to test the Python package, with bfloat16; torch would have 900 MB.
const ARRAYS: &str = "numpy==2.2.6 ml_dtypes==0.5.4";

/// A Python with array libraries, below the target folder.
pub(crate) fn arrays(target: &Path) -> anyhow::Result<PathBuf> {
    python_with(&target.join("python-arrays"), ARRAYS)
}

/// Type checkers for the package; pyright needs Node.
const TYPES: &str = "mypy==2.4.1 pyright==1.1.414 numpy==2.2.6";

/// A Python with type checkers, below the target folder. `None` without Node.
pub(crate) fn types(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !is_available("node", "--version") {
        return Ok(None);
    }
    python_with(&target.join("python-types"), TYPES).map(Some)
}

/// Kubernetes' schemas, with a program that validates files.
const KUBERNETES: &str = "kubernetes-validate==1.37.0";

/// A program that validates files by Kubernetes' schemas, below the target folder.
pub(crate) fn kubernetes(target: &Path) -> anyhow::Result<PathBuf> {
    let python = python_with(&target.join("kubernetes-validate"), KUBERNETES)?;
    Ok(python.with_file_name("kubernetes-validate"))
}

/// The schemas of GitHub's workflows and actions and of CycloneDX, with programs that validate files.
const SCHEMAS: &str = "check-jsonschema==0.39.0 cyclonedx-python-lib[json-validation]==11.12.0";

/// A Python with these schemas, below the target folder.
pub(crate) fn schemas(target: &Path) -> anyhow::Result<PathBuf> {
    python_with(&target.join("schemas"), SCHEMAS)
}

/// A Python with packages, separated by spaces.
pub(crate) fn python_with(home: &Path, packages: &str) -> anyhow::Result<PathBuf> {
    let (stamp, python) = (home.join("complete"), home.join("bin/python"));
    if fs::read_to_string(&stamp).is_ok_and(|there| there == packages) {
        return Ok(python);
    }
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(home))
        .context("hint: `apt-get install python3-venv`")?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]);
    pip.args(["--timeout=10", "--only-binary=:all:"]).args(packages.split_whitespace());
    output(&mut pip)?;
    fs::write(&stamp, packages)?;
    Ok(python)
}

/// Clients on npm: OpenAI's and the AI SDK.
const NPM_CLIENTS: [&str; 5] = [
    "openai@6.49.0",
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
    "zod@4.6.7",
];

/// npm's error codes for an invalid list of packages. Other errors come from the registry or the network.
const OWN_FAULTS: [&str; 4] = ["ETARGET", "E404", "EINVALIDTAGNAME", "ERESOLVE"];

/// A folder with npm's clients, below the target folder. `None` without npm, Node 18 or a reachable registry.
pub(crate) fn npm_clients(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    npm_with(&target.join("npm-clients"), 18, &NPM_CLIENTS)
}

/// OpenAI's Codex, which has a binary for this processor.
const CODEX: [&str; 1] = ["@openai/codex@0.171.0"];

/// The program of Codex, below the target folder; `None` as for [`npm_clients`].
pub(crate) fn codex(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    let home = npm_with(&target.join("npm-codex"), 18, &CODEX)?;
    Ok(home.map(|home| home.join("node_modules/.bin/codex")))
}

/// Headless Chromium for x86-64 Linux, and the library that controls it.
const BROWSER: [&str; 2] = ["@sparticuz/chromium@153.0.0", "puppeteer-core@24.43.1"];

/// A folder with a browser, below the target folder; `None` without npm, Node 20 or a reachable registry.
pub(crate) fn browser(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    npm_with(&target.join("npm-browser"), 20, &BROWSER)
}

/// A folder with npm packages; `None` without npm, this major version of Node or a reachable registry.
fn npm_with(home: &Path, node: u32, packages: &[&str]) -> anyhow::Result<Option<PathBuf>> {
    let (stamp, wanted) = (home.join("complete"), packages.join(" "));
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(Some(home.to_owned()));
    }
    let version = |program: &str| output(Command::new(program).arg("--version")).ok();
    let major = |version: String| version.trim_start_matches('v').split('.').next()?.parse().ok();
    if version("npm").is_none()
        || version("node").and_then(major).is_none_or(|major: u32| major < node)
    {
        return Ok(None);
    }
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    fs::create_dir_all(home)?;
    fs::write(home.join("package.json"), "{\"private\": true}\n")?;
    let mut npm = Command::new("npm");
    npm.current_dir(home).args(["install", "--loglevel=error", "--no-audit", "--no-fund"]);
    match output(npm.args(["--fetch-retries=1", "--fetch-timeout=10000"]).args(packages)) {
        Err(error) if OWN_FAULTS.iter().any(|mark| format!("{error:#}").contains(mark)) => {
            return Err(error);
        }
        Err(_) => return Ok(None),
        Ok(_) => {}
    }
    fs::write(&stamp, wanted)?;
    Ok(Some(home.to_owned()))
}
