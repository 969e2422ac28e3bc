use super::{Context, Need, Rule, Text};
use crate::gpu::{self, Sm};
use crate::remedy::quote;
use crate::torch_build::live_dist;
use facts::{Confidence, Finding, Machine, Ptxas, PyEnv, Severity};
use knowledge::{Minor, Version, dotted, minor_of};

pub(super) const RULE: Rule = Rule {
    id: "triton-ptxas-too-old",
    title: "Triton's bundled ptxas does not support this GPU",
    about: "\
Triton compiles its kernels with the ptxas bundled in its wheel, whatever CUDA toolkit is installed. On a GPU that this
ptxas does not support, every Triton kernel and torch.compile fail: sm_110 (Thor) needs CUDA 13.0 or later, sm_103
(B300) and sm_121 (GB10, DGX Spark) 12.9, sm_100 and sm_120 12.8. Triton 3.5 bundles 12.8, 3.6 bundles 12.9 for
Blackwell, 3.7 bundles 13.1. The ptxas of CUDA 13 does not support GPUs before Turing (7.5).

It shows as
  ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'

Detected by comparing the GPU with the architectures listed inside the ptxas binary, else with the CUDA release of ptxas
or the Triton version.

Point Triton to the ptxas of a toolkit that supports the GPU: TRITON_PTXAS_PATH, and TRITON_PTXAS_BLACKWELL_PATH if
Triton has a second ptxas for Blackwell; or upgrade torch and Triton together.",
    links: &[
        "https://github.com/triton-lang/triton/issues/8539",
        "https://github.com/triton-lang/triton/issues/10331",
        "https://github.com/triton-inference-server/server/issues/8632",
    ],
    texts: &[
        Text::new("fatal : Value 'sm_{sm}' is not defined for option 'gpu-name'", "`ptxas` stderr:
ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'

Repro command: ptxas -lineinfo -v --gpu-name=sm_121a /tmp/tmpkw7ug6t8.ptx"),
        Text::new("PTXASError: PTXAS error: Internal Triton PTX codegen error", "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error
`ptxas` stderr:
ptxas-blackwell fatal   : Value 'sm_110a' is not defined for option 'gpu-name'"),
    ],
    remedy: |seen| commands(seen.machine()),
    needs: &[Need::Gpu, Need::Package("triton")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The CUDA release of the ptxas that the wheel of each Triton series uses for Blackwell: the only ptxas up to 3.5, a second
/// one from 3.6 on. Source: triton-lang/triton#10331 (3.5 to 3.7, measured on the wheels) and
/// cmake/nvidia-toolchain-version.json of the release branches (before 3.5), read 2026-11-21.
const BUNDLED: &[(Minor, Minor)] = &[
    ((3, 2), (12, 4)),
    ((3, 3), (12, 8)),
    ((3, 4), (12, 8)),
    ((3, 5), (12, 8)),
    ((3, 6), (12, 9)),
    ((3, 7), (13, 1)),
];

/// The first CUDA release whose ptxas compiles for a GPU with the `a` suffix, which Triton requests.
/// Source: the PTX version of each target in LLVM's NVPTX.td (8.7 is CUDA 12.8, 8.8 is 12.9, 9.0 is 13.0), 2026-11-21.
fn first_release(sm: Sm) -> Option<Minor> {
    match sm {
        (10, 0) | (12, 0) => Some((12, 8)),
        (10, 3) | (12, 1) => Some((12, 9)),
        (11, _) => Some((13, 0)),
        _ => None,
    }
}

/// The first CUDA release whose ptxas dropped a GPU. Source: the release notes of CUDA 13.0, 2026-11-29.
fn dropped_in(sm: Sm) -> Option<Minor> {
    (sm < (7, 5)).then_some((13, 0))
}

/// The ptxas that Triton uses for a GPU.
struct Bundled<'a> {
    release: Minor,
    /// The architectures that it lists; empty if only its release is known.
    targets: &'a [String],
    what: String,
    source: String,
    confidence: Confidence,
}

impl Bundled<'_> {
    /// Whether it compiles for a GPU. Triton requests the `a` suffix from Hopper on.
    fn knows(&self, sm: Sm) -> bool {
        if self.targets.is_empty() {
            return first_release(sm).is_none_or(|first| first <= self.release)
                && dropped_in(sm).is_none_or(|last| self.release < last);
        }
        let suffix = if sm.0 >= 9 { "a" } else { "" };
        self.targets.contains(&format!("{}{}{suffix}", sm.0, sm.1))
    }
}

/// The release and architectures read from the ptxas binary, or else the release of Triton's version in [`BUNDLED`].
fn bundled<'a>(env: &'a PyEnv, version: &str, sm: Sm) -> Option<Bundled<'a>> {
    let is_blackwell = |ptxas: &&Ptxas| ptxas.source.ends_with("-blackwell");
    // If Triton has a second ptxas, it uses that one from sm_100 on.
    let second = env.ptxas.iter().find(is_blackwell).filter(|_| sm.0 >= 10);
    if let Some(ptxas) = second.or_else(|| env.ptxas.iter().find(|ptxas| !is_blackwell(ptxas))) {
        let what = match ptxas.targets.as_slice() {
            [] => format!("it names itself the ptxas of CUDA {}", ptxas.release),
            targets => format!(
                "it names itself the ptxas of CUDA {}, and lists sm_{}",
                ptxas.release,
                targets.join(", sm_")
            ),
        };
        return Some(Bundled {
            release: minor_of(&ptxas.release)?,
            targets: &ptxas.targets,
            what,
            source: ptxas.source.clone(),
            confidence: Confidence::Certain,
        });
    }
    let triton = Version::parse(version)?.minor();
    let (_, release) = BUNDLED.iter().find(|(series, _)| *series == triton)?;
    Some(Bundled {
        release: *release,
        targets: &[],
        what: format!("triton {} brings the ptxas of CUDA {}", dotted(triton), dotted(*release)),
        source: "triton-lang/triton#10331, read 2026-11-21".into(),
        confidence: Confidence::Likely,
    })
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context.machine, env)).collect()
}

fn judge(machine: &Machine, env: &PyEnv) -> Option<Finding> {
    let dist = live_dist(env, "triton")?;
    let capabilities = gpu::capabilities(machine);
    let (gpu, sm, bundled) = capabilities.iter().find_map(|(gpu, sm)| {
        let bundled = bundled(env, &dist.version, *sm)?;
        (!bundled.knows(*sm)).then_some((gpu, sm, bundled))
    })?;
    let cause = match (first_release(*sm), dropped_in(*sm)) {
        (Some(first), _) => {
            format!("ptxas compiles for {} from CUDA {} on.", dotted(*sm), dotted(first))
        }
        (_, Some(last)) => {
            format!(
                "ptxas compiles for {} up to the releases before CUDA {}.",
                dotted(*sm),
                dotted(last)
            )
        }
        _ => format!("This ptxas does not compile for {}.", dotted(*sm)),
    };
    let finding = RULE
        .finding(
            Severity::Error,
            bundled.confidence,
            format!(
                "the ptxas of triton {} in {} (CUDA {}) does not know the {} ({})",
                dist.version,
                env.root,
                dotted(bundled.release),
                gpu.name.value,
                dotted(*sm)
            ),
        )
        .evidence(format!("triton {}", dist.version), dist.path.clone())
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .evidence(bundled.what, bundled.source)
        .cause(cause)
        .fix(commands(machine))
        .finish();
    Some(finding)
}

/// Commands that select the ptxas of the newest installed toolkit that supports the GPUs, or install one.
fn commands(machine: &Machine) -> Vec<String> {
    let capabilities = gpu::capabilities(machine);
    let first = capabilities.iter().filter_map(|(_, sm)| first_release(*sm)).max();
    let last = capabilities.iter().filter_map(|(_, sm)| dropped_in(*sm)).min();
    // The last CUDA 12 release supports every GPU that CUDA 13 dropped.
    let wanted = first.unwrap_or(if last.is_some() { (12, 9) } else { (13, 0) });
    let version = |toolkit: &facts::CudaToolkit| minor_of(&toolkit.version.as_ref()?.value);
    let knows = |release: Minor| {
        first.is_none_or(|first| first <= release) && last.is_none_or(|last| release < last)
    };
    let here = machine
        .toolkits
        .iter()
        .filter(|toolkit| toolkit.has_nvcc && version(toolkit).is_some_and(knows))
        .max_by_key(|toolkit| version(toolkit));
    let (mut lines, root) = match here {
        Some(toolkit) => (Vec::new(), toolkit.root.clone()),
        None => (
            vec![
                "# from NVIDIA's package repository:".to_owned(),
                format!("sudo apt-get install --yes cuda-nvcc-{}-{}", wanted.0, wanted.1),
            ],
            format!("/usr/local/cuda-{}", dotted(wanted)),
        ),
    };
    let ptxas = quote(&format!("{root}/bin/ptxas"));
    lines.push(format!("export TRITON_PTXAS_PATH={ptxas} TRITON_PTXAS_BLACKWELL_PATH={ptxas}"));
    lines
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let triton =
            |version: &str| -> Vec<PyEnv> { vec![env("/v").dist("triton", version).build()] };
        vec![
            Case::new("GB10 with triton 3.5", machines::gb10(), triton("3.5.0")).finds(
                Error,
                Likely,
                &[
                    "ptxas of triton 3.5.0 in /v (CUDA 12.8) does not know the NVIDIA GB10 (12.1)",
                    "from CUDA 12.9 on",
                    "cuda-nvcc-12-9",
                    "export TRITON_PTXAS_PATH=/usr/local/cuda-12.9/bin/ptxas",
                ],
            ),
            Case::new(
                "an installed toolkit supports the GPU",
                machines::with_toolkit(machines::gb10(), "13.0", "/usr/local/cuda"),
                triton("3.5.0"),
            )
            .finds(Error, Likely, &["TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"])
            .without(&["apt-get"]),
            Case::new("Thor with triton 3.6", machines::jetson_thor(), triton("3.6.0")).finds(
                Error,
                Likely,
                &["(CUDA 12.9) does not know the NVIDIA Thor (11.0)"],
            ),
            Case::new(
                "the binary's release overrides the version",
                machines::gb10(),
                vec![env("/v").dist("triton", "3.8.0").ptxas("ptxas", "12.8", &[]).build()],
            )
            .finds(
                Error,
                Certain,
                &[
                    "it names itself the ptxas of CUDA 12.8",
                    "/v/lib/python3.12/site-packages/triton/backends/nvidia/bin/ptxas",
                ],
            ),
            Case::new(
                "the second one is for Blackwell",
                machines::gb10(),
                vec![
                    env("/v")
                        .dist("triton", "3.5.0")
                        .ptxas("ptxas", "12.8", &[])
                        .ptxas("ptxas-blackwell", "12.9", &[])
                        .build(),
                ],
            ),
            Case::new(
                "the binary's list overrides its release",
                machines::gb10(),
                vec![
                    env("/v")
                        .dist("triton", "3.9.0")
                        .ptxas("ptxas-blackwell", "13.9", &["100", "100a", "120", "120a"])
                        .build(),
                ],
            )
            .finds(
                Error,
                Certain,
                &["lists sm_100, sm_100a, sm_120, sm_120a", "CUDA 13.9"],
            ),
            Case::new(
                "its list has the GPU that its release lacks",
                machines::gb10(),
                vec![
                    env("/v")
                        .dist("triton", "3.5.0")
                        .ptxas("ptxas", "12.8", &["121", "121a"])
                        .build(),
                ],
            ),
            Case::new(
                "a V100 that CUDA 13 dropped",
                machines::x86_with("Tesla V100-SXM2-16GB", (7, 0), "580.95.05", (13, 0)),
                vec![
                    env("/v").dist("triton", "3.9.0").ptxas("ptxas", "13.2", &["75", "80"]).build(),
                ],
            )
            .finds(
                Error,
                Certain,
                &["up to the releases before CUDA 13.0", "cuda-nvcc-12-9"],
            ),
            Case::new("GB10 with triton 3.6", machines::gb10(), triton("3.6.0")),
            Case::new("an unknown, newer Triton", machines::gb10(), triton("3.8.0")),
            Case::new("H200", machines::h200(), triton("3.1.0")),
            Case::new("no Triton", machines::gb10(), vec![env("/v").build()]),
        ]
    }
}
