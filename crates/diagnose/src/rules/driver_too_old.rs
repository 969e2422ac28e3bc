use super::{Context, Need, Rule, Text};
use crate::cuda_library::cuda_of_library;
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, text};
use crate::torch_build::installed;
use crate::torch_choice::{choose, reach};
use crate::{gpu, host};
use facts::{Confidence, Driver, Fact, Finding, Machine, MachineKind, PyEnv, RemedyStep, Severity};
use knowledge::cuda_drivers::{self, CudaSupport};
use knowledge::{Minor, dotted};

pub(super) const RULE: Rule = Rule {
    id: "driver-too-old",
    title: "the NVIDIA driver is too old for the CUDA that torch or another package was built with",
    about: "\
A driver runs every CUDA release of the same or an older major version, but none of a newer major version: CUDA 13
needs driver 580, CUDA 12 driver 525.60.13, CUDA 11 driver 450.80.02. `pip install torch` now installs a CUDA 13 build.
Within a major version, minor versions may differ: driver 550 (CUDA 12.4) runs a torch built with 12.8.

It shows as
  The NVIDIA driver on your system is too old (found version 12020).
where 12020 means CUDA 12.2, and as torch.cuda.is_available() being False.

Detected by comparing the driver's CUDA limit with `cuda` in torch/version.py, and with the CUDA libraries that compiled
files of other packages need (DT_NEEDED).

Install the same torch from an index of a CUDA release the driver runs, or update the driver. NVIDIA's forward
compatibility libraries can help on data-centre GPUs; on GeForce they fail with error 804.",
    links: &["https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html"],
    texts: &[
        Text::new("The NVIDIA driver on your system is too old (found version {found})", "\
RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver by
downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"),
        Text::new("CUDA driver version is insufficient for CUDA runtime version", "CUDA error 35: CUDA driver version is insufficient for CUDA runtime version"),
        Text::new("requirement error: unsatisfied condition: cuda>=", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda container: unknown"),
    ],
    remedy: |seen| {
        let stated = seen.word("found").and_then(cuda_of_number).map(|limit| Driver {
            cuda_limit: Some(Fact::new(limit, "the text")),
            ..Driver::default()
        });
        // Without a driver, no build is known to run.
        let choice = stated.or_else(|| seen.machine().driver.clone()).and_then(|driver| {
            let machine = Machine { driver: Some(driver), ..seen.machine().clone() };
            choose(&machine, seen.env()?, None)
        });
        let update = host::update_driver(seen.machine(), 580);
        let Some(choice) = choice else { return update };
        let runs = cuda_drivers::minimum_driver(choice.cuda.0).map_or("?", |row| &row.driver);
        let mut lines =
            vec![format!("# a build of torch for CUDA {}, which runs on driver {runs} and newer:", choice.cuda.0)];
        lines.extend(text(seen.installer().replace_torch(&choice)));
        lines.push("# or keep this torch and update the driver:".into());
        lines.extend(update);
        lines
    },
    needs: &[Need::Torch, Need::Driver],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The CUDA release of a number of `cudaDriverGetVersion`: 12020 is CUDA 12.2.
fn cuda_of_number(number: &str) -> Option<Minor> {
    let number: u32 = number.parse().ok()?;
    Some((number / 1000, number % 1000 / 10))
}

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let Some(reach) = machine.driver.as_ref().and_then(|driver| reach(machine, driver)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    for env in context.envs {
        let newer = newer_packages(machine, env, reach.major);
        match judge(context, env, reach, &newer) {
            Some(finding) => findings.push(finding),
            None => findings.extend(newer.iter().filter_map(|newer| judge_package(machine, newer))),
        }
    }
    findings
}

/// A package other than torch whose libraries need a newer CUDA than the driver runs.
struct NewerCuda<'a> {
    native: Native<'a>,
    library: &'a str,
    cuda: u32,
}

/// The packages of an environment whose libraries are linked with CUDA libraries of a newer major version than the driver
/// runs. Packages with one library per CUDA release, or that handle the missing file, do not count.
fn newer_packages<'a>(machine: &Machine, env: &'a PyEnv, reach: u32) -> Vec<NewerCuda<'a>> {
    let needs = |native: &Native<'a>| {
        let needed = native.elf.needed.iter().map(|needed| needed.name.as_str());
        let releases = needed.filter_map(|name| Some((name, cuda_of_library(name)?)));
        releases.max_by_key(|(_, cuda)| *cuda).filter(|(_, cuda)| *cuda > reach)
    };
    let counts = |native: &Native<'a>| {
        native.is_opened()
            && native.is_for(machine)
            && !native.is_torch()
            && !native.is_nvidia()
            && !native.is_one_of_several()
            && !native.is_left_to_choice()
            && needs(native).is_some()
    };
    let groups = by_owner(env, counts).into_iter();
    groups
        .filter_map(|group| {
            let native = *group.first()?;
            let (library, cuda) = needs(&native)?;
            native.owner()?;
            Some(NewerCuda { native, library, cuda })
        })
        .collect()
}

fn judge_package(machine: &Machine, newer: &NewerCuda<'_>) -> Option<Finding> {
    let driver = machine.driver.as_ref()?;
    let floor = cuda_drivers::minimum_driver(newer.cuda)?;
    let name = driver.version().map_or("the driver".to_owned(), |v| format!("driver {}", v.value));
    let title = format!(
        "{name} cannot run CUDA {}, which {} in {} needs",
        newer.cuda,
        newer.native.label(),
        newer.native.env.root
    );
    let mut draft = RULE
        .finding(Severity::Error, confidence(machine), title)
        .evidence(format!("needs {} (DT_NEEDED)", newer.library), newer.native.file.path.clone())
        .fact("driver", driver.version());
    if let Some(limit) = &driver.cuda_limit {
        draft = draft.evidence(
            format!("the driver accepts CUDA up to {}", dotted(limit.value)),
            limit.source.clone(),
        );
    }
    let needs = format!("CUDA {} needs driver {} or newer", newer.cuda, floor.driver);
    draft = draft.evidence(needs, floor.source.to_string());
    let mut fix = host::update_driver(machine, floor.branch);
    fix.extend(other_release(&[newer.native.owner_name()?]));
    let cause = "A driver runs no CUDA major version newer than its own; the package's libraries are linked with one.";
    Some(draft.cause(cause).fix(fix).finish())
}

/// Commands that find releases of packages for the installed driver.
fn other_release(packages: &[String]) -> Vec<String> {
    let packages = packages.join(" ");
    vec![
        format!(
            "# or keep this driver; releases of {packages} whose libraries it runs, if there are any:"
        ),
        format!("firstlight plan {packages} --lock"),
    ]
}

/// Only likely on data-centre GPUs, where NVIDIA's compatibility package can replace libcuda with a newer one.
fn confidence(machine: &Machine) -> Confidence {
    match gpu::all_geforce(machine) {
        true => Confidence::Certain,
        false => Confidence::Likely,
    }
}

fn judge(
    context: &Context,
    env: &PyEnv,
    reach: CudaSupport,
    newer: &[NewerCuda<'_>],
) -> Option<Finding> {
    let machine = context.machine;
    let driver = machine.driver.as_ref()?;
    let torch = installed(env)?;
    let cuda = torch.cuda?;
    if cuda.0 <= reach.major {
        return None;
    }
    let floor = cuda_drivers::minimum_driver(cuda.0)?;
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
    // Tegra's driver is part of JetPack and has other version numbers.
    let jetson = machine.kind == MachineKind::Jetson;
    let mut fix: Vec<RemedyStep> = Vec::new();
    let driver_steps =
        || host::update_driver(machine, floor.branch).into_iter().map(RemedyStep::from);
    // Replacing torch alone would leave other packages whose CUDA libraries the driver cannot run.
    let others: Vec<String> = newer.iter().filter_map(|it| it.native.owner_name()).collect();
    if !others.is_empty() && !jetson {
        fix.extend(driver_steps());
        let all: Vec<String> = std::iter::once("torch".to_owned()).chain(others).collect();
        fix.extend(other_release(&all).into_iter().map(RemedyStep::from));
    } else if let Some(choice) = choose(machine, env, Some(&torch.version)) {
        fix.push(
            format!("# a build of torch for CUDA {}, which this driver runs:", choice.cuda.0)
                .into(),
        );
        fix.extend(Installer::of(env).replace_torch(&choice));
        fix.push(
            format!("# or keep this torch and bring the driver to {} or newer:", floor.branch)
                .into(),
        );
    }
    if jetson {
        fix.push(Installer::of(env).uninstall(&["torch"]));
        fix.push(
            "# then install NVIDIA's torch wheel for this JetPack release; a newer CUDA comes with a newer JetPack"
                .into(),
        );
    } else if newer.is_empty() {
        fix.extend(driver_steps());
    }
    let mut draft =
        RULE.finding(Severity::Error, confidence(machine), title).fact("driver", driver.version());
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
    for it in newer {
        draft = draft.evidence(
            format!("{} needs {} too (DT_NEEDED)", it.native.label(), it.library),
            it.native.file.path.clone(),
        );
    }
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
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, elf, env, found, machines};
    use facts::{Confidence::*, Elf, FoundBy, Machine, Severity::*};

    fn without_limit(mut machine: Machine) -> Machine {
        if let Some(driver) = machine.driver.as_mut() {
            driver.cuda_limit = None;
        }
        machine
    }

    #[test]
    fn remedy_is_for_the_driver_of_the_text() {
        let envs = [env("/v").python("3.11.9").build()];
        let fix = |text: &str| crate::explain(text, &machines::x86(), &envs)[0].fix.join("\n");
        let stated = |version: &str| {
            fix(&format!("The NVIDIA driver on your system is too old (found version {version})."))
        };
        // CUDA 11.4 and 12.2: releases of the same major version run.
        let eleven = stated("11040");
        assert!(eleven.contains("'torch==2.7.*'") && eleven.contains("/whl/cu118"), "{eleven}");
        assert!(eleven.contains("CUDA 11, which runs on driver 450.80.02"), "{eleven}");
        assert!(eleven.contains("nvidia:580"), "{eleven}");
        let twelve = stated("12020");
        assert!(twelve.contains("/whl/cu126") && !twelve.contains("cu13"), "{twelve}");
        // No build is published for CUDA 10, and without a version no build is known to run.
        for only_driver in [
            stated("10020"),
            fix("CUDA error 35: CUDA driver version is insufficient for CUDA runtime version"),
        ] {
            assert!(only_driver.contains("nvidia:580"), "{only_driver}");
            assert!(!only_driver.contains("torch"), "{only_driver}");
        }
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
            Case::new("S02: vllm's libraries need the newer CUDA too", machines::a10(), {
                let env = env("/v").torch("2.15.0+cu130", Some("13.0")).dist("vllm", "0.33.0");
                let library = found("libcudart.so.13", "/v/nvidia/cu13/lib/libcudart.so.13", FoundBy::Loaded);
                let needs = Elf { needed: vec![library], module: Some(true), ..elf() };
                vec![env.compiled("vllm", "vllm/_C.abi3.so", needs).build()]
            })
            .finds(
                Error,
                Likely,
                &["vllm 0.33.0 needs libcudart.so.13 too", "nvidia:580-server", "firstlight plan torch vllm --lock"],
            )
            .without(&["--index-url", "pip install"]),
            Case::new("a package without torch", machines::a10(), {
                let library = found("libcublas.so.13", "/v/nvidia/cu13/lib/libcublas.so.13", FoundBy::Runpath);
                let needs = Elf { needed: vec![library], module: Some(true), ..elf() };
                vec![env("/v").dist("cupy-cuda13x", "14.2.0").compiled("cupy-cuda13x", "cupy/_core.so", needs).build()]
            })
            .finds(
                Error,
                Likely,
                &["driver 570.148.08 cannot run CUDA 13, which cupy-cuda13x 14.2.0 in /v needs", "nvidia:580-server"],
            ),
            Case::new("a library for each CUDA release, and one that is optional", machines::a10(), {
                let needs = |name: &str| Elf {
                    needed: vec![found(name, "/x", FoundBy::Runpath)],
                    module: Some(true),
                    ..elf()
                };
                let optional = Elf { optional_in: Some("/v/a.py".into()), ..needs("libcudart.so.13") };
                vec![
                    env("/v")
                        .dist("bitsandbytes", "0.50.2")
                        .compiled("bitsandbytes", "b/libbnb_cuda130.so", needs("libcudart.so.13"))
                        .compiled("bitsandbytes", "b/libbnb_cuda128.so", needs("libcudart.so.12"))
                        .dist("torchao", "0.14.0")
                        .compiled("torchao", "torchao/kernels.so", optional)
                        .build(),
                ]
            }),
            Case::new("the limit follows from the driver version", without_limit(machines::a10()), cu13())
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
