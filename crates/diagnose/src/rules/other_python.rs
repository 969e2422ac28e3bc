use super::{Context, Need, Rule, Text};
use crate::remedy::{Installer, text};
use crate::torch_build::live_dist;
use facts::CompactCollect;
use facts::{Confidence, Dist, Finding, PyEnv, Severity};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const RULE: Rule = Rule {
    id: "other-python",
    title: "a compiled module for another Python release",
    about: "\
CPython looks for an extension module under the names x.cpython-312-x86_64-linux-gnu.so (with its own release),
x.abi3.so and x.so. It ignores a file named for another release.

This happens when a wheel is tagged for one release but was built with another, when a file was renamed so that an
installer accepts it, when packages were copied between environments, or when the environment's Python was upgraded in
place.

It shows as
  ModuleNotFoundError: No module named 'flash_attn_2_cuda'
although the file is there.

Detected in the file names, which Python's build tools write. A package with one file for each of several releases is
fine if this release is among them.

Install the wheel for this release of Python, or build the package here.",
    links: &["https://peps.python.org/pep-3149/"],
    texts: &[
        Text::new("No module named 'flash_attn_2_cuda'", "ModuleNotFoundError: No module named 'flash_attn_2_cuda'"),
        Text::new("No module named 'selective_scan_cuda'", "ModuleNotFoundError: No module named 'selective_scan_cuda'"),
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(judge).collect()
}

/// The files of one module in one folder, by the Python release in their names.
#[derive(Default)]
struct Module<'a> {
    /// Release (`310`, `313t`) and path, without files for every release.
    releases: BTreeMap<&'a str, &'a str>,
    /// Whether a file is for every release: `.abi3.so` or `.so`.
    for_all: bool,
}

fn judge(env: &PyEnv) -> Vec<Finding> {
    let Some(own) = own_release(env) else { return Vec::new() };
    let mut modules: BTreeMap<(&str, &str), Module> = BTreeMap::new();
    for file in &env.native_files {
        let Some(dist) = file.dist.as_deref() else { continue };
        let Some(stem) = file.path.strip_suffix(".so") else { continue };
        let (module, release) = match stem.rsplit_once(".cpython-") {
            Some((module, platform)) => (module, platform.split('-').next()),
            None => (stem.strip_suffix(".abi3").unwrap_or(stem), None),
        };
        let module = modules.entry((dist, module)).or_default();
        match release {
            Some(release) => drop(module.releases.insert(release, &file.path)),
            None => module.for_all = true,
        }
    }
    let unseen = |module: &Module| !module.for_all && !module.releases.contains_key(own.as_str());
    let mut strays: BTreeMap<&str, Vec<&Module>> = BTreeMap::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for ((dist, name), module) in &modules {
        if unseen(module) {
            strays.entry(dist).or_default().push(module);
        } else if !name.rsplit('/').next().unwrap_or(name).starts_with("lib") {
            seen.insert(dist);
        }
    }
    // If Python can import other modules of the package, one with another name is loaded by path (torchao, sgl-kernel).
    strays.retain(|dist, _| !seen.contains(dist) || is_tagged_for_another(env, dist, &own));
    strays.into_iter().map(|(dist, modules)| finding(env, &own, dist, &modules)).collect()
}

/// Whether every tag of a wheel is for another release of CPython.
fn is_tagged_for_another(env: &PyEnv, dist: &str, own: &str) -> bool {
    let Some(dist) = live_dist(env, dist) else { return false };
    let other = |tag: &String| {
        let mut parts = tag.split('-');
        let python = parts.next().and_then(|part| part.strip_prefix("cp"));
        python.is_some_and(|release| release != own.trim_end_matches('t'))
            && parts.next().is_some_and(|abi| abi.starts_with("cp"))
    };
    !dist.tags.is_empty() && dist.tags.iter().all(other)
}

/// The release as in file names: `312`, `313t`.
pub(super) fn own_release(env: &PyEnv) -> Option<String> {
    if let Some(tag) = &env.interpreter.abi_tag {
        return tag.value.strip_prefix("cp").map(str::to_owned);
    }
    let version = &env.interpreter.version.as_ref()?.value;
    let mut numbers = version.split('.');
    Some(format!("{}{}", numbers.next()?, numbers.next()?))
}

fn finding(env: &PyEnv, own: &str, dist: &str, modules: &[&Module]) -> Finding {
    let releases: BTreeSet<String> =
        modules.iter().flat_map(|module| module.releases.keys()).map(|it| dotted(it)).compact_set();
    let releases = releases.into_iter().collect::<Vec<_>>().join(", ");
    let mut draft = RULE.finding(
        Severity::Error,
        Confidence::Certain,
        format!("{dist} in {} is compiled for Python {releases}, not {}", env.root, dotted(own)),
    );
    // A few names are enough.
    for (release, path) in modules.iter().flat_map(|module| &module.releases).take(3) {
        draft = draft.evidence(format!("its name is for Python {}", dotted(release)), *path);
    }
    if let Some(dist) = live_dist(env, dist).filter(|dist| !dist.tags.is_empty()) {
        let said = format!("the wheel's label says {}", dist.tags.join(", "));
        draft = draft.evidence(said, format!("{}/WHEEL", dist.path));
    }
    draft
        .cause("Python imports a compiled module only if its file name is for the same release, so this one is not found.")
        .fix(Installer::of(env).build_for_this_python(&[&Dist::normalise(dist)]))
        .finish()
}

/// `3.12` of `312`.
pub(super) fn dotted(release: &str) -> String {
    match release.split_at_checked(1) {
        Some((major, minor)) if !minor.is_empty() => format!("{major}.{minor}"),
        _ => release.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    const PLATFORM: &str = "x86_64-linux-gnu.so";

    pub(super) fn cases() -> Vec<Case> {
        let flash = |names: &[&str]| {
            let start = env("/v").dist("flash-attn", "2.8.3");
            let add =
                |env: crate::test_support::EnvBuilder, name: &&str| env.native("flash-attn", name);
            vec![names.iter().fold(start, add).build()]
        };
        let file = |release: &str| format!("flash_attn_2_cuda.cpython-{release}-{PLATFORM}");
        let (old, own, threaded) = (file("310"), file("312"), file("312t"));
        vec![
            Case::new("a file for 3.10", machines::a10(), flash(&[&old])).finds(
                Error,
                Certain,
                &[
                    "flash-attn in /v is compiled for Python 3.10, not 3.12",
                    "flash_attn_2_cuda.cpython-310-",
                    "--no-build-isolation --no-binary flash-attn flash-attn",
                ],
            ),
            Case::new("free-threaded only", machines::a10(), flash(&[&threaded])).finds(
                Error,
                Certain,
                &["Python 3.12t, not 3.12"],
            ),
            Case::new("the same release", machines::a10(), flash(&[&own])),
            Case::new("one for each release", machines::a10(), flash(&[&old, &own])),
            Case::new("the stable ABI", machines::a10(), flash(&["flash_attn_2_cuda.abi3.so"])),
            Case::new(
                "the stable ABI and one release",
                machines::a10(),
                flash(&[&old, "flash_attn_2_cuda.abi3.so"]),
            ),
            Case::new("a plain library", machines::a10(), flash(&["lib/libflash.so.1"])),
            Case::new(
                "torchao 0.18: one name of 3.10 among modules that load",
                machines::a10(),
                flash(&[
                    "torchao/_C_cutlass_90a.abi3.so",
                    "torchao/_C_mxfp8.cpython-310-x86_64-linux-gnu.so",
                ]),
            ),
            Case::new(
                "a library next to the module",
                machines::a10(),
                flash(&[&old, "lib/libflash.so"]),
            )
            .finds(Error, Certain, &["compiled for Python 3.10, not 3.12"]),
            Case::new("a wheel with tags only for 3.10", machines::a10(), {
                let mut envs = flash(&[&old, "flash_attn/_C.abi3.so"]);
                envs[0].dists[0].tags = vec!["cp310-cp310-manylinux_2_28_x86_64".into()];
                envs
            })
            .finds(Error, Certain, &["the wheel's label says cp310-cp310"]),
        ]
    }
}
