use super::{Context, Need, Rule, Text};
use crate::abi::build_for;
use crate::gpu::{self, Sm};
use crate::gpu_code::{Coverage, Target, architectures, counts, is_split_by_generation};
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, text};
use crate::torch_build::{by_conda, installed};
use crate::torch_choice::choose_without;
use facts::{Confidence, Finding, Gpu, Machine, RemedyStep, Severity};
use knowledge::dotted;

pub(super) const RULE: Rule = Rule {
    id: "no-kernel-image",
    title: "a package without code for this GPU",
    about: "\
A compiled extension contains its GPU code as images: machine code (SASS) for single architectures, and sometimes PTX,
which the driver compiles. SASS also runs on later GPUs of the same major compute capability; with an `a` suffix only on
exactly its architecture, with an `f` suffix in its family. A package built without this GPU's architecture (FFPA omits
Hopper unless ENABLE_FFPA_HOPPER=1 is set) imports without an error and fails at its first kernel.

It shows as
  CUDA error: no kernel image is available for execution on the device
and, if only PTX fits, as a first call that takes minutes.

Detected by comparing every image in the package's files with each GPU.

Build the package here for the GPU's architecture, or install a build that has it.",
    links: &["https://github.com/pytorch/pytorch/issues/167244"],
    texts: &[Text::new("CUDA error: no kernel image is available for execution on the device", "\
torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call")],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Compiled, Need::Gpu],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let mut findings = Vec::new();
    for group in context.envs.iter().flat_map(|env| by_owner(env, counts)) {
        // torch is left to `gpu-too-new`, `gpu-too-old` and `jetson-server-wheel`, which choose another build.
        if group[0].is_torch() {
            continue;
        }
        let gpus = gpu::capabilities(machine);
        findings.extend(gpus.iter().filter_map(|(gpu, sm)| judge(machine, &group, gpu, *sm)));
    }
    findings
}

fn judge(machine: &Machine, group: &[Native<'_>], gpu: &Gpu, sm: Sm) -> Option<Finding> {
    let target = Target::of(machine, sm);
    let covered: Vec<(&Native<'_>, Coverage)> =
        group.iter().map(|native| (native, target.coverage(&native.elf.gpu_code))).collect();
    let all = covered.iter().fold(Coverage::default(), |sum, (_, coverage)| sum.add(*coverage));
    let what = format!("{} in {}", group[0].label(), group[0].env.root);
    let on = format!("{} (sm_{}{})", gpu.name.value, sm.0, sm.1);
    let blind: Vec<&Native<'_>> =
        covered.iter().filter(|(_, c)| c.runs() == 0 && c.too_new == 0).map(|(n, _)| *n).collect();
    let (severity, title, shown, cause) = if all.runs() == 0
        && all.too_new == 0
        && is_split_by_generation(&group[0])
    {
        let title = format!("{what} has special kernels for other GPUs than the {on}");
        let cause = "Each of its files is for other GPU generations: the package loads the file for this GPU, if there is \
                     one, and otherwise works without it.";
        (Severity::Info, title, blind, cause.to_owned())
    } else if all.runs() == 0 && all.too_new == 0 {
        let title = format!("{what} has no code for the {on}");
        let cause = format!(
            "None of its {} sets of kernels has an image that runs on {}: {}.",
            all.total(),
            dotted(sm),
            rule_words(&target)
        );
        // A library that may never be loaded is only a warning.
        let opened = group.iter().any(|native| !native.file.name().starts_with("lib"));
        (if opened { Severity::Error } else { Severity::Warning }, title, blind, cause)
    } else if !blind.is_empty() && covered.len() > blind.len() {
        let title =
            format!("{} of the compiled files of {what} have no code for the {on}", blind.len());
        let cause = "The package's other files do. Such files are often for other GPUs and never loaded here; if one is \
                     loaded, its first kernel fails.";
        (Severity::Info, title, blind, cause.to_owned())
    } else if all.native == 0 && all.compiled > 0 {
        let title = format!("{what} has only PTX for the {on}");
        let shown = group.iter().collect();
        let cause = "The driver compiles PTX at the first use of the file and caches the result: the first call is slow, \
                     and features of this architecture are not used.";
        (Severity::Info, title, shown, cause.to_owned())
    } else {
        return None;
    };
    let mut draft = RULE.finding(severity, Confidence::Certain, title);
    for native in shown.iter().take(4) {
        draft = draft.evidence(
            format!("it has {}", architectures(&native.elf.gpu_code)),
            native.file.path.clone(),
        );
    }
    draft = draft.evidence(gpu::describe(gpu), gpu.name.source.clone());
    let list = dotted(sm);
    let fix = match severity {
        Severity::Info => Vec::new(),
        _ => match torch_family(machine, &group[0]) {
            Some(lines) => lines,
            None => build_for(&group[0], &list),
        },
    };
    Some(draft.cause(cause).fix(fix).finish())
}

/// Commands that replace torchvision or torchaudio without code for this GPU, together with torch, by builds for another CUDA
/// release, since the same wheel has the same code. `None` for other packages.
fn torch_family(machine: &Machine, native: &Native<'_>) -> Option<Vec<RemedyStep>> {
    let dist = native.owner()?;
    let name = native.owner_name()?;
    if !matches!(name.as_str(), "torchvision" | "torchaudio") || by_conda(dist) {
        return None;
    }
    let torch = installed(native.env)?;
    let label = dist.version.split_once('+').map(|(_, label)| label);
    let label = label.or(torch.version.local.as_deref());
    let choice = choose_without(machine, native.env, Some(&torch.version), label);
    Some(match choice {
        Some(choice) => {
            let what = format!(
                "# {name} is published for each CUDA release of torch, without sources: the build for CUDA {}:",
                dotted(choice.cuda)
            );
            let replace = Installer::of(native.env).replace_torch(&choice);
            std::iter::once(what.into()).chain(replace).collect()
        }
        None => vec![
            format!("# no published build of {name} has code for this GPU; without it:").into(),
            Installer::of(native.env).uninstall(&[&name]),
        ],
    })
}

fn rule_words(target: &Target) -> &'static str {
    match target.tegra {
        true => "on a Jetson, machine code runs only on exactly its architecture",
        false => {
            "machine code also runs on later GPUs of the same major version, but on no others, and no PTX fits"
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines, with_code};
    use facts::{Confidence::*, PyEnv, Severity::*};

    fn ffpa(files: &[(&str, &[&str])]) -> Vec<PyEnv> {
        let start = env("/v").uv().torch("2.6.0+cu126", Some("12.6")).dist("ffpa-attn", "0.0.2.1");
        let add = |env: crate::test_support::EnvBuilder, (file, images): &(&str, &[&str])| {
            env.compiled("ffpa-attn", file, with_code(12, images))
        };
        vec![files.iter().fold(start, add).build()]
    }

    pub(super) fn cases() -> Vec<Case> {
        let thor = || machines::jetson_thor();
        vec![
            Case::new(
                "FFPA without Hopper on a GH200 (row R3-02)",
                machines::gh200(),
                ffpa(&[("pyffpa.so", &["sm_80", "sm_89"])]),
            )
            .finds(
                Error,
                Certain,
                &[
                    "ffpa-attn 0.0.2.1 in /v has no code for the NVIDIA GH200 480GB (sm_90)",
                    "it has sm_80 sm_89 [/v/lib/python3.12/site-packages/pyffpa.so]",
                    "None of its 12 sets",
                    "TORCH_CUDA_ARCH_LIST=9.0",
                    "ENABLE_FFPA_HOPPER=1",
                    "--no-binary ffpa-attn ffpa-attn==0.0.2.1",
                ],
            ),
            Case::new(
                "with Hopper",
                machines::gh200(),
                ffpa(&[("pyffpa.so", &["sm_80", "sm_90"])]),
            ),
            Case::new("with Hopper's own", machines::gh200(), ffpa(&[("pyffpa.so", &["sm_90a"])])),
            Case::new("an A10 runs 8.0", machines::a10(), ffpa(&[("pyffpa.so", &["sm_80"])])),
            Case::new(
                "PTX is compiled",
                machines::gh200(),
                ffpa(&[("pyffpa.so", &["sm_80", "compute_80 8.5"])]),
            )
            .finds(Info, Certain, &["has only PTX for the NVIDIA GH200", "the first call is slow"]),
            Case::new(
                "one file of two is for other GPUs",
                machines::a10(),
                ffpa(&[("a.so", &["sm_80"]), ("b.so", &["sm_90a"])]),
            )
            .finds(Info, Certain, &["1 of the compiled files of ffpa-attn", "b.so"]),
            Case::new(
                "Orin does not run code for 8.0",
                machines::jetson_orin(),
                ffpa(&[("a.so", &["sm_80"])]),
            )
            .finds(
                Error,
                Certain,
                &["on a Jetson, machine code runs only on exactly its architecture"],
            ),
            Case::new("Thor with its own", thor(), ffpa(&[("a.so", &["sm_110"])])),
            Case::new("GB10 runs 12.0", machines::gb10(), ffpa(&[("a.so", &["sm_120"])])),
            Case::new("GB10 is no sm_120a", machines::gb10(), ffpa(&[("a.so", &["sm_120a"])]))
                .finds(Error, Certain, &["sm_121"]),
            Case::new(
                "builds for several CUDA releases",
                machines::gh200(),
                vec![
                    env("/v")
                        .dist("bitsandbytes", "0.50.2")
                        .compiled("bitsandbytes", "b/libbnb_cuda118.so", with_code(6, &["sm_80"]))
                        .compiled("bitsandbytes", "b/libbnb_cuda128.so", with_code(6, &["sm_90"]))
                        .build(),
                ],
            ),
            Case::new("S08: torchvision has no sources, and the same wheel the same code", {
                machines::x86_with("Tesla V100-SXM2-32GB", (7, 0), "570.148.08", (12, 8))
            }, {
                let env = env("/v").uv().torch("2.9.1+cu128", Some("12.8")).dist("torchvision", "0.24.1+cu128");
                vec![env.compiled("torchvision", "torchvision/_C.so", with_code(9, &["sm_75", "sm_80"])).build()]
            })
            .finds(
                Error,
                Certain,
                &["torch==2.9.1 'torchvision==0.24.*' --index-url https://download.pytorch.org/whl/cu126"],
            )
            .without(&["--reinstall", "whl/cu128"]),
            Case::new(
                "special kernels for newer generations (torchao)",
                machines::a10(),
                ffpa(&[("_C_cutlass_90a.so", &["sm_90a"]), ("_C_mxfp8.so", &["sm_100a", "sm_120a"])]),
            )
            .finds(Info, Certain, &["special kernels for other GPUs", "_C_cutlass_90a.so"]),
            Case::new("no GPU", machines::x86(), ffpa(&[("a.so", &["sm_80"])])),
        ]
    }
}
