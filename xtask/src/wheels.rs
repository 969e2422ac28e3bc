//! Published wheels that the doctor is tried on, from the Python registry, in a folder below the target folder.

use crate::steps::{is_available, output, run};
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// pip as it is needed here: it reads metadata of a wheel without the wheel.
const PIP: &str = "pip==25.3";

/// What is unpacked, 85 MB to download together: compiled packages of three projects, and NVIDIA's own reader of GPU
/// code, which their images are compared with.
const WHEELS: [&str; 4] = [
    "bitsandbytes==0.49.2",
    "xformers==0.0.28.post3",
    "torchvision==0.20.1",
    "nvidia-cuda-cuobjdump==13.5.37",
];

/// Of this one only the metadata is read: the wheel has 531 MB.
const METADATA: &str = "torch==2.11.0";

/// The wheels' own tags name one Python and one processor, whatever runs here.
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

/// Gets what is not there yet and returns the folder: `site` with the unpacked packages, `torch.json` with pip's report.
/// `None` when the registry cannot be reached from here.
pub(crate) fn prepare(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    let home = target.join("wheels");
    let stamp = home.join("complete");
    let wanted = [&WHEELS[..], &[METADATA, PIP]].concat().join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(Some(home));
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
    // This first and smallest download tells whether there is a registry; from here on its absence is a failure.
    let first = output(
        pip(&["install", "--quiet", "--disable-pip-version-check", PIP])
            .args(["--retries=1", "--timeout=10"]),
    );
    if let Err(error) = first {
        if reachable(&format!("{error:#}")) {
            return Err(error);
        }
        return Ok(None);
    }
    let site = home.join("site");
    run(pip(&["install", "--target"]).arg(&site).args(PLATFORM).args(WHEELS))?;
    let report = home.join("torch.json");
    run(pip(&[
        "install",
        "--dry-run",
        "--use-feature=fast-deps",
        "--ignore-installed",
        "--target",
    ])
    .arg(home.join("nothing"))
    .arg("--report")
    .arg(&report)
    .args(PLATFORM)
    .arg(METADATA))?;
    fs::write(&stamp, wanted)?;
    Ok(Some(home))
}

/// OpenAI's and Anthropic's clients, as users have them.
const CLIENTS: &str = "openai==3.54.0 anthropic==2.14.0";

/// A Python that has OpenAI's and Anthropic's clients, below the target folder. `None` when the registry cannot be reached from here.
pub(crate) fn client(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    python_with(&target.join("openai-client"), CLIENTS)
}

/// The arrays that the package of ops is tried on, with bfloat16; torch has 900 MB.
const ARRAYS: &str = "numpy==2.2.6 ml_dtypes==0.5.4";

/// A Python that has arrays, below the target folder. `None` when the registry cannot be reached from here.
pub(crate) fn arrays(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    python_with(&target.join("python-arrays"), ARRAYS)
}

/// Type checkers for the package; pyright brings its program and runs by Node.
const TYPES: &str = "mypy==2.4.1 pyright==1.1.414 numpy==2.2.6";

/// A Python with type checkers, below the target folder. `None` when the registry cannot be reached from here, or there is no Node.
pub(crate) fn types(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !is_available("node", "--version") {
        return Ok(None);
    }
    python_with(&target.join("python-types"), TYPES)
}

/// The schemas that Kubernetes publishes, with a program that holds files against them.
const KUBERNETES: &str = "kubernetes-validate==1.37.0";

/// A program that holds files against Kubernetes' schemas, below the target folder. `None` when the registry cannot be reached from here.
pub(crate) fn kubernetes(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    let python = python_with(&target.join("kubernetes-validate"), KUBERNETES)?;
    Ok(python.map(|python| python.with_file_name("kubernetes-validate")))
}

/// The schemas of GitHub's workflows and actions, and those of CycloneDX, each with a program that validates files by them.
const SCHEMAS: &str = "check-jsonschema==0.39.0 cyclonedx-python-lib[json-validation]==11.12.0";

/// A Python with them, below the target folder. `None` when the registry cannot be reached from here.
pub(crate) fn schemas(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    python_with(&target.join("schemas"), SCHEMAS)
}

/// A Python with packages, which spaces separate, or `None` as above.
pub(crate) fn python_with(home: &Path, packages: &str) -> anyhow::Result<Option<PathBuf>> {
    let (stamp, python) = (home.join("complete"), home.join("bin/python"));
    if fs::read_to_string(&stamp).is_ok_and(|there| there == packages) {
        return Ok(Some(python));
    }
    if home.exists() {
        fs::remove_dir_all(home)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(home))
        .context("hint: `apt-get install python3-venv`")?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries=1"]);
    pip.args(["--timeout=10", "--only-binary=:all:"]).args(packages.split_whitespace());
    match output(&mut pip) {
        Err(error) if reachable(&format!("{error:#}")) => return Err(error),
        Err(_) => return Ok(None),
        Ok(_) => {}
    }
    fs::write(&stamp, packages)?;
    Ok(Some(python))
}

/// Clients of npm, as users have them: OpenAI's and the AI SDK.
const NPM_CLIENTS: [&str; 5] = [
    "openai@6.49.0",
    "ai@6.0.326",
    "@ai-sdk/openai@3.0.141",
    "@ai-sdk/openai-compatible@2.0.92",
    "zod@4.6.7",
];

/// npm's words for what is wrong with the list above. Anything else is the registry's or the network's.
const OWN_FAULTS: [&str; 4] = ["ETARGET", "E404", "EINVALIDTAGNAME", "ERESOLVE"];

/// A folder with the clients of npm, below the target folder. `None` where there is no npm, or its registry cannot be reached from
/// here.
pub(crate) fn npm_clients(target: &Path) -> anyhow::Result<Option<PathBuf>> {
    let home = target.join("npm-clients");
    let (stamp, wanted) = (home.join("complete"), NPM_CLIENTS.join(" "));
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        return Ok(Some(home));
    }
    let version = |program: &str| output(Command::new(program).arg("--version")).ok();
    let major = |version: String| version.trim_start_matches('v').split('.').next()?.parse().ok();
    if version("npm").is_none()
        || version("node").and_then(major).is_none_or(|major: u32| major < 18)
    {
        return Ok(None);
    }
    if home.exists() {
        fs::remove_dir_all(&home)?;
    }
    fs::create_dir_all(&home)?;
    fs::write(home.join("package.json"), "{\"private\": true}\n")?;
    let mut npm = Command::new("npm");
    npm.current_dir(&home).args(["install", "--loglevel=error", "--no-audit", "--no-fund"]);
    match output(npm.args(["--fetch-retries=1", "--fetch-timeout=10000"]).args(NPM_CLIENTS)) {
        Err(error) if OWN_FAULTS.iter().any(|mark| format!("{error:#}").contains(mark)) => {
            return Err(error);
        }
        Err(_) => return Ok(None),
        Ok(_) => {}
    }
    fs::write(&stamp, wanted)?;
    Ok(Some(home))
}

/// Whether pip's words tell of anything but a network that is not there.
pub(crate) fn reachable(words: &str) -> bool {
    const ABSENT: [&str; 5] = [
        "Failed to establish a new connection",
        "Temporary failure in name resolution",
        "Name or service not known",
        "Network is unreachable",
        "ConnectTimeoutError",
    ];
    !ABSENT.iter().any(|mark| words.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::reachable;

    #[test]
    fn only_an_absent_network_is_forgiven() {
        assert!(!reachable(
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...: Failed to establish a \
             new connection: [Errno -3] Temporary failure in name resolution)': /simple/pip/"
        ));
        assert!(reachable(
            "ERROR: Could not find a version that satisfies the requirement pip==25.3"
        ));
        assert!(reachable("403 Client Error: Forbidden"));
        assert!(reachable(""));
    }
}
