use super::{Also, Context, Need, Rule, Text};
use crate::data::newer_torch::{NEWER, NewerTorch};
use crate::remedy::{Installer, text};
use crate::requirement::{Requirement, required};
use crate::torch_build::{Installed, by_conda, installed, live_dist};
use facts::{Confidence, Dist, Finding, Machine, PyEnv, RemedyStep, Severity};
use knowledge::torch_series::{self, CompatibleSeries};
use knowledge::{Minor, Version, cuda_of_label, dotted, pypi};

pub(super) const RULE: Rule = Rule {
    id: "torch-pairs",
    title: "torchvision, torchaudio, torchao or triton of another torch release",
    about: "\
torchvision and torchaudio are compiled against one torch release (torchvision from 0.29 and torchaudio from 2.11 are
built for every later torch), and each CUDA torch pins one triton. A later install of one of them alone breaks the pair:
torch 2.5.1 goes with torchvision 0.20.1, torchaudio 2.5.1 and triton 3.1.0. torchao's METADATA names no torch, and from
0.18 on its import needs 2.10.

It shows as
  RuntimeError: operator torchvision::nms does not exist
or as an undefined symbol from torchaudio, or, as torchaudio wants torch's CUDA to the minor version, as
  RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA versions.
Another triton shows in torch.compile and in Triton kernels, as an
ImportError or AttributeError from triton, and torchao as
  ImportError: cannot import name 'ScalingType' from 'torch.nn.functional'

Seen in the METADATA of the installed packages, which names the torch they were built for; where it names none, in a
table of releases.

Install the fitting release from the index torch came from, naming torch's own version so that it stays.",
    links: &[
        "https://github.com/pytorch/vision/issues/8985",
        "https://github.com/pytorch/vision#installation",
    ],
    texts: &[
        Text::new("operator torchvision::nms does not exist", "RuntimeError: operator torchvision::nms does not exist"),
        Text::new("Detected that PyTorch and * were compiled with different CUDA", "RuntimeError: Detected that PyTorch and TorchAudio were compiled with different CUDA versions. PyTorch has CUDA version 13.2 whereas TorchAudio has CUDA version 13.0. Please install the TorchAudio version that matches your PyTorch version."),
        Text::new("Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are incompatible", "\
RuntimeError: Couldn't load custom C++ ops. This can happen if your PyTorch and torchvision versions are
incompatible, or if you had errors while compiling torchvision from source."),
        Text::new("cannot import name 'ScalingType' from 'torch.nn.functional'", "ImportError: cannot import name 'ScalingType' from 'torch.nn.functional' (/v/lib/python3.12/site-packages/torch/nn/functional.py)"),
        Text::new("No such operator torchvision::nms", "RuntimeError: No such operator torchvision::nms"),
    ],
    also: &[
        Also {
            cause: "torchvision's compiled file is absent or does not load: a CPU build beside a CUDA torch, a damaged or mixed installation.",
            check: &["python -m pip show torch torchvision | grep -E '^(Name|Version)'; python -c 'import torchvision; print(torchvision.__file__)'"],
        },
    ],
    remedy: |seen| match seen.env().and_then(|env| Some((env, installed(env)?))) {
        _ if seen.text.contains("ScalingType") => {
            let before = NEWER.map(|newer| format!("{}<{}", newer.package, newer.release));
            vec![seen.installer().install(&before, None).into()]
        }
        Some((env, torch)) => {
            let row = torch_series::series(torch.version.minor());
            text(fix(env, &torch, "torchvision", row.map(|row| row.torchvision)))
        }
        None => vec![seen.installer().install(&["torch".into(), "torchvision".into()], None).into()],
    },
    needs: &[Need::Torch, Need::Package("torchvision")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(|env| judge(context.machine, env)).collect()
}

fn judge(machine: &Machine, env: &PyEnv) -> Vec<Finding> {
    let Some(torch) = installed(env).filter(|torch| torch.version.is_final()) else {
        // A nightly or a vendor's build goes with companions of its own, which carry no comparable numbers.
        return Vec::new();
    };
    let arm = machine.platform.is_arm();
    let companions = ["torchvision", "torchaudio"]
        .into_iter()
        .filter_map(|name| companion(env, &torch, live_dist(env, name)?, arm));
    companions.chain(triton(env, &torch, arm)).chain(newer(env, &torch)).collect()
}

/// A package that imports names which only a newer torch has.
fn newer(env: &PyEnv, torch: &Installed) -> Option<Finding> {
    let older = |version: &Version, than: &str| {
        Version::parse(than).is_some_and(|than| version.compare(&than).is_lt())
    };
    NEWER.iter().find_map(|NewerTorch { package, release, torch: wanted, line }| {
        let dist = live_dist(env, package)?;
        let version = Version::parse(&dist.version)?;
        if older(&version, release) || !older(&torch.version, wanted) {
            return None;
        }
        let finding = RULE
            .finding(
                Severity::Error,
                Confidence::Certain,
                format!(
                    "{package} {} in {} needs torch {wanted} or later, here is {}",
                    dist.version, env.root, torch.torch.version
                ),
            )
            .evidence(format!("{package} {}", dist.version), format!("{}/METADATA", dist.path))
            .evidence(format!("torch {}", torch.torch.version), torch.torch.source.clone())
            .evidence("its import takes a name that older ones do not have", *line)
            .cause(format!("{package} does not say in its METADATA which torch it needs, so that installers take any."))
            .fix([Installer::of(env).install(&[format!("{package}<{release}")], None)])
            .finish();
        Some(finding)
    })
}

/// torchvision or torchaudio against torch: by its METADATA, else by the table, else by the CUDA label.
fn companion(env: &PyEnv, torch: &Installed, dist: &Dist, arm: bool) -> Option<Finding> {
    let name = Dist::normalise(&dist.name);
    let version = Version::parse(&dist.version).filter(Version::is_final)?;
    let row = torch_series::series(torch.version.minor());
    let fits = row.map(|row| if name == "torchvision" { row.torchvision } else { row.torchaudio });
    if let Some(finding) = other_cuda(env, torch, dist, &name, fits) {
        return Some(finding);
    }
    let pin = required(dist, "torch", arm).filter(Requirement::is_pinned);
    let title = format!(
        "{name} {} does not go with torch {} in {}",
        dist.version, torch.torch.version, env.root
    );
    let draft = |severity, confidence| {
        RULE.finding(severity, confidence, title.clone())
            .evidence(format!("torch {}", torch.torch.version), torch.torch.source.clone())
            .evidence(format!("{name} {}", dist.version), format!("{}/METADATA", dist.path))
    };
    let compiled =
        format!("{name} is compiled against another torch, so its operators do not load.");
    let draft = match (&pin, fits) {
        (Some(pin), _) => {
            if pin.allows(&torch.version)? {
                return label(env, torch, dist, &name, fits);
            }
            draft(Severity::Error, Confidence::Certain)
                .evidence(format!("Requires-Dist: {}", pin.line), format!("{}/METADATA", dist.path))
                .cause(compiled)
        }
        (None, Some(fits)) => {
            if fits.allows(version.minor()) {
                return label(env, torch, dist, &name, Some(fits));
            }
            let source = row.map_or(String::new(), |row| row.source.to_string());
            draft(Severity::Error, Confidence::Likely)
                .evidence(
                    format!(
                        "torch {} goes with {name}{}",
                        torch.version.public(),
                        fits.constraint()
                    ),
                    source,
                )
                .cause(compiled)
        }
        (None, None) => return None,
    };
    Some(draft.fix(fix(env, torch, &name, fits)).finish())
}

/// torchaudio compares CUDA's major and minor version with torch's when it is imported, and gives up where they differ. Its
/// METADATA has no label when it comes from PyPI; its version file has.
fn other_cuda(
    env: &PyEnv,
    torch: &Installed,
    dist: &Dist,
    name: &str,
    fits: Option<CompatibleSeries>,
) -> Option<Finding> {
    let own = env.companions.iter().find(|it| it.name == name)?;
    let comparing = own.compares_cuda.as_deref()?;
    let version = Version::parse(&own.version)?;
    let (major, minor) = cuda_of_label(version.local.as_deref()?)?;
    let cuda = torch.cuda?;
    if (major, minor?) == cuda {
        return None;
    }
    let finding = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            format!(
                "{name} {} is built for CUDA {}, torch {} in {} for {}",
                dist.version,
                dotted((major, minor?)),
                torch.torch.version,
                env.root,
                dotted(cuda)
            ),
        )
        .evidence(format!("{name} {}", own.version), own.source.clone())
        .evidence(format!("torch {}", torch.torch.version), torch.torch.source.clone())
        .evidence("compares both when it is imported, and raises an error", comparing)
        .cause(format!(
            "{name} refuses a torch of another CUDA release, minor version included. PyPI has one build of each, and they \
             are not always for the same CUDA."
        ))
        .fix(
            torch_for_torchaudio(env, &version, (major, minor?))
                .map_or_else(|| fix(env, torch, name, fits), |line| vec![line]),
        )
        .finish();
    Some(finding)
}

/// The newest torch of PyPI that is for this torchaudio's CUDA, where both came from there: PyPI has no other build of torchaudio.
fn torch_for_torchaudio(env: &PyEnv, audio: &Version, cuda: Minor) -> Option<RemedyStep> {
    let dist = live_dist(env, "torch").filter(|dist| !by_conda(dist))?;
    if Version::parse(&dist.version)?.local.is_some() {
        return None;
    }
    let python = knowledge::minor_of(&env.interpreter.version.as_ref()?.value)?;
    let goes = |release: &&pypi::Release| {
        let series = knowledge::minor_of(&release.version).and_then(torch_series::series);
        release.cuda() == Some(cuda)
            && release.has_wheel(python)
            && series.is_some_and(|row| row.torchaudio.allows(audio.minor()))
    };
    let torch = pypi::releases("torch").rev().find(goes)?;
    let mut specs =
        vec![format!("torch=={}", torch.version), format!("torchaudio=={}", audio.public())];
    if live_dist(env, "torchvision").is_some() {
        let row = torch_series::series(knowledge::minor_of(&torch.version)?)?;
        specs.push(format!("torchvision{}", row.torchvision.constraint()));
    }
    Some(Installer::of(env).install(&specs, None))
}

/// Same release, other CUDA: a `+cpu` torchvision has no CUDA operators, and one of another major version refuses.
fn label(
    env: &PyEnv,
    torch: &Installed,
    dist: &Dist,
    name: &str,
    fits: Option<CompatibleSeries>,
) -> Option<Finding> {
    let cuda = torch.cuda?;
    let version = Version::parse(&dist.version)?;
    let label = version.local.as_deref()?;
    let wrong = label == "cpu" || cuda_of_label(label).is_some_and(|(major, _)| major != cuda.0);
    if !wrong {
        return None;
    }
    let finding = RULE
        .finding(
            Severity::Error,
            Confidence::Likely,
            format!(
                "{name} {} is built for other hardware than torch {} in {}",
                dist.version, torch.torch.version, env.root
            ),
        )
        .evidence(format!("torch {}", torch.torch.version), torch.torch.source.clone())
        .evidence(format!("{name} {}", dist.version), format!("{}/METADATA", dist.path))
        .cause(format!("The two labels differ: operators of {name} are missing for CUDA, or it refuses to load."))
        .fix(fix(env, torch, name, fits))
        .finish();
    Some(finding)
}

fn fix(
    env: &PyEnv,
    torch: &Installed,
    name: &str,
    fits: Option<CompatibleSeries>,
) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    let constraint = fits.map_or(String::new(), CompatibleSeries::constraint);
    if live_dist(env, "torch").is_some_and(by_conda) {
        return vec![installer.conda(&[format!("{name}{}", constraint.replace("==", "="))])];
    }
    // METADATA of torch from PyTorch's own index has the label that its version.py has; that of torch from PyPI has none,
    // and there lies the companion that was built with it.
    let own = live_dist(env, "torch").and_then(|dist| Version::parse(&dist.version)?.local);
    let index = torch.cuda.filter(|_| own.as_deref().is_some_and(|it| cuda_of_label(it).is_some()));
    let specs = [format!("torch=={}", torch.version.public()), format!("{name}{constraint}")];
    vec![installer.uninstall(&[name]), installer.install(&specs, index)]
}

/// triton against torch's pin.
fn triton(env: &PyEnv, torch: &Installed, arm: bool) -> Option<Finding> {
    torch.cuda?;
    let triton = live_dist(env, "triton")?;
    let version = Version::parse(&triton.version).filter(Version::is_final)?;
    // Of two records of torch the one that version.py agrees with is the one whose files are there.
    let is_it = |dist: &&Dist| {
        Dist::normalise(&dist.name) == "torch"
            && Version::parse(&dist.version).is_some_and(|v| v.compare(&torch.version).is_eq())
    };
    let dist = env.dists.iter().find(is_it);
    let pin = dist.and_then(|dist| required(dist, "triton", arm)).filter(Requirement::is_pinned);
    let row = torch_series::series(torch.version.minor());
    let (confidence, what, source, spec) = match (&pin, row) {
        (Some(pin), _) => {
            if pin.allows(&version)? {
                return None;
            }
            let source = dist.map_or(String::new(), |dist| format!("{}/METADATA", dist.path));
            let spec = format!("triton{}", pin.constraint());
            (Confidence::Certain, format!("Requires-Dist: {}", pin.line), source, spec)
        }
        (None, Some(row)) => {
            if row.triton == version.minor() {
                return None;
            }
            let spec = format!("triton{}", CompatibleSeries::Series(row.triton).constraint());
            (
                Confidence::Likely,
                format!("torch {} goes with {spec}", torch.version.public()),
                row.source.to_string(),
                spec,
            )
        }
        (None, None) => return None,
    };
    let finding = RULE
        .finding(
            Severity::Warning,
            confidence,
            format!(
                "triton {} is not the one torch {} in {} was released with",
                triton.version, torch.torch.version, env.root
            ),
        )
        .evidence(format!("triton {}", triton.version), format!("{}/METADATA", triton.path))
        .evidence(format!("torch {}", torch.torch.version), torch.torch.source.clone())
        .evidence(what, source)
        .cause(
            "torch.compile calls triton's internals, which change between releases: it may fail to import, or compile \
             wrongly.",
        )
        .fix([Installer::of(env).install(&[spec], None)])
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let pinned = env("/v")
            .uv()
            .torch("2.6.0+cu124", Some("12.4"))
            .dist("torchvision", "0.20.1")
            .requires("torchvision", "torch (==2.5.1)")
            .build();
        let mut labelled = pinned.clone();
        labelled.dists[0].version = "2.6.0+cu124".into();
        // Row R0-07: torch 2.5.1 with torchvision 0.20.1 and torchaudio 2.5.1, but triton 3.5.0.
        let profile = env("/v")
            .torch("2.5.1+cu124", Some("12.4"))
            .dist("torchvision", "0.20.1")
            .dist("torchaudio", "2.5.1")
            .dist("triton", "3.5.0")
            .build();
        let by_metadata = env("/v")
            .torch("2.11.0+cu130", Some("13.0"))
            .requires("torch", "triton==3.6.0; platform_system == \"Linux\"")
            .dist("triton", "3.7.0")
            .build();
        let stale = env("/v")
            .dist("torch", "2.5.1")
            .requires("torch", "triton==3.1.0")
            .torch("2.11.0+cu130", Some("13.0"))
            .build();
        let stale = facts::PyEnv {
            dists: by_metadata.dists.iter().chain(&stale.dists[..1]).rev().cloned().collect(),
            ..stale
        };
        let table_only =
            env("/v").torch("2.8.0+cu128", Some("12.8")).dist("torchaudio", "2.9.1").build();
        let recorded = env("/opt/torch/.venv")
            .torch("2.11.0+cu130", Some("13.0"))
            .requires("torch", "triton==3.6.0; platform_system == \"Linux\"")
            .dist("torchvision", "0.26.0")
            .requires("torchvision", "torch (==2.11.0)")
            .dist("torchaudio", "2.11.0")
            .dist("triton", "3.6.0")
            .build();
        let stable = |audio: Option<&str>| {
            let env = env("/v")
                .torch("2.15.0+cu132", Some("13.2"))
                .dist("torchvision", "0.29.2")
                .requires("torchvision", "torch (>=2.14.0)")
                .dist("torchaudio", "2.11.0")
                .dist("triton", "3.9.1")
                .build();
            let site = "/v/lib/python3.12/site-packages/torchaudio";
            let companion = |version: &str| facts::Companion {
                name: "torchaudio".into(),
                version: version.into(),
                source: format!("{site}/version.py"),
                compares_cuda: Some(format!("{site}/_extension/utils.py")),
            };
            facts::PyEnv { companions: audio.into_iter().map(companion).collect(), ..env }
        };
        let labels =
            env("/v").torch("2.9.0+cu128", Some("12.8")).dist("torchvision", "0.24.0+cpu").build();
        let conda = env("/opt/c")
            .conda()
            .torch("2.9.1", Some("12.9"))
            .installer("torch", "conda")
            .dist("torchvision", "0.23.0")
            .installer("torchvision", "conda")
            .build();
        let nightly = env("/v")
            .torch("2.12.0.dev20260301+cu130", Some("13.0"))
            .dist("torchvision", "0.20.1")
            .build();
        vec![
            Case::new("torch was upgraded alone", machines::a10(), vec![pinned]).finds(
                Error,
                Certain,
                &[
                    "torchvision 0.20.1 does not go with torch 2.6.0+cu124 in /v",
                    "Requires-Dist: torch (==2.5.1)",
                    "uv pip install --python /v/bin/python torch==2.6.0 'torchvision==0.21.*'",
                ],
            )
            .without(&["--index-url"]),
            Case::new("torch came from PyTorch's own index", machines::a10(), vec![labelled]).finds(
                Error,
                Certain,
                &["torch==2.6.0 'torchvision==0.21.*' --index-url https://download.pytorch.org/whl/cu124"],
            ),
            Case::new("the stored profile of row R0-07", machines::h200(), vec![profile]).finds(
                Warning,
                Likely,
                &["triton 3.5.0 is not the one torch 2.5.1+cu124", "triton==3.1.*"],
            ),
            Case::new("torch's own pin", machines::h200(), vec![by_metadata])
                .finds(Warning, Certain, &["Requires-Dist: triton==3.6.0", "pip install triton==3.6.0"]),
            Case::new("the pin of the torch that is there, not of a stale record", machines::h200(), vec![stale])
                .finds(Warning, Certain, &["Requires-Dist: triton==3.6.0"])
                .without(&["3.1.0"]),
            Case::new("no pin, so the table", machines::a10(), vec![table_only])
                .finds(Error, Likely, &["goes with torchaudio==2.8.*", "table of firstlight"]),
            Case::new("a CPU torchvision beside a CUDA torch", machines::a10(), vec![labels])
                .finds(Error, Likely, &["built for other hardware", "'torchvision==0.24.*'"]),
            Case::new("conda's torch stays conda's", machines::a10(), vec![conda]).finds(
                Error,
                Likely,
                &["conda install --prefix /opt/c -c conda-forge 'torchvision=0.24.*'"],
            ),
            Case::new("the recorded H200", machines::h200(), vec![recorded]),
            Case::new("releases against the stable ABI", machines::h200(), vec![stable(Some("2.11.0+cu132"))]),
            Case::new("no version file of torchaudio's was read", machines::h200(), vec![stable(None)]),
            Case::new("PyPI's torchaudio is for CUDA 13.0, and its torch for 13.2", machines::h200(), vec![stable(Some("2.11.0+cu130"))])
                .finds(
                    Error,
                    Certain,
                    &[
                        "torchaudio 2.11.0 is built for CUDA 13.0, torch 2.15.0+cu132 in /v for 13.2",
                        "torchaudio 2.11.0+cu130 [/v/lib/python3.12/site-packages/torchaudio/version.py]",
                        "_extension/utils.py]",
                        "pip install torch==2.14.1 torchaudio==2.11.0 'torchvision>=0.29'",
                    ],
                ),
            Case::new("torchaudio without CUDA compares nothing", machines::h200(), vec![stable(Some("2.11.0"))]),
            Case::new("a nightly", machines::h200(), vec![nightly]),
            Case::new("torchao of a later torch", machines::h200(), vec![
                env("/v").torch("2.8.0+cu128", Some("12.8")).dist("torchao", "0.18.0").build(),
            ])
            .finds(Error, Certain, &["torchao 0.18.0 in /v needs torch 2.10.0 or later, here is 2.8.0+cu128", "'torchao<0.18.0'"]),
            Case::new("torchao that compares first, and one beside its torch", machines::h200(), vec![
                env("/v").torch("2.8.0+cu128", Some("12.8")).dist("torchao", "0.17.0").build(),
                env("/w").torch("2.10.0+cu128", Some("12.8")).dist("torchao", "0.18.0").build(),
            ]),
            Case::new(
                "macOS needs no triton",
                machines::m3_max(),
                vec![env("/v").torch("2.9.1", None).dist("torchvision", "0.24.1").build()],
            ),
        ]
    }
}
