//! Messages of pip and uv: no wheel for this platform, metadata that disagrees, an environment that refuses installs.

use super::{Entity, Form, form};
use crate::explain::cause::Cause;
use crate::explain::modules::installed;
use crate::rules::PastedError;
use facts::Dist;
use knowledge::{Version, dotted, torch_series};
use std::cmp::Ordering;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("{wheel} is not a supported wheel on this platform", wheel),
        form(
            "has inconsistent version: expected '{expected}', but metadata has '{metadata}'",
            inconsistent,
        ),
        form(
            "has inconsistent version: filename has '{expected}', but metadata has '{metadata}'",
            inconsistent,
        ),
        form("inconsistent version: expected '{expected}'", inconsistent),
        form("has inconsistent name: ", inconsistent),
        form("Invalid cross-device link", cross_device),
        form("externally-managed-environment", managed),
        form("This environment is externally managed", managed),
        form("The interpreter at * is externally managed", managed),
        form(
            "Could not find a version that satisfies the requirement {package} (from versions: none)",
            none,
        ),
        form("Could not find a version that satisfies the requirement {package}", none),
        form("No matching distribution found for {package}", none),
        form("Because there is no version of {package} and you require", none),
        form("Because {package} was not found in the package registry", none),
        form("Could not build wheels for {package}, which is required", build),
        form("Could not build wheels for {package}", build),
        form("Failed building wheel for {package}", build),
        form("Failed to build '{package}'", build),
        form(
            "Failed to build installable wheels for some pyproject.toml based projects ({package})",
            build,
        ),
        form("error: subprocess-exited-with-error", step),
        form("error: metadata-generation-failed", step),
        form("Getting requirements to build wheel did not run successfully", step),
        form("Preparing metadata (pyproject.toml) did not run successfully", step),
        form("Hash mismatch for '{package}'", hash),
        form("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", hash),
        form("requires a different Python: {here} not in '{wanted}'", python),
        form("requires-python value of {wanted}", python),
        form("ResolutionImpossible: for help visit", conflict),
        form("we can conclude that your requirements are unsatisfiable", conflict),
        form("No virtual environment found; run 'uv venv'", no_environment),
    ]
}

/// The name and the version of `torch==2.10.0`.
pub(super) fn named(word: &str) -> (String, String) {
    let name = word.split(['=', '<', '>', '!', '~', '[', ';', '@']).next().unwrap_or(word);
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    let version = word[word.find("==").map_or(word.len(), |at| at + 2)..]
        .trim_end_matches(['.', ',', ':', ')']);
    (Dist::normalise(name), version.to_owned())
}

/// Python, processor and C library of the environment that installs here.
pub(super) fn here(mut entity: Entity, seen: &PastedError) -> Entity {
    if let Some(env) = seen.env()
        && let Some(version) = &env.interpreter.version
    {
        entity = entity.evidence(format!("Python {}", version.value), version.source.clone());
    }
    let machine = seen.machine();
    entity = entity.evidence(machine.platform.to_string(), "uname");
    if let Some(libc) = &machine.os.libc {
        entity = entity.evidence(libc.value.clone(), libc.source.clone());
    }
    entity
}

fn wheel(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let file = seen.word("wheel")?.rsplit('/').next()?.to_owned();
    let stem = file.trim_end_matches(".whl");
    let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
    let [platform, abi, python, _] = parts.as_slice() else { return None };
    let entity = Entity::new("resolver", file.clone())
        .meaning(format!(
            "The wheel is for Python {python} with ABI {abi} on {platform}, and the Python that runs pip is another one in one of the three. Take the wheel whose name \
             has this Python's tag, or make an environment with that Python; an old pip also refuses newer manylinux names."
        ))
        .fix([
            format!("{} -m pip debug --verbose | grep -m5 -A3 'Compatible tags'", seen.installer().python()),
            format!("{} -m pip install --upgrade pip", seen.installer().python()),
        ])
        .package(stem.split('-').next().unwrap_or(stem))
        .rank(4);
    Some(here(entity, seen))
}

fn inconsistent(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let expected = seen.word("expected").unwrap_or("another version");
    let metadata = seen.word("metadata").unwrap_or("its own");
    Some(
        Entity::new("resolver", format!("inconsistent version {expected}"))
            .meaning(format!(
                "The file's name says {expected}, and the metadata inside says {metadata}: the publisher renamed the wheel or built it with another version. Nothing on this \
                 machine is wrong. Take another build of the package (from PyPI or the project's index); pip accepts such a file in some cases, and uv does with \
                 UV_SKIP_WHEEL_FILENAME_CHECK=1, or with a `dependency-metadata` entry that states the version."
            ))
            .fix(["UV_SKIP_WHEEL_FILENAME_CHECK=1 uv pip install ...", "# or another build of the package; report it to the publisher"])
            .rank(4),
    )
}

fn cross_device(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let wheel = seen.text.contains("Guessing wheel URL") || seen.text.contains(".whl");
    let found = match wheel {
        true => {
            " The prebuilt wheel was found and downloaded; only its move failed (`Guessing wheel URL` is printed whether or not there is a wheel)."
        }
        false => "",
    };
    Some(
        Entity::new("errno", "EXDEV (18): invalid cross-device link")
            .meaning(format!(
                "A file was to be moved by renaming or hard-linked between two file systems, which the kernel refuses: the temporary folder and the cache (or the \
                 environment) are on different ones.{found} Put both on one file system."
            ))
            .fix([
                "mkdir -p ~/.cache/tmp && export TMPDIR=~/.cache/tmp  # on the cache's file system; then install again",
                "df -h /tmp ~/.cache  # two file systems",
                "export UV_LINK_MODE=copy  # for uv's links from its cache into an environment",
            ])
            .rank(5),
    )
}

fn managed(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let mut entity = Entity::new("resolver", "externally managed environment")
        .meaning(
            "The system's package manager owns this Python (PEP 668), and pip refuses to change it. Install into a virtual environment; --break-system-packages can break \
             tools of the system.",
        )
        .fix(["uv venv  # or: python3 -m venv .venv", "source .venv/bin/activate", "uv pip install PACKAGE  # or: python -m pip install PACKAGE"])
        .rank(4);
    if let Some(env) = seen.env() {
        entity =
            entity.evidence(format!("an environment is at {}", env.root), env.found_by.clone());
    }
    Some(entity)
}

/// The releases that pip found for this Python and machine: `(from versions: 2.2.0, 2.2.1)`.
fn listed(text: &str) -> Vec<Version> {
    let list = text.split_once("(from versions:").and_then(|(_, rest)| rest.split_once(')'));
    let words = list.map_or("", |(words, _)| words).split(',');
    words.filter_map(|word| Version::parse(word.trim())).collect()
}

fn newest(listed: &[Version]) -> Option<&Version> {
    listed.iter().max_by(|one, other| one.compare(other))
}

/// Why a release is not among those that pip found.
struct Absence {
    reason: String,
    /// Whether the first cause to check is that the release was never published.
    unpublished: bool,
    /// Whether no other cause is possible.
    decided: bool,
}

fn absence(name: &str, version: &str, listed: &[Version]) -> Option<Absence> {
    let wanted = Version::parse(version)?;
    let oldest = listed.iter().min_by(|one, other| one.compare(other))?;
    let newest = newest(listed)?;
    // torch's series are all known: 1.0 to 1.13, 2.0, and those of the table.
    let series = wanted.minor();
    let known = torch_series::series(series).filter(|_| name == "torch");
    let later = torch_series::all().last().is_some_and(|last| series > last.torch);
    let published = known.is_some() || series <= (1, 13) || series == (2, 0) || later;
    if name == "torch" && !published {
        let reason = format!("PyTorch has no release {}.", dotted(series));
        return Some(Absence { reason, unpublished: true, decided: true });
    }
    let (before, after) = (wanted.compare(oldest), wanted.compare(newest));
    let (oldest, newest) = (oldest.public(), newest.public());
    let reason = if after == Ordering::Greater {
        let pythons = known.map_or(String::new(), |row| {
            let (first, last) = row.python;
            format!(
                " torch {} has wheels for Python {} to {}.",
                dotted(series),
                dotted(first),
                dotted(last)
            )
        });
        format!(
            "{version} is newer than every release that fits here, the newest of which is {newest}: this Python or system is too old for it, or it was never \
             published.{pythons}"
        )
    } else if before == Ordering::Less {
        format!(
            "{version} is older than every release that fits here, the oldest of which is {oldest}: this Python is too new for it, or it has no wheel for this \
             processor."
        )
    } else {
        format!(
            "Older and newer releases fit here, and {version} is not among them: it was never published, was withdrawn, or has no wheel for this system."
        )
    };
    let between = before == Ordering::Greater && after == Ordering::Less;
    Some(Absence { reason, unpublished: between, decided: false })
}

/// The meaning of a list that has only newer releases than a range asks for, `cumm<0.5.0,>=0.4.5`.
fn beyond_range(name: &str, text: &str, listed: &[Version]) -> Option<String> {
    let rest = text.split_once("satisfies the requirement ")?.1.strip_prefix(name)?;
    let range = rest.split([' ', '(']).next()?;
    let (_, upper) = range.split_once('<')?;
    let upper = upper.trim_start_matches('=').split(',').next()?;
    let upper = Version::parse(upper)?;
    let newer = listed.iter().filter(|it| it.compare(&upper) != Ordering::Less).count();
    (newer > 0 && newer * 2 >= listed.len()).then(|| {
        format!(
            "{name}{range} is asked for, and the releases of {name} that fit this Python and system are newer: wheels of that range exist for older Pythons (or another \
             processor) alone. Take an older Python, or a newer release of the package that asks for this range."
        )
    })
}

fn none(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (name, mut version) = named(seen.word("package")?);
    let text = seen.text;
    // A word at the end of a pattern does not include the version.
    if version.is_empty() {
        let rest = text.split_once(&format!("{name}==")).map_or("", |(_, rest)| rest);
        version = rest
            .split(|c: char| !(c.is_ascii_alphanumeric() || ".+".contains(c)))
            .next()
            .unwrap_or("")
            .to_owned();
    }
    (!name.is_empty()).then_some(())?;
    let known = super::super::modules::is_known(&name.replace('-', "_"))
        || installed(seen, &name).is_some();
    let local = version.contains('+');
    let nothing = text.contains("from versions: none)");
    let mut words = format!(
        "The index that was asked has no file of {name}{} for this Python, processor and C library.",
        if version.is_empty() { String::new() } else { format!(" {version}") }
    );
    let listed = listed(text);
    let absence = absence(&name, &version, &listed);
    if let Some(Absence { reason, .. }) = &absence {
        words = format!("{reason} The releases in the brackets do fit this Python and platform.");
    } else if !nothing && text.contains("from versions:") {
        words.push_str(" The releases in the brackets do fit this Python and platform.");
    }
    let gap = beyond_range(&name, text, &listed);
    if let Some(gap) = &gap {
        words = gap.clone();
    }
    let shown = if version.is_empty() { name.clone() } else { format!("{name}=={version}") };
    let mut causes = Vec::new();
    let python_check = "python -c 'import platform, sys; print(sys.version, platform.machine(), platform.libc_ver())'".to_owned();
    if !local {
        causes.push(
            Cause::new("The release has no wheel for this Python, processor or C library: a Python newer than an old release or older than a new one, 32 bits, Arm, musl.")
                .check([python_check.clone(), format!("python -m pip index versions {name}  # what fits this Python")])
                .fix([match gap.is_some() {
                    true => "uv venv --python 3.10  # a Python of the time of that release",
                    false => "uv venv --python 3.12  # a Python that has wheels, or another release",
                }]),
        );
    }
    let other_index = text.contains("download.pytorch.org")
        || text.contains("--index-url")
        || name.starts_with("torch");
    if local || other_index {
        causes.push(
            Cause::new(format!("The index that was asked lists the release with a label or not at all: PyTorch's indexes name builds {name}==X.Y.Z+cu128, and PyPI has none with a label."))
                .check([format!("python -m pip index versions {name} --index-url https://download.pytorch.org/whl/cu128  # the index that was asked")])
                .fix([format!("uv pip install {} --torch-backend=auto", if version.is_empty() { name.clone() } else { format!("{name}=={}", version.split('+').next().unwrap_or("")) })]),
        );
    }
    if !version.is_empty() {
        causes.push(
            Cause::new(format!("{shown} was never published, or was withdrawn."))
                .check([format!("python -m pip index versions {name}")])
                .fix(match newest(&listed) {
                    Some(newest) => vec![
                        "# one of the releases in the brackets; the newest:".to_owned(),
                        String::from(
                            seen.installer()
                                .install(&[format!("{name}=={}", newest.public())], None),
                        ),
                    ],
                    None => vec!["# a release that the list names".to_owned()],
                }),
        );
        if absence.as_ref().is_some_and(|it| it.unpublished) {
            causes.rotate_right(1);
        }
    }
    if !known {
        causes.push(
            Cause::new("The name is misspelt or belongs to a package of another index.")
                .check([format!("python -m pip index versions {name}")])
                .fix(["# the name on the project's installation page"]),
        );
    }
    if listed.is_empty() {
        causes.push(
            Cause::new("The index was not reached (a proxy, no network), so that the list of releases is empty.")
                .check(["curl -sI https://pypi.org/simple/ | head -1; env | grep -i _proxy; python -m pip config list"])
                .fix(["export HTTPS_PROXY=http://PROXY:PORT  # where one is needed"]),
        );
    }
    if absence.as_ref().is_some_and(|it| it.decided) {
        causes.truncate(1);
    }
    let label = version.split_once('+').map(|(_, label)| label.to_owned());
    let index = label.filter(|label| label.starts_with("cu") || label == "cpu").map(|label| {
        format!(
            "{} --index-url https://download.pytorch.org/whl/{label}",
            seen.installer().install(&[format!("{name}=={version}")], None)
        )
    });
    if let (Some(line), Some(labelled)) = (index, causes.first_mut().filter(|_| local)) {
        labelled.fix.insert(0, line);
    }
    let entity = Entity::new("resolver", format!("no distribution of {name}"))
        .meaning(words)
        .causes(causes)
        .fix([format!("firstlight plan {name}")])
        .package(name)
        .rank(if absence.is_some() { 4 } else { 3 });
    Some(here(entity, seen))
}

fn build(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (name, _) = named(seen.word("package")?);
    (!name.is_empty()).then_some(())?;
    let entity = Entity::new("resolver", format!("build of {name}"))
        .meaning(format!(
            "No prebuilt wheel of {name} was taken, and compiling it failed. This line is the end of it: the compiler's or setup's own error is above it in the log, \
             which `--verbose` shows. A wheel for this torch, CUDA and Python spares the build."
        ))
        .fix([
            format!("{} --verbose 2>&1 | tee build.log", seen.installer().install(std::slice::from_ref(&name), None)),
            "firstlight explain build.log".to_owned(),
            format!("firstlight plan {name}  # a combination that has a wheel"),
        ])
        .package(name)
        .rank(1);
    Some(entity)
}

/// pip's frame around an error of a package's build, without the error.
fn step(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let built = super::build_error::built_package(seen.text);
    let package = built.clone().unwrap_or_else(|| "PACKAGE".to_owned());
    let mut entity = Entity::new("resolver", "a build step failed")
        .meaning(
            "pip took no prebuilt wheel and ran the package's own build or setup, which failed. This line says no more: the cause is the first error below `╰─>`, above this \
             line or in the output of --verbose.",
        )
        .fix([
            format!("{} --verbose 2>&1 | tee build.log", seen.installer().install(std::slice::from_ref(&package), None)),
            "firstlight explain build.log".to_owned(),
            format!("firstlight plan {package}  # a combination that has a wheel"),
            format!("{} --only-binary :all:  # a release that has a wheel, if there is one", seen.installer().install(std::slice::from_ref(&package), None)),
        ])
        .rank(0);
    if let Some(package) = built {
        entity = entity.package(package);
    }
    Some(entity)
}

fn hash(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("resolver", "hash mismatch")
            .meaning(
                "The downloaded file is not the one whose hash the lock or the requirements file has: the file was replaced at its address (PyTorch's indexes have re-uploaded \
                 wheels), a mirror or proxy changed it, or the cache is damaged. Lock again only if you trust the new file.",
            )
            .fix(["uv cache clean PACKAGE  # pip cache remove PACKAGE", "uv lock --upgrade-package PACKAGE"])
            .rank(3),
    )
}

fn python(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let wanted = seen.word("wanted")?;
    let entity = Entity::new("resolver", format!("Python {wanted}"))
        .meaning(format!("The package states that it needs Python {wanted}, and this environment's Python is another. Make an environment with a Python that fits, or take a release that supports this one."))
        .fix(["uv venv --python 3.12"])
        .rank(3);
    Some(here(entity, seen))
}

fn conflict(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("resolver", "requirements conflict")
            .meaning(
                "The resolver found no set of releases that satisfies every requirement: the lines above name the pair that excludes each other. Loosen a pin, or leave one of \
                 the two packages out; vllm, sglang and others pin one torch each and need separate environments.",
            )
            .fix(["firstlight plan PACKAGE ...  # names the requirements that cannot all hold"])
            .rank(1),
    )
}

fn no_environment(_: &PastedError, _: &'static str) -> Option<Entity> {
    Some(
        Entity::new("resolver", "no virtual environment")
            .meaning("uv installs into a virtual environment, and there is none in this folder or active.")
            .fix(["uv venv", "source .venv/bin/activate"])
            .rank(3),
    )
}
