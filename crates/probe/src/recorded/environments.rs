//! The Python environments of the recorded machines.

use super::report;
use crate::Report;
use facts::PyEnv;

/// A summary of an environment.
fn env_line(env: &PyEnv) -> String {
    let version = env.interpreter.version.as_ref().map_or("?", |fact| fact.value.as_str());
    let tag = env.interpreter.abi_tag.as_ref().map_or("?", |fact| fact.value.as_str());
    let manager = env.manager.as_ref().map(|fact| fact.value);
    format!(
        "{} {:?} by {}: {version} {tag} {manager:?} {:?}",
        env.root, env.kind, env.found_by, env.problems
    )
}

#[test]
fn environments_of_recorded_machines() {
    let check = |name: &str, expect: &str| {
        let envs: Vec<String> = report(name).envs.iter().map(env_line).collect();
        assert_eq!(envs, [expect], "{name}");
    };
    check("h200", "/opt/torch/.venv Venv by python on PATH: 3.12.3 cp312 Some(Uv) []");
    check("gh200", "/home/ubuntu/kimi/.venv Venv by VIRTUAL_ENV: 3.10.12 cp310 Some(Pip) []");
    check(
        "a10",
        "/home/ubuntu/miniconda3/envs/granite Conda by CONDA_PREFIX: 3.11.9 cp311 Some(Conda) []",
    );
    check("rtx4090", "/workspace/nsa/.venv Venv by VIRTUAL_ENV: 3.11.10 cp311 Some(Pip) []");
    check("jetson-orin", "/usr System by python on PATH: 3.10.12 cp310 Some(Pip) []");
    check(
        "m4-max",
        "/opt/homebrew/Cellar/python@3.12/3.12.11/Frameworks/Python.framework/Versions/3.12 System by python on PATH: 3.12.11 cp312 Some(Pip) []",
    );
}

/// Row R0-03's evidence.
#[test]
fn gh200_reports_a_cpu_torch() {
    let env = report("gh200").envs.remove(0);
    let torch = env.torch.as_ref().unwrap();
    assert_eq!((torch.version.as_str(), torch.cuda.as_deref()), ("2.9.0+cpu", None));
    assert_eq!(env.dist("torch").unwrap().tags, ["cp310-cp310-manylinux_2_28_aarch64"]);
}

/// Row R2-07: conda's torch next to pip's extensions, each with its installer.
#[test]
fn a10_reports_mixed_conda_and_pip() {
    let env = report("a10").envs.remove(0);
    let installers: Vec<_> = env
        .dists
        .iter()
        .map(|dist| (dist.name.as_str(), dist.installer.as_deref().unwrap_or("?")))
        .collect();
    assert_eq!(
        installers,
        [
            ("causal-conv1d", "pip"),
            ("flash-attn", "pip"),
            ("mamba-ssm", "pip"),
            ("numpy", "conda"),
            ("torch", "conda"),
            ("triton", "conda"),
        ]
    );
    let native = env.native_files.iter().find(|file| file.path.contains("selective_scan")).unwrap();
    assert_eq!(native.dist.as_deref(), Some("mamba-ssm"));
}

/// Rows R4-02 and R4-03: the driver's limit, the toolkit and torch's CUDA are separate, and all five lines exist.
#[test]
fn rtx4090_five_lines() {
    let Report { machine, envs } = report("rtx4090");
    assert_eq!(machine.driver.unwrap().cuda_limit.unwrap().value, (12, 4));
    assert_eq!(machine.toolkits, []);
    let env = &envs[0];
    let torch = env.torch.as_ref().unwrap();
    let version = |name: &str| env.dist(name).map(|dist| dist.version.as_str());
    let lines = [
        env.interpreter.version.as_ref().map(|fact| fact.value.as_str()),
        Some(torch.version.as_str()),
        torch.cuda.as_deref(),
        version("triton"),
        version("flash_attn"),
    ];
    assert_eq!(lines, [Some("3.11.10"), Some("2.3.1+cu121"), Some("12.1"), Some("2.3.1"), None]);
}

/// Debian's two package folders, one of them without any RECORD.
#[test]
fn jetson_has_packages_of_pip_and_of_the_system() {
    let env = report("jetson-orin").envs.remove(0);
    assert_eq!(
        env.site_packages,
        ["/usr/local/lib/python3.10/dist-packages", "/usr/lib/python3/dist-packages"]
    );
    let dists: Vec<_> =
        env.dists.iter().map(|dist| format!("{} {}", dist.name, dist.version)).collect();
    assert_eq!(dists, ["python-apt 2.4.0+ubuntu4", "torch 2.5.0a0+872d972e41.nv24.08"]);
    let stray = env.native_files.iter().find(|file| file.path.contains("apt_pkg")).unwrap();
    assert_eq!(stray.dist, None);
    assert_eq!(env.interpreter.version.unwrap().source, "/usr/include/python3.10/patchlevel.h");
}
