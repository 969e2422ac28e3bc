use super::{Context, Need, Rule, Text};
use crate::abi::build_for;
use crate::data::ptx_isa;
use crate::gpu::{self, Sm};
use crate::gpu_code::{Coverage, Target, architectures, counts};
use crate::host;
use crate::native::{Native, by_owner};
use crate::remedy::text;
use facts::{Confidence, Finding, Gpu, GpuImageKind, Machine, RemedyStep, Severity};
use knowledge::{cuda_drivers, dotted};

pub(super) const RULE: Rule = Rule {
    id: "ptx-newer-than-driver",
    title: "PTX that only a newer driver can compile",
    about: "\
A file without machine code for this GPU contains PTX instead, which the driver compiles at load time. Newer CUDA
releases emit newer PTX ISA versions (11.8: 7.8, 12.8: 8.7, 13.0: 9.0, 13.2: 9.2), and a driver supports those up to its
own CUDA release. Minor version compatibility does not cover PTX.

It shows, at the first kernel, as
  CUDA error: the provided PTX was compiled with an unsupported toolchain.

Detected by comparing the PTX version in the file's fatbin with the newest CUDA the driver supports, if the file has no
machine code for this GPU.

Update the driver, or install a build that has machine code for this GPU, or build it here for its architecture.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/31700",
    ],
    texts: &[
        Text::new("the provided PTX was compiled with an unsupported toolchain", "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain."),
    ],
    remedy: |seen| {
        let mut lines = host::update_driver(seen.machine(), 580);
        lines.push("# or build the package for the GPU here instead:".into());
        lines.extend(text(seen.fitting_extension()));
        lines
    },
    needs: &[Need::Compiled, Need::Gpu, Need::Driver],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let mut findings = Vec::new();
    for group in context.envs.iter().flat_map(|env| by_owner(env, counts)) {
        let gpus = gpu::capabilities(machine);
        findings.extend(gpus.iter().filter_map(|(gpu, sm)| judge(machine, &group, gpu, *sm)));
    }
    findings
}

fn judge(machine: &Machine, group: &[Native<'_>], gpu: &Gpu, sm: Sm) -> Option<Finding> {
    let target = Target::of(machine, sm);
    let newest = target.ptx_isa?;
    let limit = machine.driver.as_ref()?.cuda_limit.as_ref()?;
    let covered: Vec<(&Native<'_>, Coverage)> =
        group.iter().map(|native| (native, target.coverage(&native.elf.gpu_code))).collect();
    let all = covered.iter().fold(Coverage::default(), |sum, (_, coverage)| sum.add(*coverage));
    let (worst, _) =
        covered.iter().max_by_key(|(_, c)| c.too_new).filter(|(_, c)| c.too_new > 0)?;
    let images = worst.elf.gpu_code.iter().flat_map(|code| &code.images);
    let isa = images.filter(|i| i.kind == GpuImageKind::Ptx).filter_map(|i| i.ptx_isa).max()?;
    let severity = if all.runs() == 0 { Severity::Error } else { Severity::Warning };
    let what = format!("{} in {}", worst.label(), worst.env.root);
    let title = match severity {
        Severity::Error => format!(
            "{what} has only PTX {} for the {}, which this driver does not know",
            dotted(isa),
            gpu.name.value
        ),
        _ => format!(
            "{} of {} sets of kernels of {what} have only PTX {} for the {}, which this driver does not know",
            all.too_new,
            all.total(),
            dotted(isa),
            gpu.name.value
        ),
    };
    let mut draft = RULE
        .finding(severity, Confidence::Certain, title)
        .evidence(format!("it has {}", architectures(&worst.elf.gpu_code)), worst.file.path.clone())
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .evidence(
            format!("the driver goes up to CUDA {}", dotted(limit.value)),
            limit.source.clone(),
        )
        .evidence(
            format!("that CUDA compiles PTX up to {}", dotted(newest)),
            ptx_isa::SOURCE.to_string(),
        );
    let mut fix = Vec::new();
    if let Some(cuda) = ptx_isa::first_cuda(isa) {
        draft = draft.evidence(
            format!("PTX {} came with CUDA {}", dotted(isa), dotted(cuda)),
            ptx_isa::SOURCE.to_string(),
        );
        let driver = host::update_driver(machine, cuda_drivers::branch(cuda));
        fix.extend(driver.into_iter().map(RemedyStep::from));
        fix.push("# or without a driver update:".into());
    }
    fix.extend(build_for(worst, &dotted(sm)));
    let cause = "It has no machine code for this GPU, and a driver compiles PTX only up to the PTX version of the newest \
                 CUDA it supports; minor version compatibility does not cover PTX.";
    Some(draft.cause(cause).fix(fix).finish())
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines, with_code};
    use facts::{Confidence::*, PyEnv, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let vllm = |images: &[&[&str]]| -> Vec<PyEnv> {
            let start = env("/v").uv().torch("2.9.1+cu128", Some("12.8")).dist("vllm", "0.12.0");
            let add = |(index, env): (usize, crate::test_support::EnvBuilder), images: &&[&str]| {
                (
                    index + 1,
                    env.compiled("vllm", &format!("vllm/_C{index}x.so"), with_code(5, images)),
                )
            };
            vec![images.iter().fold((0, start), add).1.build()]
        };
        // An A10 with driver 570, which is CUDA 12.8 and PTX 8.7.
        vec![
            Case::new("only PTX of CUDA 12.9 (row 14)", machines::a10(), vllm(&[&["sm_90", "compute_80 8.8"]]))
                .finds(
                    Error,
                    Certain,
                    &[
                        "vllm 0.12.0 in /v has only PTX 8.8 for the NVIDIA A10, which this driver does not know",
                        "it has sm_90 compute_80 (PTX 8.8)",
                        "the driver goes up to CUDA 12.8 [NVML nvmlSystemGetCudaDriverVersion]",
                        "PTX 8.8 came with CUDA 12.9",
                        "ubuntu-drivers install --gpgpu nvidia:580-server",
                        "TORCH_CUDA_ARCH_LIST=8.6",
                    ],
                ),
            Case::new(
                "only a part of the kernels",
                machines::a10(),
                vllm(&[&["sm_80"], &["compute_80 9.0"]]),
            )
            .finds(Warning, Certain, &["5 of 10 sets of kernels of vllm", "nvidia:580-server"]),
            Case::new("PTX that the driver supports", machines::a10(), vllm(&[&["compute_80 8.7"]])),
            Case::new("machine code is preferred to PTX", machines::a10(), vllm(&[&["sm_86", "compute_80 9.0"]])),
            Case::new("PTX for newer GPUs", machines::a10(), vllm(&[&["sm_80", "compute_120 9.0"]])),
        ]
    }
}
