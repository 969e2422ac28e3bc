//! Imports modules and opens libraries, each in a separate process, with stubs of the driver's libraries that export every
//! function they need.

use super::build::EnvironmentFolder;
use crate::steps::output;
use anyhow::Context;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const IMPORTS: &str = include_str!("../../../crates/setup/src/fix/imports.py");
const LIBRARIES: &str = include_str!("libraries.py");

/// Timeout of one import in seconds, on a busy machine.
const SECONDS: u64 = 240;
/// Seconds after which no further import starts.
const TOTAL: u64 = 1200;

/// Imports every module of every package, or only these pairs of package and module.
pub(super) fn imports(
    place: &EnvironmentFolder,
    only: Option<&[(String, String)]>,
    stub: &Path,
) -> anyhow::Result<Vec<Value>> {
    let modules = only.map(|all| all.iter().map(|(_, module)| module).collect::<Vec<_>>());
    let asked = json!({
        "packages": only.map(|_| Vec::<String>::new()),
        "modules": modules.unwrap_or_default(),
        "seconds": SECONDS,
        "total": TOTAL,
        "bytes": 12_u64 << 30,
        "jobs": 2
    });
    if !place.venv.join("bin/python").exists() {
        let nothing = |(package, module): &(String, String)| json!({ "package": package, "module": module, "error": "its bin/python leads nowhere" });
        return Ok(only.unwrap_or_default().iter().map(nothing).collect());
    }
    let mut lines = ask(place, stub, IMPORTS, &[], &asked.to_string())?;
    lines.retain(|line| line.get("module").is_some());
    for line in &mut lines {
        let named = |(_, module): &&(String, String)| line["module"] == module.as_str();
        if let Some((package, _)) = only.and_then(|all| all.iter().find(named)) {
            line["package"] = json!(package);
        }
    }
    Ok(lines)
}

/// Opens every library.
pub(super) fn libraries(place: &EnvironmentFolder, stub: &Path) -> anyhow::Result<Vec<Value>> {
    ask(place, stub, LIBRARIES, &["120"], "")
}

fn ask(
    place: &EnvironmentFolder,
    stub: &Path,
    program: &str,
    words: &[&str],
    input: &str,
) -> anyhow::Result<Vec<Value>> {
    let variable = |name: &str| place.variables.iter().find(|(it, _)| *it == name).map(|it| &it.1);
    // Isolated mode, except that an edit may set PYTHONPATH.
    let alone: &[&str] = match variable("PYTHONPATH") {
        Some(_) => &["-P", "-s", "-B", "-c"],
        None => &["-I", "-B", "-c"],
    };
    let before =
        variable("LD_LIBRARY_PATH").map(|folders| format!("{folders}:")).unwrap_or_default();
    let mut child = Command::new(place.venv.join("bin/python"))
        .args(alone)
        .arg(program)
        .args(words)
        .env_remove("PYTHONPATH")
        .envs(place.variables.iter().map(|(name, value)| (name, value)))
        .env("LD_LIBRARY_PATH", format!("{before}{}", stub.display()))
        .env("CUDA_VISIBLE_DEVICES", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    child.stdin.take().context("its standard input")?.write_all(input.as_bytes())?;
    let text = String::from_utf8(child.wait_with_output()?.stdout)?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Compiles stubs of libcuda.so.1 and libnvidia-ml.so.1 that export the driver functions which an environment's libraries
/// import; every function returns 100 (`CUDA_ERROR_NO_DEVICE`). Returns their folder.
pub(super) fn libcuda(site: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut wanted: BTreeSet<String> =
        ["cuInit", "cuDriverGetVersion", "cuGetErrorString"].map(str::to_owned).into();
    let mut libraries = Vec::new();
    find(site, &mut libraries)?;
    for part in libraries.chunks(50) {
        // nm skips a damaged file with a message.
        let said = Command::new("nm")
            .args(["-D", "--undefined-only"])
            .args(part)
            .stderr(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let names = said.lines().filter_map(|line| line.split_whitespace().last());
        let of_driver = |name: &&str| {
            let rest = name.strip_prefix("cu").or(name.strip_prefix("nvml"));
            rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
        };
        wanted.extend(
            names.filter(of_driver).map(|name| name.split('@').next().unwrap_or(name).to_owned()),
        );
    }
    fs::create_dir_all(folder)?;
    let source = folder.join("libcuda.c");
    let functions: Vec<String> =
        wanted.iter().map(|name| format!("int {name}(void) {{ return 100; }}\n")).collect();
    fs::write(&source, functions.concat())?;
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-w", &format!("-Wl,-soname,{name}"), "-o"]);
        output(compile.arg(folder.join(name)).arg(&source))
            .context("hint: `apt-get install gcc`")?;
    }
    Ok(folder.to_owned())
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        let name = entry.file_name().to_string_lossy().into_owned();
        // NVIDIA's own libraries load the driver with dlopen, and nm takes seconds for each.
        if kind.is_dir() && name != "nvidia" {
            find(&path, found)?;
        } else if kind.is_file() && name.contains(".so") {
            found.push(path);
        }
    }
    Ok(())
}
