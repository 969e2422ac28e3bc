use super::{Context, Need, Observation, PastedError, Rule, Text};
use crate::host;
use crate::torch_build::installed;
use crate::torch_choice::reach;
use facts::{Confidence, CudaToolkit, Finding, Machine, PyEnv, Severity};
use knowledge::{Minor, dotted, minor_of};

pub(super) const RULE: Rule = Rule {
    id: "cuda-versions",
    title: "three CUDA versions that need not be equal: the driver's, the toolkit's, torch's",
    about: "\
Three different versions are called the CUDA version. The driver's (top right in nvidia-smi) is the newest CUDA it
supports. torch's (in torch/version.py) is the release it was built with; its wheels depend on their own CUDA libraries,
so no toolkit is needed to run it. The toolkit's (nvcc --version) matters only for building extensions.

torch runs when its major version is not above the driver's: driver 550 (12.4) runs a torch built with 12.1, and also
one built with 12.8. A newer minor version has one limit: PTX from the newer toolkit is refused with
  the provided PTX was compiled with an unsupported toolchain.

A build is refused when nvcc and torch differ in the major version:
  The detected CUDA version (12.3) mismatches the version that was used to compile PyTorch (11.8).

Point CUDA_HOME at a toolkit of torch's major version before building; otherwise no action is needed.",
    links: &[
        "https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
        "https://github.com/state-spaces/mamba/issues/772",
    ],
    also: &[],
    texts: &[Text::new("The detected CUDA version ({nvcc}) mismatches the version that was used to compile PyTorch ({torch})", "\
RuntimeError:
The detected CUDA version (12.3) mismatches the version that was used to compile
PyTorch (11.8). Please make sure to use the same CUDA versions.")],
    role: super::Role::Cause,
    remedy: |seen| match seen.word("torch").and_then(minor_of) {
        Some(cuda) => host::use_toolkit(seen.machine(), cuda),
        None => vec!["nvcc --version".into()],
    },
    needs: &[Need::Torch, Need::Driver],
    check: Some(check),
    check_gpus: None,
    check_fleet: None,
    observe: Some(observe),
    #[cfg(test)]
    cases: tests::cases,
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let driver = machine.driver.as_ref()?;
    let torch = installed(env)?;
    let cuda = torch.cuda?;
    let reach = reach(machine, driver)?;
    // `driver-too-old` reports a driver that cannot run this torch.
    if cuda.0 > reach.major {
        return None;
    }
    let toolkit = default_toolkit(machine);
    let toolkit_version = toolkit.and_then(|(_, version)| version);
    let refused = toolkit_version.filter(|version| version.0 != cuda.0);
    let limit = reach.limit.map_or(format!("{}.x", reach.major), dotted);
    let nvcc = toolkit_version.map_or("none".to_owned(), dotted);
    let versions =
        format!("driver CUDA {limit}, toolkit {nvcc}, torch CUDA {} in {}", dotted(cuda), env.root);
    let (severity, title) = match refused {
        Some(version) => (
            Severity::Warning,
            format!(
                "{versions}: torch runs, but building an extension with nvcc {} will be refused",
                dotted(version)
            ),
        ),
        None => (Severity::Info, format!("{versions}: fine together")),
    };
    let mut draft =
        RULE.finding(severity, Confidence::Certain, title).fact("driver", driver.version());
    if let Some(fact) = &driver.cuda_limit {
        draft = draft.evidence(
            format!("driver accepts CUDA up to {}", dotted(fact.value)),
            fact.source.clone(),
        );
    }
    if let Some((toolkit, Some(version))) = toolkit {
        let source =
            toolkit.version.as_ref().map_or(toolkit.root.clone(), |fact| fact.source.clone());
        draft = draft.evidence(
            format!(
                "toolkit {} in {}, found by {}",
                dotted(version),
                toolkit.root,
                toolkit.found_by
            ),
            source,
        );
    }
    let newer = reach.limit.is_some_and(|limit| cuda > limit);
    let runs = if newer {
        format!(
            "torch's CUDA {} is newer than the driver's {limit} but of the same major version, which runs; only PTX \
             of the newer release would be refused.",
            dotted(cuda)
        )
    } else {
        format!("The driver runs CUDA up to {limit}, so also torch's {}.", dotted(cuda))
    };
    let builds = match (refused, toolkit_version) {
        (Some(_), _) => {
            " torch's extension builder demands an nvcc of the major version torch was built with.".to_owned()
        }
        (None, Some(version)) if version != cuda => {
            " The toolkit differs from torch in the minor version only, which a build accepts with a warning."
                .to_owned()
        }
        (None, _) => String::new(),
    };
    let draft = draft
        .evidence(format!("torch was built with CUDA {}", dotted(cuda)), torch.torch.source.clone())
        .cause(format!("{runs}{builds}"));
    let fix = if refused.is_some() { host::use_toolkit(machine, cuda) } else { Vec::new() };
    Some(draft.fix(fix).finish())
}

/// Whether a build's default toolkit is of another major version than torch; `None` without a toolkit.
fn observe(seen: &PastedError) -> Option<Observation> {
    let cuda = installed(seen.env()?)?.cuda?;
    let (toolkit, version) = default_toolkit(seen.machine())?;
    let version = version?;
    let words = format!("a build takes nvcc {}, torch has CUDA {}", dotted(version), dotted(cuda));
    Some(Observation::new(version.0 != cuda.0, words, toolkit.root.clone()))
}

/// The toolkit torch's extension builder takes: CUDA_HOME's or CUDA_PATH's, else that of the nvcc on PATH, else
/// /usr/local/cuda. A versioned folder in /usr/local counts only if CUDA_HOME names it.
fn default_toolkit(machine: &Machine) -> Option<(&CudaToolkit, Option<Minor>)> {
    let rank = |toolkit: &CudaToolkit| match toolkit.found_by.as_str() {
        "CUDA_HOME" => Some(0),
        "CUDA_PATH" => Some(1),
        "PATH" => Some(2),
        _ => (toolkit.root == "/usr/local/cuda").then_some(3),
    };
    let ranked = machine.toolkits.iter().filter(|toolkit| toolkit.has_nvcc);
    let (_, toolkit) = ranked
        .filter_map(|toolkit| Some((rank(toolkit)?, toolkit)))
        .min_by_key(|(rank, _)| *rank)?;
    Some((toolkit, toolkit.version.as_ref().and_then(|fact| minor_of(&fact.value))))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = |version: &str, cuda: &str| vec![env("/v").torch(version, Some(cuda)).build()];
        let two_toolkits = machines::with_toolkit(
            machines::with_toolkit(machines::rtx4090(), "11.8", "PATH"),
            "12.4",
            "/usr/local",
        );
        vec![
            Case::new(
                "row R4-02: driver 12.4, torch 12.1",
                machines::rtx4090(),
                torch("2.3.1+cu121", "12.1"),
            )
            .finds(
                Info,
                Certain,
                &[
                    "driver CUDA 12.4, toolkit none, torch CUDA 12.1 in /v: fine together",
                    "driver 550.163.01 [/sys/module/nvidia/version]",
                    "so also torch's 12.1",
                ],
            ),
            Case::new(
                "newer within the major version",
                machines::rtx4090(),
                torch("2.9.1+cu128", "12.8"),
            )
            .finds(
                Info,
                Certain,
                &["fine together", "newer than the driver's 12.4", "PTX"],
            ),
            Case::new("the recorded H200", machines::h200(), torch("2.11.0+cu130", "13.0")).finds(
                Info,
                Certain,
                &["driver CUDA 13.0, toolkit 13.0, torch CUDA 13.0"],
            ),
            Case::new(
                "A10 with nvcc 12.4 and torch 12.8",
                machines::a10(),
                torch("2.9.1+cu128", "12.8"),
            )
            .finds(
                Info,
                Certain,
                &["toolkit 12.4 in /usr/local/cuda-12.4, found by PATH", "minor version only"],
            ),
            Case::new(
                "nvcc 12.8 with a CUDA 13 torch",
                machines::with_toolkit(machines::gb10(), "12.8", "/usr/local/cuda"),
                torch("2.11.0+cu130", "13.0"),
            )
            .finds(
                Warning,
                Certain,
                &[
                    "building an extension with nvcc 12.8 will be refused",
                    "sudo apt-get install --yes cuda-toolkit-13-0",
                    "export CUDA_HOME=/usr/local/cuda-13.0",
                ],
            ),
            Case::new(
                "the fitting toolkit is here but not first",
                two_toolkits,
                torch("2.5.1+cu124", "12.4"),
            )
            .finds(Warning, Certain, &["toolkit 11.8", "export CUDA_HOME=/usr/local/cuda-12.4"])
            .without(&["apt-get"]),
            Case::new(
                "a toolkit nothing points at",
                machines::with_toolkit(machines::gb10(), "12.8", "/usr/local"),
                torch("2.11.0+cu130", "13.0"),
            )
            .finds(Info, Certain, &["toolkit none"]),
            Case::new(
                "a driver too old for torch",
                machines::rtx4090(),
                torch("2.11.0+cu130", "13.0"),
            ),
            Case::new("no driver", machines::x86(), torch("2.5.1+cu124", "12.4")),
            Case::new(
                "no CUDA torch",
                machines::a10(),
                vec![env("/v").torch("2.9.0+cpu", None).build()],
            ),
        ]
    }
}
