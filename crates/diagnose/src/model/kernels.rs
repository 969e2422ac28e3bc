//! The kernels that each kind of layer needs, and the state of their packages in each environment.

use crate::extension::{build_here, wheel_label};
use crate::gpu;
use crate::remedy::{Installer, quote};
use crate::torch_build::live_dist;
use facts::{Finding, KernelNeed, KernelStatus, LayerGroup, Machine, PyEnv, RemedyStep, Severity};
use knowledge::kernels::{KernelPackage, of_layer};

/// The needs of every kind of layer in each environment; without an environment, the needs alone.
pub(super) fn needs(
    layers: &[LayerGroup],
    without_kernels: Option<&'static str>,
    machine: &Machine,
    envs: &[PyEnv],
    findings: &[Finding],
) -> Vec<KernelNeed> {
    let mut needs = Vec::new();
    let places: Vec<Option<&PyEnv>> = match relevant(envs)[..] {
        [] => vec![None],
        ref envs => envs.iter().copied().map(Some).collect(),
    };
    for env in places {
        for LayerGroup { kind, .. } in layers {
            for wanted in of_layer(kind) {
                let (status, reason) = judge(wanted, env, machine, findings);
                let otherwise = match without_kernels {
                    Some(without_kernels) if !wanted.optional => without_kernels,
                    _ => wanted.otherwise.as_str(),
                };
                needs.push(KernelNeed {
                    layer: kind.clone(),
                    package: wanted.package.clone(),
                    functions: wanted.functions.clone(),
                    env: env.map(|env| env.root.clone()),
                    status,
                    reason,
                    otherwise: otherwise.to_owned(),
                });
            }
        }
    }
    needs
}

/// Environments that could run a model: the one that the user named and those with torch or transformers; else the
/// first.
fn relevant(envs: &[PyEnv]) -> Vec<&PyEnv> {
    let could = |env: &&PyEnv| {
        env.found_by == "--venv" || env.torch.is_some() || live_dist(env, "transformers").is_some()
    };
    let found: Vec<&PyEnv> = envs.iter().filter(could).collect();
    if found.is_empty() { envs.iter().take(1).collect() } else { found }
}

fn judge(
    wanted: &KernelPackage,
    env: Option<&PyEnv>,
    machine: &Machine,
    findings: &[Finding],
) -> (KernelStatus, String) {
    let Some(env) = env else {
        return (
            KernelStatus::Unusable,
            "no Python environment was read; `firstlight doctor --model MODEL --venv DIR` reads one".into(),
        );
    };
    let dist =
        std::iter::once(&wanted.package).chain(&wanted.also).find_map(|name| live_dist(env, name));
    let Some(dist) = dist else {
        return match wanted.optional {
            true => (KernelStatus::Optional, format!("{} is not installed", wanted.package)),
            false => (KernelStatus::Missing, format!("{} is not installed", wanted.package)),
        };
    };
    let installed = format!("{} {} is installed", dist.name, dist.version);
    if let Some(file) = wanted.compiled.as_deref() {
        let there = env.native_files.iter().any(|native| {
            native.path.rsplit('/').next().is_some_and(|name| name.starts_with(file))
        });
        if !there {
            return (
                KernelStatus::Broken,
                format!("{installed} without its compiled file {file}*.so"),
            );
        }
    }
    // An error that names the package and this environment means that the package does not load here.
    let named = |finding: &&Finding| {
        let words = finding.title.replace('_', "-");
        finding.severity == Severity::Error
            && words.contains(wanted.package.as_str())
            && finding.title.contains(env.root.as_str())
    };
    if let Some(finding) = findings.iter().find(named) {
        return (
            KernelStatus::Broken,
            format!("{installed}, but {} [{}]", finding.title, finding.rule),
        );
    }
    let cuda = env.torch.as_ref().is_some_and(|torch| torch.cuda.is_some());
    if gpu::nvidia(machine).next().is_none() {
        return (
            KernelStatus::Unusable,
            format!("{installed}, but there is no NVIDIA GPU here to run it"),
        );
    }
    if !cuda {
        return (
            KernelStatus::Unusable,
            format!("{installed}, but torch in {} is not a CUDA build", env.root),
        );
    }
    (KernelStatus::Ready, installed)
}

/// The reason why none of these packages can run here, with steps that show where they would; `None` if they can.
pub(super) fn why_not_here(
    machine: &Machine,
    env: &PyEnv,
    config: &str,
) -> Option<(String, Vec<String>)> {
    let config = quote(config);
    let best = gpu::capabilities(machine).into_iter().map(|(_, sm)| sm).max();
    if gpu::nvidia(machine).next().is_none() || best.is_some_and(|sm| sm < OLDEST) {
        let why = match best {
            None => "they run on NVIDIA GPUs, and there is none here".to_owned(),
            Some((major, minor)) => format!(
                "they run on GPUs of compute capability {}.{} or newer, and the newest here has {major}.{minor}",
                OLDEST.0, OLDEST.1
            ),
        };
        let plan = format!("firstlight plan --for {config} --machine h100");
        return Some((
            why,
            vec!["# what they need on a machine that can run them, here an H100:".to_owned(), plan],
        ));
    }
    // Their builds need a CUDA build of torch, and Triton's kernels need a device.
    let torch = env.torch.as_ref()?;
    torch.cuda.is_none().then(|| {
        let why = format!("torch {} in {} is not a CUDA build", torch.version, env.root);
        (
            why,
            vec![
                "# a stack for this machine, torch included:".to_owned(),
                format!("firstlight plan --for {config}"),
            ],
        )
    })
}

/// The oldest compute capability that Triton compiles for, and therefore also mamba-ssm and flash-linear-attention.
const OLDEST: (u32, u32) = (7, 0);

/// Steps that install the missing packages, dependencies first.
pub(super) fn commands(
    machine: &Machine,
    env: &PyEnv,
    wrong: &[&KernelNeed],
    config: &str,
) -> Vec<RemedyStep> {
    let wants = |package: &str| wrong.iter().any(|need| need.package == package);
    let mut lines: Vec<RemedyStep> = ["causal-conv1d", "mamba-ssm"]
        .into_iter()
        .filter(|package| wants(package))
        .map(|package| build_here(machine, env, package))
        .collect();
    if let Some(label) = wheel_label(machine, env).filter(|_| !lines.is_empty()) {
        lines.insert(
            0,
            format!("# a published wheel fits only when its name has {label}; else build here:")
                .into(),
        );
    }
    let stand_in = wrong.iter().find_map(|need| Installer::of(env).stand_in(&need.package));
    if machine.toolkits.is_empty() && !lines.is_empty() {
        lines.insert(0, format!("firstlight plan --for {}", quote(config)).into());
        lines.insert(
            0,
            "# no CUDA toolkit is here to build with; this looks for wheels that fit:".into(),
        );
    }
    lines.splice(0..0, stand_in.map(RemedyStep::from));
    if wants("flash-linear-attention") {
        lines.push(Installer::of(env).install(&["flash-linear-attention".to_owned()], None));
    }
    lines
}
