use super::{Context, Need, Rule, Text};
use crate::cuda_library::known;
use crate::native::{Native, files};
use crate::remedy::Installer;
use crate::requirement;
use crate::torch_build::{installed, is_leftover, live_dist};
use facts::CompactCollect;
use facts::{Confidence, Dist, Finding, PyEnv, RemedyStep, Severity};
use knowledge::{Version, cuda_of_label};
use std::collections::BTreeSet;

pub(super) const RULE: Rule = Rule {
    id: "mixed-cuda-majors",
    title: "packages for different CUDA major versions in one environment",
    about: "\
CUDA libraries of one major version do not work with programs built for another: a package for CUDA 12 needs
libcudart.so.12, which a CUDA 13 torch does not install. The mix comes from upgrading torch without the packages that
were built for the older one, or from two packages that each pin another CUDA.

It shows as
  ImportError: libcudart.so.12: cannot open shared object file: No such file or directory
(or .so.13), and, where both are found, as undefined symbols or two cuDNNs in one process.

Detected in the names and labels of the installed distributions (nvidia-*-cu12, cupy-cuda13x, +cu128) and in
torch/version.py; `missing-cuda-library` reports the files that need a missing library.

Keep torch's major version: uninstall packages that no other package requires, and replace the others by builds for
that version.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/36099",
        "https://github.com/vllm-project/vllm/issues/52300",
    ],
    texts: &[Text::new("libcudart.so.{major}: cannot open shared object file", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory")],
    remedy: |seen| {
        let installer = seen.installer();
        let check = match installer.uv() {
            true => format!("uv pip check --python {}", installer.python()),
            false => format!("{} -m pip check", installer.python()),
        };
        let major = seen.word("major").unwrap_or("12");
        vec![
            check,
            format!("# the package that needs it was built for CUDA {major}: install its build for the CUDA of your torch"),
        ]
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Distributions without a CUDA suffix whose version is the CUDA release. cuFFT, cuSOLVER, cuSPARSE and others have
/// separate versions, and nvidia-ml-py has the driver's: they are not listed.
const VERSIONED_BY_CUDA: [&str; 6] = [
    "cuda-toolkit",
    "nvidia-cuda-cupti",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-nvjitlink",
    "nvidia-nvtx",
];

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(judge).collect()
}

/// The CUDA major version of a distribution, from its name or version.
fn major(dist: &Dist) -> Option<u32> {
    let name = Dist::normalise(&dist.name);
    let version = Version::parse(&dist.version)?;
    let plausible = |major: u32| (11..30).contains(&major).then_some(major);
    if VERSIONED_BY_CUDA.contains(&name.as_str()) {
        return plausible(version.release[0]);
    }
    let word = |word: &str| {
        let number = word.strip_prefix("cuda").or_else(|| word.strip_prefix("cu"))?;
        let number = number.strip_suffix('x').unwrap_or(number);
        match number.len() {
            2 => plausible(number.parse().ok()?),
            // Names such as cupy-cuda117 include the minor version.
            3 => plausible(number.parse::<u32>().ok()? / 10),
            _ => None,
        }
    };
    name.split('-').find_map(word).or_else(|| {
        cuda_of_label(version.local.as_deref()?).and_then(|(major, _)| plausible(major))
    })
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let torch = installed(env);
    let torch_major = torch.as_ref().and_then(|torch| torch.cuda).map(|cuda| cuda.0);
    let is_torch = |dist: &Dist| Dist::normalise(&dist.name) == "torch";
    let jax_packages = jax_packages(env);
    let dists: Vec<(&Dist, u32)> = env
        .dists
        .iter()
        .filter(|dist| !is_leftover(dist) && !is_torch(dist))
        .filter(|dist| !jax_packages.contains(&Dist::normalise(&dist.name)))
        .filter_map(|dist| Some((dist, major(dist)?)))
        .collect();
    let majors: BTreeSet<u32> =
        dists.iter().map(|(_, major)| *major).chain(torch_major).compact_set();
    let keep = torch_major.or(majors.last().copied())?;
    if majors.len() < 2 {
        return None;
    }
    let strays = strays(env, &dists, keep);
    if strays.is_empty() {
        return None;
    }
    let names: Vec<String> = majors.iter().map(u32::to_string).collect();
    let mut draft = RULE.finding(
        Severity::Warning,
        Confidence::Likely,
        format!("packages for CUDA {} together in {}", names.join(" and "), env.root),
    );
    if let Some(torch) = torch.filter(|torch| torch.cuda.is_some()) {
        let cuda = torch.torch.cuda.as_deref().unwrap_or_default();
        draft =
            draft.evidence(format!("torch was built with CUDA {cuda}"), torch.torch.source.clone());
    } else if let Some((dist, _)) = dists.iter().find(|(_, major)| *major == keep) {
        draft = draft.evidence(
            format!("{} {} is for CUDA {keep}", dist.name, dist.version),
            dist.path.clone(),
        );
    }
    let is_stray = |dist: &Dist| strays.iter().any(|stray| std::ptr::eq(*stray, dist));
    for (dist, major) in dists.iter().filter(|(dist, _)| is_stray(dist)) {
        let asked = match dependents(env, dist, &strays)[..] {
            [] => "no other package requires it".to_owned(),
            ref dependents => format!("required by {}", dependents.join(", ")),
        };
        draft = draft.evidence(
            format!("{} {} is for CUDA {major}; {asked}", dist.name, dist.version),
            dist.path.clone(),
        );
    }
    let cause = match torch_major {
        Some(_) => {
            "CUDA libraries of one major version do not work with packages built for another; these were most likely \
             not replaced, or pinned, when torch was upgraded."
        }
        None => "CUDA libraries of one major version do not work with packages built for another.",
    };
    Some(draft.cause(cause).fix(fix(env, &strays, keep)).finish())
}

/// JAX's plugins and the CUDA libraries they require. A plugin opens its libraries by path, so JAX and torch can use
/// different CUDA major versions in one environment. Libraries that torch requires too are not included.
fn jax_packages(env: &PyEnv) -> BTreeSet<String> {
    let plugin = |name: &str| name.starts_with("jax-cuda");
    let plugins = env.dists.iter().filter(|dist| plugin(&Dist::normalise(&dist.name)));
    let mut jax_packages = BTreeSet::new();
    for dist in plugins {
        jax_packages.insert(Dist::normalise(&dist.name));
        // The plugin requires them in an extra, which `jax[cuda13]` selects.
        let asked = dist.requires.iter().filter_map(|line| requirement::parse(line));
        jax_packages.extend(asked.map(|requirement| requirement.name));
    }
    let torch = live_dist(env, "torch").into_iter().flat_map(|dist| &dist.requires);
    let of_torch: BTreeSet<String> =
        torch.filter_map(|line| requirement::parse(line)).map(|it| it.name).compact_set();
    jax_packages.retain(|name| plugin(name) || !of_torch.contains(name));
    jax_packages
}

/// The unused distributions for another major version. Two major versions can coexist if each file finds its libraries, so a
/// distribution that a kept package requires, or whose files find all their CUDA libraries, is not a stray.
fn strays<'a>(env: &'a PyEnv, dists: &[(&'a Dist, u32)], keep: u32) -> Vec<&'a Dist> {
    let others = dists.iter().filter(|(_, major)| *major != keep).map(|(dist, _)| *dist);
    let mut strays: Vec<&Dist> = others.filter(|dist| !loads(env, dist)).collect();
    // Requirements of a kept package are kept too, transitively.
    loop {
        let kept: Vec<&Dist> = strays
            .iter()
            .copied()
            .filter(|dist| dependents(env, dist, &strays).is_empty())
            .collect();
        if kept.len() == strays.len() {
            return strays;
        }
        strays = kept;
    }
}

/// Whether a package other than CUDA's libraries has compiled files that find all CUDA libraries they need.
fn loads(env: &PyEnv, dist: &Dist) -> bool {
    let name = Dist::normalise(&dist.name);
    if name.starts_with("nvidia-") || name == "cuda-toolkit" {
        return false;
    }
    let own: Vec<_> =
        files(env).filter(|native| native.owner_name().as_ref() == Some(&name)).collect();
    let lacks = |native: &Native<'_>| {
        native.elf.needed.iter().any(|it| it.path.is_none() && known(&it.name).is_some())
    };
    !own.is_empty() && !own.iter().any(lacks)
}

/// The distributions outside the strays that require `stray`.
fn dependents<'a>(env: &'a PyEnv, stray: &Dist, strays: &[&Dist]) -> Vec<&'a str> {
    let wanted = Dist::normalise(&stray.name);
    let asks = |dist: &&Dist| {
        let outside = !strays.iter().any(|other| std::ptr::eq(*other, *dist));
        outside
            && dist.requires.iter().filter_map(|line| requirement::parse(line)).any(|requirement| {
                // Installed metadata does not record requested extras such as `jax[cuda13]`.
                let by_extra = requirement.marker.contains("extra");
                requirement.name == wanted && (by_extra || requirement.applies(false))
            })
    };
    env.dists.iter().filter(asks).map(|dist| dist.name.as_str()).collect()
}

fn fix(env: &PyEnv, strays: &[&Dist], keep: u32) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    let mut remove = Vec::new();
    let mut replace = Vec::new();
    let mut remarks = Vec::new();
    for dist in strays {
        let dependents = dependents(env, dist, strays);
        if !dependents.is_empty() {
            remarks.push(format!(
                "# {0} requires {1}: install a build of {0} for CUDA {keep}, then remove {1}",
                dependents.join(", "),
                dist.name
            ));
            continue;
        }
        remove.push(dist.name.as_str());
        let name = Dist::normalise(&dist.name);
        if name.starts_with("cupy-cuda") {
            replace.push(format!("cupy-cuda{keep}x"));
        } else if !name.starts_with("nvidia-") && name != "cuda-toolkit" {
            remarks.push(format!(
                "# {} was built for another CUDA: install its build for CUDA {keep}",
                dist.name
            ));
        }
    }
    let mut lines = Vec::new();
    if !remove.is_empty() {
        lines.push(installer.uninstall(&remove));
    }
    if !replace.is_empty() {
        lines.push(installer.install(&replace, None));
    }
    lines.extend(remarks.into_iter().map(RemedyStep::from));
    // Uninstalling a library can remove files of another distribution in the same folder; `pip check` shows it.
    lines.push(installer.check());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{Case, elf, env, machines};
    use facts::{Confidence::*, Severity::*};

    #[test]
    fn major_version_from_names_and_labels() {
        let check = |name: &str, version: &str, expect| {
            let env = env("/v").dist(name, version).build();
            assert_eq!(major(&env.dists[0]), expect, "{name} {version}");
        };
        check("nvidia-cublas-cu12", "12.8.4.1", Some(12));
        check("nvidia-cudnn-cu13", "9.19.0.56", Some(13));
        check("nvidia-cuda-runtime", "13.0.96", Some(13));
        check("nvidia-cutlass-dsl-libs-cu13", "4.6.2", Some(13));
        check("cupy-cuda12x", "13.4.0", Some(12));
        check("cupy-cuda117", "10.6.0", Some(11));
        check("jax-cuda13-plugin", "0.11.2", Some(13));
        check("cudf-cu12", "25.8", Some(12));
        check("flash_attn", "2.8.3+cu12torch2.8cxx11abiTRUE", Some(12));
        check("torchvision", "0.24.0+cu128", Some(12));
        // Numbers that are not a CUDA version.
        check("nvidia-ml-py", "13.610.43", None);
        check("nvidia-cufft", "12.0.0.61", None);
        check("nvidia-cusparse", "12.6.3.3", None);
        check("nvidia-cutlass-dsl", "4.6.2", None);
        check("nvidia-cublas", "0.0.1.dev5", None);
        check("numba-cuda", "0.30.4", None);
        check("cuda-bindings", "13.3.1", None);
        check("torchvision", "0.24.0+cpu", None);
    }

    pub(super) fn cases() -> Vec<Case> {
        // The GPU packages of the recorded H200 environment: CUDA 13 throughout.
        let recorded = env("/opt/torch/.venv")
            .torch("2.11.0+cu130", Some("13.0"))
            .dist("cuda-bindings", "13.3.1")
            .dist("cuda-toolkit", "13.0.2")
            .dist("cupy-cuda13x", "14.2.0")
            .dist("jax-cuda13-pjrt", "0.11.2")
            .dist("numba-cuda", "0.30.4")
            .dist("nvidia-cublas", "13.1.0.3")
            .dist("nvidia-cuda-runtime", "13.0.96")
            .dist("nvidia-cudnn-cu13", "9.19.0.56")
            .dist("nvidia-cufft", "12.0.0.61")
            .dist("nvidia-cusparse", "12.6.3.3")
            .dist("nvidia-cutlass-dsl-libs-cu13", "4.6.2")
            .dist("nvidia-ml-py", "13.610.43")
            .build();
        let upgraded = env("/v")
            .uv()
            .torch("2.11.0+cu130", Some("13.0"))
            .dist("nvidia-cudnn-cu13", "9.19.0.56")
            .dist("nvidia-cublas-cu12", "12.8.4.1")
            .dist("cupy-cuda12x", "13.4.0")
            .dist("flash_attn", "2.8.3+cu12torch2.8cxx11abiTRUE")
            .build();
        let pinned = env("/v")
            .torch("2.9.1+cu128", Some("12.8"))
            .dist("tensorrt", "10.14")
            .requires("tensorrt", "nvidia-cuda-runtime-cu13==0.0.0a0")
            .dist("nvidia-cuda-runtime-cu13", "0.0.0a0")
            .build();
        let no_torch = env("/v").dist("cudf-cu13", "26.2").dist("cupy-cuda12x", "13.4.0").build();
        let jax = env("/v")
            .torch("2.8.0+cu128", Some("12.8"))
            .dist("nvidia-cublas-cu12", "12.8.4.1")
            .dist("jax-cuda13-plugin", "0.11.2")
            .requires("jax-cuda13-plugin", "jax-cuda13-pjrt==0.11.2")
            .requires("jax-cuda13-plugin", "nvidia-cuda-runtime>=13; extra == 'with-cuda'")
            .requires("jax-cuda13-plugin", "nvidia-cudnn-cu13>=9.8; extra == 'with-cuda'")
            .dist("jax-cuda13-pjrt", "0.11.2")
            .dist("nvidia-cuda-runtime", "13.0.96")
            .dist("nvidia-cudnn-cu13", "9.19.0.56")
            .build();
        let leftover = env("/v")
            .torch("2.11.0+cu130", Some("13.0"))
            .dist_at(
                "nvidia-nccl-cu12",
                "2.27",
                "/v/lib/python3.12/site-packages/~vidia_nccl_cu12-2.27.dist-info",
            )
            .build();
        vec![
            Case::new("torch moved to CUDA 13, the rest did not", machines::h200(), vec![upgraded]).finds(
                Warning,
                Likely,
                &[
                    "packages for CUDA 12 and 13 together in /v",
                    "torch was built with CUDA 13.0",
                    "nvidia-cublas-cu12 12.8.4.1 is for CUDA 12; no other package requires it",
                    "uv pip uninstall --python /v/bin/python nvidia-cublas-cu12 cupy-cuda12x flash_attn",
                    "uv pip install --python /v/bin/python cupy-cuda13x",
                    "# flash_attn was built for another CUDA: install its build for CUDA 13",
                    "uv pip check --python /v/bin/python",
                ],
            ),
            Case::new("a package pins its own CUDA", machines::a10(), vec![pinned]),
            Case::new("vllm and sglang: nvidia-cutlass-dsl brings its libraries for CUDA 12", machines::h200(), vec![
                env("/v")
                    .torch("2.11.0+cu130", Some("13.0"))
                    .dist("nvidia-cutlass-dsl", "4.6.2")
                    .requires("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-cu12==4.6.2; extra == 'cu12'")
                    .dist("nvidia-cutlass-dsl-libs-cu12", "4.6.2")
                    .requires("nvidia-cutlass-dsl-libs-cu12", "nvidia-cuda-nvrtc-cu12")
                    .dist("nvidia-cuda-nvrtc-cu12", "12.9.86")
                    .build(),
            ]),
            Case::new("JAX for CUDA 13 and a torch for 12, each with its libraries", machines::h200(), vec![
                env("/v")
                    .torch("2.9.1+cu128", Some("12.8"))
                    .dist("jax-cuda13-plugin", "0.11.2")
                    .requires("jax-cuda13-plugin", "nvidia-cublas-cu13>=13.0; extra == 'with-cuda'")
                    .dist("nvidia-cublas-cu13", "13.1")
                    .compiled("jax-cuda13-plugin", "jax_plugins/xla_cuda13/xla_cuda_plugin.so", elf())
                    .build(),
            ]),
            Case::new("without torch", machines::h200(), vec![no_torch])
                .finds(Warning, Likely, &["cudf-cu13 26.2 is for CUDA 13", "cupy-cuda13x"]),
            Case::new("JAX with another CUDA than torch", machines::h200(), vec![jax]),
            Case::new("the recorded H200", machines::h200(), vec![recorded]),
            Case::new("a leftover folder is not a package", machines::h200(), vec![leftover]),
            Case::new(
                "minor versions may differ",
                machines::a10(),
                vec![env("/v").torch("2.9.1+cu126", Some("12.6")).dist("cupy-cuda12x", "13.4.0").build()],
            ),
        ]
    }
}
