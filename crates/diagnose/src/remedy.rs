use crate::extension::{elsewhere, has_source, is_compiled_here};
use crate::pasted_error::PastedError;
use crate::requirement;
use crate::torch_build::{by_conda, installed, live_dist};
use crate::torch_choice::{Choice, choose};
pub(crate) use facts::quote;
use facts::{Dist, EnvKind, EnvManager, Install, PackageTarget, PackageTool, PyEnv, RemedyStep};
use knowledge::Minor;
use knowledge::torch_series;

/// The packages that must be builds for the same torch.
const FAMILY: [&str; 3] = ["torch", "torchvision", "torchaudio"];

/// The package manager commands for one environment: uv, pip or conda.
pub(crate) struct Installer<'a> {
    env: Option<&'a PyEnv>,
    uv: bool,
}

impl<'a> Installer<'a> {
    /// Selects uv or pip by the recorded manager of the environment; without one, uv if uv installed torch, else pip.
    pub(crate) fn of(env: &'a PyEnv) -> Self {
        let by_uv =
            live_dist(env, "torch").and_then(|dist| dist.installer.as_deref()) == Some("uv");
        let uv = match &env.manager {
            Some(manager) => manager.value == EnvManager::Uv,
            None => by_uv,
        };
        Self { env: Some(env), uv }
    }

    /// For an unknown environment: the `python` on PATH.
    pub(crate) fn on_path() -> Self {
        Self { env: None, uv: false }
    }

    /// Whether the commands use uv.
    pub(crate) fn uv(&self) -> bool {
        self.uv
    }

    /// The environment's interpreter, quoted for a shell.
    pub(crate) fn python(&self) -> String {
        self.env.map_or("python".to_owned(), |env| quote(&python_path(env)))
    }

    /// The path of a program that a package of the environment installs. It is next to the interpreter, which need not
    /// be on PATH.
    pub(crate) fn program(&self, name: &str) -> String {
        let next_to_python = |env| {
            let python = python_path(env);
            python.rsplit_once('/').map(|(folder, _)| quote(&format!("{folder}/{name}")))
        };
        self.env.and_then(next_to_python).unwrap_or_else(|| name.to_owned())
    }

    /// Installs from the default index, or from PyTorch's index of a CUDA release.
    pub(crate) fn install(&self, specs: &[String], cuda: Option<Minor>) -> RemedyStep {
        let specs = specs.iter().map(|spec| self.pinned(spec)).collect();
        self.step(Install { specs, index: cuda.map(index_url), ..Install::default() })
    }

    /// Installs from an index.
    pub(crate) fn install_from(&self, specs: &[String], index: &str) -> RemedyStep {
        let index = Some(index.to_owned());
        self.step(Install { specs: specs.to_vec(), index, ..Install::default() })
    }

    /// Builds packages from source against the installed torch, never from a prebuilt wheel. If one of them has no
    /// source distribution, the wheels of the same versions are installed again, since the installed files may be
    /// others. A package that PyPI does not have is built from its repository.
    pub(crate) fn build(&self, specs: &[&str]) -> RemedyStep {
        if let [spec] = specs
            && let Some(command) =
                elsewhere(&Dist::normalise(requirement_name(spec)), &self.python())
        {
            return RemedyStep::Command { command };
        }
        if !specs.iter().all(|spec| has_source(requirement_name(spec))) {
            return self.reinstall(specs);
        }
        self.step(Install {
            specs: specs.iter().map(|spec| (*spec).to_owned()).collect(),
            // By package: a global switch would build the dependencies from source as well.
            from_source: specs.iter().map(|spec| requirement_name(spec).to_owned()).collect(),
            reinstall: true,
            no_deps: true,
            ..Install::default()
        })
    }

    /// A remark before the build of a package: firstlight's wheel replaces its functions without a compiler. It ends in
    /// a colon, as remarks about the next command do. `None` for packages that the wheel does not replace.
    pub(crate) fn stand_in(&self, package: &str) -> Option<String> {
        const STAND_INS: [&str; 4] =
            ["flash-attn", "causal-conv1d", "mamba-ssm", "flash-linear-attention"];
        let package = Dist::normalise(requirement_name(package));
        let there = self.env.is_some_and(|env| live_dist(env, "firstlight").is_some());
        let first = if there { "" } else { ", once firstlight's wheel is installed next to torch" };
        STAND_INS.contains(&package.as_str()).then(|| {
            format!(
                "# without a compiler, `{} -m firstlight run SCRIPT.py` has firstlight's kernels for NVIDIA GPUs stand in for \
                 {package}'s{first}; else:",
                self.python()
            )
        })
    }

    /// Installs packages built for this Python and processor: wheels of the same version, or a build from source if
    /// PyPI has no wheel.
    pub(crate) fn build_for_this_python(&self, names: &[&str]) -> Vec<RemedyStep> {
        let (here, wheels): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| is_compiled_here(name));
        let mut lines = Vec::new();
        if !wheels.is_empty() {
            lines.push(self.reinstall(&wheels));
        }
        if !here.is_empty() {
            lines.push(self.build(&here));
        }
        lines
    }

    /// Reinstalls packages in their installed versions, without their dependencies.
    pub(crate) fn reinstall(&self, specs: &[&str]) -> RemedyStep {
        let version = |spec: &str| {
            let dist = self.env.and_then(|env| live_dist(env, spec))?;
            Some(format!("{spec}=={}", dist.version.split('+').next()?))
        };
        let specs = specs.iter().map(|spec| version(spec).unwrap_or((*spec).to_owned())).collect();
        self.step(Install { specs, ..Install::default() }).reinstalled().without_deps()
    }

    /// Removes packages.
    pub(crate) fn uninstall(&self, names: &[&str]) -> RemedyStep {
        let packages = names.iter().map(|name| (*name).to_owned()).collect();
        RemedyStep::Uninstall { target: self.target(), packages }
    }

    /// Checks whether the requirements of all packages are met.
    pub(crate) fn check(&self) -> RemedyStep {
        RemedyStep::Inspect { command: self.target().command("check") }
    }

    /// Adds to a bare name the exact version that an installed package requires. Without it an installer may select any
    /// release that it can install, however old.
    fn pinned(&self, spec: &str) -> String {
        let name = Dist::normalise(spec);
        let plain = requirement_name(spec) == spec;
        let asked = self.env.iter().filter(|_| plain).flat_map(|env| &env.dists);
        let pin = asked
            .flat_map(|dist| dist.requires.iter().filter_map(|line| requirement::parse(line)))
            .filter(|wanted| wanted.name == name && !wanted.marker.contains("extra"))
            .map(|wanted| wanted.constraint())
            .find(|constraint| constraint.starts_with("==") && !constraint.contains(','));
        format!("{spec}{}", pin.unwrap_or_default())
    }

    fn step(&self, install: Install) -> RemedyStep {
        RemedyStep::Install { target: self.target(), install }
    }

    fn target(&self) -> PackageTarget {
        PackageTarget {
            python: self.env.map_or("python".to_owned(), python_path),
            tool: if self.uv { PackageTool::Uv } else { PackageTool::Pip },
        }
    }

    /// Installs into the environment with conda.
    pub(crate) fn conda(&self, specs: &[String]) -> RemedyStep {
        let prefix = self.env.map(|env| env.root.clone());
        RemedyStep::Conda { prefix, specs: specs.to_vec(), reinstall: false }
    }

    /// Replaces torch, and torchvision and torchaudio if they are installed, by a chosen build.
    pub(crate) fn replace_torch(&self, choice: &Choice) -> Vec<RemedyStep> {
        let has = |name: &str| self.env.and_then(|env| live_dist(env, name));
        let conda = self.env.is_some_and(|env| env.kind == EnvKind::Conda);
        if conda && has("torch").is_some_and(by_conda) {
            let version = choice.constraint.trim_start_matches("==");
            return vec![self.conda(&[
                format!("pytorch-gpu={version}"),
                format!("cuda-version={}", choice.cuda.0),
            ])];
        }
        let present: Vec<&str> =
            FAMILY.into_iter().filter(|name| *name == "torch" || has(name).is_some()).collect();
        let specs: Vec<String> =
            present.iter().map(|name| format!("{name}{}", companion(name, choice))).collect();
        vec![self.uninstall(&present), self.install(&specs, Some(choice.cuda))]
    }
}

/// Steps that install the published torch nearest to the installed one that fits the GPU, the driver and the Python
/// here. If none is known, they show torch's CUDA and the GPU.
pub(crate) fn another_torch(seen: &PastedError) -> Vec<String> {
    let known = !crate::gpu::capabilities(seen.machine()).is_empty();
    let choice = seen.env().filter(|_| known).and_then(|env| {
        let version = installed(env).map(|torch| torch.version);
        choose(seen.machine(), env, version.as_ref())
    });
    match choice {
        Some(choice) => text(seen.installer().replace_torch(&choice)),
        None => vec![
            "# what torch was built for, and what the GPU is:".into(),
            format!(
                "{} -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'",
                seen.installer().python()
            ),
            "nvidia-smi --query-gpu=name,compute_cap --format=csv".into(),
        ],
    }
}

fn companion(name: &str, choice: &Choice) -> String {
    let row = torch_series::series(choice.torch);
    match (name, row) {
        ("torchvision", Some(row)) => row.torchvision.constraint(),
        ("torchaudio", Some(row)) => row.torchaudio.constraint(),
        ("torch", _) => choice.constraint.clone(),
        _ => String::new(),
    }
}

/// The interpreter's recorded path, else the environment's `bin/python`.
pub(crate) fn python_path(env: &PyEnv) -> String {
    match &env.interpreter.executable {
        Some(path) => path.clone(),
        None => format!("{}/bin/python", env.root.trim_end_matches('/')),
    }
}

/// The package name of a requirement: `causal-conv1d` of `causal-conv1d>=1.4`.
fn requirement_name(spec: &str) -> &str {
    let end = spec.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
    &spec[..end.unwrap_or(spec.len())]
}

/// PyTorch's package index of a CUDA release.
pub(crate) fn index_url(cuda: Minor) -> String {
    format!("https://download.pytorch.org/whl/cu{}{}", cuda.0, cuda.1)
}

/// Steps as text.
pub(crate) fn text(steps: Vec<RemedyStep>) -> Vec<String> {
    steps.into_iter().map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::env;

    fn choice() -> Choice {
        Choice { torch: (2, 9), constraint: "==2.9.0".into(), cuda: (12, 8) }
    }

    #[test]
    fn commands_fit_the_manager() {
        let uv =
            env("/p/.venv").uv().torch("2.9.0+cpu", None).dist("torchvision", "0.24.0").build();
        assert_eq!(
            text(Installer::of(&uv).replace_torch(&choice())),
            [
                "uv pip uninstall --python /p/.venv/bin/python torch torchvision",
                "uv pip install --python /p/.venv/bin/python torch==2.9.0 'torchvision==0.24.*' --index-url https://download.pytorch.org/whl/cu128",
            ]
        );
        let pip = env("/home/a b/v").torch("2.9.0+cpu", None).build();
        assert_eq!(
            text(Installer::of(&pip).replace_torch(&choice())),
            [
                "'/home/a b/v/bin/python' -m pip uninstall --yes torch",
                "'/home/a b/v/bin/python' -m pip install torch==2.9.0 --index-url https://download.pytorch.org/whl/cu128",
            ]
        );
        let conda = env("/opt/c").conda().torch("2.9.0", None).installer("torch", "conda").build();
        assert_eq!(
            text(Installer::of(&conda).replace_torch(&choice())),
            ["conda install --prefix /opt/c -c conda-forge pytorch-gpu=2.9.0 cuda-version=12"]
        );
        // A torch that pip installed into a conda environment is replaced by pip.
        let mixed = env("/opt/c").conda().torch("2.9.0", None).installer("torch", "pip").build();
        assert!(
            text(Installer::of(&mixed).replace_torch(&choice()))[0]
                .starts_with("/opt/c/bin/python -m pip")
        );
    }
}
