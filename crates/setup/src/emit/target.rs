//! A plan's machine in the terms of Python's tools.

use facts::{InstallPlan, PlanTarget};

/// glibc's minor versions that uv knows as `manylinux_2_N`.
const GLIBC: &[u32] = &[17, 28, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40];

/// The environment marker (PEP 508) of the machine.
pub(super) fn environment(target: &PlanTarget) -> String {
    // Python uses two names for 64-bit Arm.
    let machine =
        if target.os == "macos" && target.arch == "aarch64" { "arm64" } else { &target.arch };
    format!("{} and platform_machine == '{machine}'", system(target))
}

/// The marker of its operating system only.
pub(super) fn system(target: &PlanTarget) -> &'static str {
    if target.os == "macos" { "sys_platform == 'darwin'" } else { "sys_platform == 'linux'" }
}

/// The machine for uv's `--python-platform`: the newest glibc that uv knows and the machine has.
pub(crate) fn python_platform(target: &PlanTarget) -> String {
    let arch = &target.arch;
    if target.os == "macos" {
        return format!("{arch}-apple-darwin");
    }
    let has = target.glibc.as_deref().and_then(|glibc| glibc.strip_prefix("2.")?.parse().ok());
    // Without a version only what runs everywhere is safe; torch's own wheels require 2.28.
    let has = has.unwrap_or(28);
    let known = GLIBC.iter().rev().find(|known| **known <= has).unwrap_or(&GLIBC[0]);
    format!("{arch}-manylinux_2_{known}")
}

/// The name of a container with the plan's environment, if containers can use the accelerator: on a Mac they have no
/// Metal, and a Jetson needs special images.
pub(super) fn container(plan: &InstallPlan) -> Option<&'static str> {
    let PlanTarget { os, arch, tegra, .. } = &plan.target;
    if os != "linux" || *tegra {
        return None;
    }
    match (arch.as_str(), plan.cuda.is_some()) {
        ("aarch64", true) => Some("arm64-cuda"),
        ("aarch64", false) => Some("arm64-cpu"),
        ("x86_64", true) => Some("x86_64-cuda"),
        ("x86_64", false) => Some("x86_64-cpu"),
        _ => None,
    }
}
