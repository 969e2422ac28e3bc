//! Requirements among the installed distributions of an environment: the lines of their METADATA whose markers hold on
//! this machine, including those of requested extras.

use crate::requirement::{self, Requirement};
use crate::torch_build::is_leftover;
use facts::{Dist, Machine, Platform, PyEnv};
use knowledge::marker::{self, Marker};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One requirement that applies here.
#[derive(Debug)]
pub(crate) struct DistRequirement<'a> {
    /// The distribution that requires it.
    pub(crate) dist: &'a Dist,
    /// The requirement.
    pub(crate) wanted: Requirement,
}

/// Maximum number of steps from an extra to extras that it requests in turn; published packages have two.
const DEEPEST: usize = 4;

/// Every requirement that applies in an environment.
pub(crate) fn applicable_requirements<'a>(
    machine: &Machine,
    env: &'a PyEnv,
) -> Vec<DistRequirement<'a>> {
    let Some(platform) = platform(machine, env) else { return Vec::new() };
    let live = env.dists.iter().filter(|dist| !is_leftover(dist));
    let lines: Vec<(&Dist, Arc<str>, Requirement, Option<Marker>)> = live
        .flat_map(|dist| {
            let name: Arc<str> = Dist::normalise(&dist.name).into();
            dist.requires.iter().map(move |line| (dist, name.clone(), line))
        })
        .filter_map(|(dist, name, line)| {
            let wanted = requirement::parse(line)?;
            let marker = match wanted.marker.as_str() {
                "" => None,
                text => Some(Marker::published(text).ok()?),
            };
            Some((dist, name, wanted, marker))
        })
        .collect();
    let mut extras: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let holds = |name: &str, marker: &Option<Marker>, extras: &BTreeMap<&str, BTreeSet<String>>| {
        marker.as_ref().is_none_or(|marker| {
            let asked = extras.get(name).into_iter().flatten();
            let asked: Vec<&str> = asked.map(String::as_str).collect();
            marker.evaluate(platform, &asked) == Some(true)
        })
    };
    for _ in 0..DEEPEST {
        let before: usize = extras.values().map(BTreeSet::len).sum();
        let mut more: Vec<(&str, &String)> = Vec::new();
        for (_, name, wanted, marker) in &lines {
            if !wanted.extras.is_empty() && holds(name, marker, &extras) {
                more.extend(wanted.extras.iter().map(|extra| (wanted.name.as_str(), extra)));
            }
        }
        for (name, extra) in more {
            extras.entry(name).or_default().insert(extra.clone());
        }
        if extras.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let kept: Vec<bool> =
        lines.iter().map(|(_, name, _, marker)| holds(name, marker, &extras)).collect();
    let all = lines.into_iter().zip(kept).filter(|(_, kept)| *kept);
    all.map(|((dist, _, wanted, _), _)| DistRequirement { dist, wanted }).collect()
}

/// The platform that markers are evaluated for; `None` if the platform or the environment's Python is unknown.
fn platform(machine: &Machine, env: &PyEnv) -> Option<marker::MarkerEnvironment<'static>> {
    let (os, arch) = match machine.platform {
        Platform::LinuxX86_64 => ("linux", "x86_64"),
        Platform::LinuxAarch64 => ("linux", "aarch64"),
        Platform::MacosAarch64 => ("macos", "aarch64"),
        Platform::MacosX86_64 => ("macos", "x86_64"),
        Platform::Unknown => return None,
    };
    let python = Some(knowledge::minor_of(&env.interpreter.version.as_ref()?.value)?);
    Some(marker::MarkerEnvironment { os, arch, python })
}

#[cfg(test)]
mod tests {
    use super::applicable_requirements;
    use crate::test_support::{env, machines};

    #[test]
    fn markers_and_extras_select_requirements() {
        let env = env("/v")
            .dist("torch", "2.15.0")
            .requires("torch", "cuda-toolkit[cublas,cudart]==13.2.2; platform_system == \"Linux\"")
            .requires("torch", "colorama; sys_platform == 'win32'")
            .requires("torch", "optree>=0.13; extra == \"optree\"")
            .requires("torch", "old; python_version < '3.12'")
            .requires("torch", "odd; whatever == 'x'")
            .dist("cuda-toolkit", "13.2.2")
            .requires("cuda-toolkit", "nvidia-cublas==13.4.*; extra == 'cublas'")
            .requires("cuda-toolkit", "nvidia-npp==13.*; extra == 'npp'")
            .requires("cuda-toolkit", "cuda-toolkit[nvrtc]; extra == 'cudart'")
            .requires("cuda-toolkit", "nvidia-cuda-nvrtc==13.2.*; extra == 'nvrtc'")
            .build();
        let found: Vec<String> = applicable_requirements(&machines::h200(), &env)
            .into_iter()
            .map(|want| want.wanted.name)
            .collect();
        assert_eq!(found, ["cuda-toolkit", "nvidia-cublas", "cuda-toolkit", "nvidia-cuda-nvrtc"]);
    }
}
