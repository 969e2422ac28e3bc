//! One file for each package: of those the plan allows, the one for this Python and this system.

use super::super::Unmet;
use super::super::download::Chosen;
use crate::wheel::WheelName;
use facts::{Dist, PackageOrigin, Plan, PlanTarget, PlannedFile, PlannedPackage};

/// Chooses, and says what is missing. A source that is cloned, or that the build finds in the index, has no file.
pub(super) fn choose(plan: &Plan, unmet: &mut Vec<Unmet>) -> Vec<Chosen> {
    let mut chosen = Vec::new();
    for package in &plan.packages {
        let found = match &package.origin {
            PackageOrigin::Wheel => one(package, plan).map(Some),
            PackageOrigin::Build(_) => {
                package.files.first().map(|file| source(package, file)).transpose()
            }
        };
        match found {
            Ok(found) => chosen.extend(found),
            Err(what) => unmet.push(Unmet::new(
                format!("{} {} {what}", package.name, package.version),
                "lock the plan for this machine: firstlight plan --lock",
            )),
        }
    }
    chosen
}

/// The source of a package that is built here.
fn source(package: &PlannedPackage, file: &PlannedFile) -> Result<Chosen, String> {
    let (url, sha256) = addressed(file)?;
    Ok(Chosen {
        package: package.name.clone(),
        version: package.version.clone(),
        file: file.name.clone(),
        url,
        sha256,
        bytes: file.bytes,
    })
}

fn one(package: &PlannedPackage, plan: &Plan) -> Result<Chosen, String> {
    if package.files.is_empty() {
        return Err("has no file in the plan: it is not locked".to_owned());
    }
    let fitting = package.files.iter().filter_map(|file| {
        let name = WheelName::parse(&file.name).ok()?;
        Some((rank(&name, &plan.python, &plan.target)?, file, name))
    });
    let best = fitting.max_by_key(|(rank, file, _)| (*rank, std::cmp::Reverse(&file.name)));
    let Some((_, file, name)) = best else {
        let (python, target) = (&plan.python, &plan.target);
        let first = &package.files[0].name;
        let others = match package.files.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} others"),
        };
        return Err(format!(
            "has no wheel for Python {python} on {} {}, but {first}{others}",
            target.os, target.arch
        ));
    };
    if Dist::normalise(&name.distribution) != Dist::normalise(&package.name) {
        return Err(format!("has a file of another name: {}", file.name));
    }
    let (url, sha256) = addressed(file)?;
    Ok(Chosen {
        package: package.name.clone(),
        // The wheel's own version has the local label that the plan may leave out.
        version: name.version,
        file: file.name.clone(),
        url,
        sha256,
        bytes: file.bytes,
    })
}

fn addressed(file: &PlannedFile) -> Result<(String, String), String> {
    let url =
        file.url.clone().ok_or_else(|| format!("has a file without an address: {}", file.name))?;
    let sha256 = file.sha256.as_deref().unwrap_or_default().to_ascii_lowercase();
    match sha256.len() == 64 && sha256.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok((url, sha256)),
        false => Err(format!("has a file without a SHA-256: {}", file.name)),
    }
}

/// How closely a wheel is made for a Python and a system; `None` where it is not for them. Closer is greater, in the order
/// that PEP 425 gives: the exact interpreter before the stable ABI before any Python, and newer platform tags first.
fn rank(name: &WheelName, python: &str, target: &PlanTarget) -> Option<(u32, u32, u32)> {
    let minor: u32 = python.split('.').nth(1)?.parse().ok()?;
    let tag = format!("cp3{minor}");
    let by_python =
        name.pythons.iter().flat_map(|python| name.abis.iter().map(move |abi| (python, abi)));
    let closeness = by_python.filter_map(|(python, abi)| match (python.as_str(), abi.as_str()) {
        (found, abi) if found == tag && (abi == tag || abi == "none") => Some((3, minor)),
        (found, "abi3") => {
            let least: u32 = found.strip_prefix("cp3")?.parse().ok()?;
            (least <= minor).then_some((2, least))
        }
        ("py3", "none") => Some((1, 0)),
        (found, "none") if found == format!("py3{minor}") => Some((1, minor)),
        _ => None,
    });
    let (kind, least) = closeness.max()?;
    let platform = name.platforms.iter().filter_map(|tag| platform(tag, target)).max()?;
    Some((kind, least, platform))
}

/// How new a platform tag is, where it is for the target.
fn platform(tag: &str, target: &PlanTarget) -> Option<u32> {
    if tag == "any" {
        return Some(0);
    }
    let arch = match (target.os.as_str(), target.arch.as_str()) {
        ("macos", "aarch64") => "arm64",
        (_, arch) => arch,
    };
    let universal = || tag.strip_suffix("_universal2").filter(|_| target.os == "macos");
    let system = tag.strip_suffix(&format!("_{arch}")).or_else(universal)?;
    let release = |text: &str| {
        let (major, minor) = text.split_once(['_', '.'])?;
        Some(major.parse::<u32>().ok()? * 100 + minor.parse::<u32>().ok()?)
    };
    let newest = |text: Option<&String>| text.and_then(|text| release(text)).unwrap_or(u32::MAX);
    if target.os == "macos" {
        return release(system.strip_prefix("macosx_")?);
    }
    let glibc = match system {
        // The index's own tag, which promises nothing about glibc; the rules read the file.
        "linux" => 1,
        "manylinux1" => 205,
        "manylinux2010" => 212,
        "manylinux2014" => 217,
        other => release(other.strip_prefix("manylinux_")?)?,
    };
    (glibc <= newest(target.glibc.as_ref())).then_some(glibc)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(os: &str, arch: &str, glibc: Option<&str>) -> PlanTarget {
        let value = serde_json::json!({
            "name": "this", "os": os, "arch": arch, "glibc": glibc, "gpus": [], "driver": null,
            "cuda_limit": null, "tegra": false, "memory_bytes": null, "source": "this test",
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_closest_wheel_is_chosen() {
        let linux = target("linux", "x86_64", Some("2.28"));
        let check = |files: &[&str], target: &PlanTarget, expect: Option<&str>| {
            let ranked = files.iter().filter_map(|file| {
                let name = WheelName::parse(&format!("p-1-{file}.whl")).unwrap();
                Some((rank(&name, "3.12", target)?, *file))
            });
            assert_eq!(ranked.max().map(|(_, file)| file), expect, "{files:?}");
        };
        check(
            &["py3-none-any", "cp312-cp312-manylinux_2_17_x86_64"],
            &linux,
            Some("cp312-cp312-manylinux_2_17_x86_64"),
        );
        check(
            &["cp38-abi3-linux_x86_64", "cp39-abi3-linux_x86_64"],
            &linux,
            Some("cp39-abi3-linux_x86_64"),
        );
        check(
            &["cp313-abi3-linux_x86_64", "cp311-cp311-linux_x86_64", "cp312-cp312t-linux_x86_64"],
            &linux,
            None,
        );
        let newer = "cp312-cp312-manylinux_2_34_x86_64";
        let older = "cp312-cp312-manylinux2014_x86_64";
        check(&[newer, older], &linux, Some(older));
        check(&[newer, older], &target("linux", "x86_64", Some("2.39")), Some(newer));
        check(&[newer], &target("linux", "aarch64", Some("2.39")), None);
        check(&["cp312-cp312-musllinux_1_2_x86_64", "cp312-cp312-win_amd64"], &linux, None);
        check(&["py2.py3-none-any"], &linux, Some("py2.py3-none-any"));
        let mac = target("macos", "aarch64", None);
        check(&["cp312-cp312-macosx_11_0_arm64"], &mac, Some("cp312-cp312-macosx_11_0_arm64"));
        check(
            &["cp312-cp312-macosx_10_9_universal2"],
            &mac,
            Some("cp312-cp312-macosx_10_9_universal2"),
        );
        check(&["cp312-cp312-macosx_11_0_arm64"], &linux, None);
    }
}
