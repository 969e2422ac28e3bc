use super::{Context, Need, Rule, Text};
use crate::remedy::Installer;
use crate::torch_build::installed;
use crate::torch_choice::{choose, reach};
use crate::{gpu, host};
use facts::{Confidence, Finding, MachineKind, PyEnv, Severity};
use knowledge::cuda_drivers;
use knowledge::dotted;

pub(super) const RULE: Rule = Rule {
    id: "driver-too-old",
    title: "the NVIDIA driver is too old for the CUDA that torch was built with",
    about: "\
A driver runs every CUDA release of its own major version and of older ones, but none of a newer major version: CUDA 13
needs driver 580, CUDA 12 driver 525.60.13, CUDA 11 driver 450.80.02. A `pip install torch` today brings CUDA 13.
Within a major version the minor numbers may differ: driver 550 (CUDA 12.4) runs a torch built with 12.8.

It shows as
  The NVIDIA driver on your system is too old (found version 12020).
where 12020 stands for CUDA 12.2, and as torch.cuda.is_available() being False.

Seen by comparing the driver's CUDA limit with `cuda` in torch/version.py.

Install the same torch from an index of a CUDA release the driver runs, or update the driver. NVIDIA's forward
compatibility libraries can help on data-centre GPUs; on GeForce they end in error 804.",
    links: &["https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"],
    texts: &[
        Text {
            pattern: "The NVIDIA driver on your system is too old (found version {found})",
            sample: "\
RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by
downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx",
        },
        Text {
            pattern: "CUDA driver version is insufficient for CUDA runtime version",
            sample: "CUDA error 35: CUDA driver version is insufficient for CUDA runtime version",
        },
        Text {
            pattern: "requirement error: unsatisfied condition: cuda>=",
            sample: "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container: unknown",
        },
    ],
    remedy: |seen| {
        let choice = seen.env().and_then(|env| choose(seen.machine(), env, None));
        match choice {
            Some(choice) => seen.installer().replace_torch(&choice),
            None => host::update_driver(seen.machine(), 580),
        }
    },
    needs: &[Need::Torch, Need::Driver],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(|env| judge(context, env)).collect()
}

fn judge(context: &Context, env: &PyEnv) -> Option<Finding> {
    let machine = context.machine;
    let driver = machine.driver.as_ref()?;
    let torch = installed(env)?;
    let cuda = torch.cuda?;
    let reach = reach(machine, driver)?;
    if cuda.0 <= reach.major {
        return None;
    }
    let floor = cuda_drivers::floor(cuda.0)?;
    let name = driver.version().map_or("the driver".to_owned(), |v| format!("driver {}", v.value));
    let title = format!(
        "{name} cannot run CUDA {}, which torch {} in {} was built with",
        dotted(cuda),
        torch.torch.version,
        env.root
    );
    let found = match reach.limit {
        Some(limit) => {
            format!(" torch reports it as \"found version {}\".", limit.0 * 1000 + limit.1 * 10)
        }
        None => String::new(),
    };
    // Tegra's driver comes with JetPack and has a numbering of its own.
    let jetson = machine.kind == MachineKind::Jetson;
    let mut fix = Vec::new();
    if let Some(choice) = choose(machine, env, Some(&torch.version)) {
        fix.push(format!("# a build of torch for CUDA {}, which this driver runs:", choice.cuda.0));
        fix.extend(Installer::of(env).replace_torch(&choice));
        fix.push(format!(
            "# or keep this torch and bring the driver to {} or newer:",
            floor.branch
        ));
    }
    if jetson {
        fix.push(Installer::of(env).uninstall(&["torch"]));
        fix.push(
            "# then install NVIDIA's torch wheel for this JetPack release; a newer CUDA comes with a newer JetPack"
                .into(),
        );
    } else {
        fix.extend(host::update_driver(machine, floor.branch));
    }
    // On data-centre GPUs a newer libcuda from NVIDIA's compatibility package may stand in for the driver's.
    let confidence = match gpu::all_geforce(machine) {
        true => Confidence::Certain,
        false => Confidence::Likely,
    };
    let mut draft =
        RULE.finding(Severity::Error, confidence, title).fact("driver", driver.version());
    if let Some(limit) = &driver.cuda_limit {
        draft = draft.evidence(
            format!("the driver accepts CUDA up to {}", dotted(limit.value)),
            limit.source.clone(),
        );
    }
    draft = draft.evidence(
        format!("torch was built with CUDA {}", dotted(cuda)),
        torch.torch.source.clone(),
    );
    if !jetson {
        let needs = format!("CUDA {} needs driver {} or newer", cuda.0, floor.driver);
        draft = draft.evidence(needs, floor.source.to_string());
    }
    let finding = draft
        .cause(format!(
            "A driver runs no CUDA major version newer than its own, here {}.{found}",
            reach.major
        ))
        .fix(fix)
        .done();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Machine, Severity::*};

    fn without_limit(mut machine: Machine) -> Machine {
        if let Some(driver) = machine.driver.as_mut() {
            driver.cuda_limit = None;
        }
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let cu13 = || vec![env("/w/.venv").uv().torch("2.11.0+cu130", Some("13.0")).build()];
        vec![
            Case::new("the torch of PyPI on driver 550", machines::rtx4090(), cu13()).finds(
                Error,
                Certain,
                &[
                    "driver 550.163.01 cannot run CUDA 13.0, which torch 2.11.0+cu130 in /w/.venv",
                    "CUDA up to 12.4 [NVML nvmlSystemGetCudaDriverVersion]",
                    "[/w/.venv/lib/python3.12/site-packages/torch/version.py]",
                    "found version 12040",
                    "uv pip install --python /w/.venv/bin/python torch==2.11.0 --index-url https://download.pytorch.org/whl/cu126",
                    "sudo ubuntu-drivers install nvidia:580",
                ],
            ),
            Case::new("judged by the version where no limit was read", without_limit(machines::a10()), cu13())
                .finds(Error, Likely, &["driver 570.148.08", "needs driver 580 or newer"])
                .without(&["found version"]),
            Case::new(
                "no CUDA 12 build of 2.15",
                machines::gh200(),
                vec![env("/v").torch("2.15.0+cu132", Some("13.2")).build()],
            )
            .finds(Error, Likely, &["'torch==2.14.*' --index-url https://download.pytorch.org/whl/cu126"]),
            Case::new(
                "a CUDA 13 build on JetPack 6",
                machines::jetson_orin(),
                vec![env("/v").python("3.10.12").torch("2.9.1+cu130", Some("13.0")).build()],
            )
            .finds(Error, Likely, &["comes with a newer JetPack", "/v/bin/python -m pip uninstall"])
            .without(&["--index-url", "needs driver 580", "reboot"]),
            Case::new("driver 580", machines::h200(), cu13()),
            Case::new(
                "minor version compatibility",
                machines::rtx4090(),
                vec![env("/v").torch("2.9.1+cu128", Some("12.8")).build()],
            ),
            Case::new("a CPU build", machines::rtx4090(), vec![env("/v").torch("2.11.0+cpu", None).build()]),
            Case::new("no driver, no GPU", machines::x86(), cu13()),
        ]
    }
}
