//! Machines known by name, so that a plan can be made for one that is not at hand.

use crate::table::{optional_minor, rows};
use crate::{Arch, Sm, Source};
use serde::Deserialize;
use std::sync::LazyLock;

/// One kind of machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is called: `gh200`.
    pub name: String,
    /// One line about it.
    pub about: String,
    /// `linux` or `macos`.
    pub os: String,
    /// Its processor.
    pub arch: Arch,
    /// glibc's version on Linux.
    pub glibc: Option<String>,
    /// Compute capability of its NVIDIA GPUs.
    #[serde(default, deserialize_with = "optional_minor")]
    pub gpu: Option<Sm>,
    /// Whether it is a Tegra (Jetson).
    #[serde(default)]
    pub tegra: bool,
    /// Memory in units of 10^9 bytes, where every machine of the name has the same.
    pub memory_gb: Option<u64>,
    /// Where it was read.
    pub source: Source,
}

static MACHINES: LazyLock<Vec<Machine>> =
    LazyLock::new(|| rows(include_str!("../data/machines.toml"), "machine"));

/// Every machine.
pub fn machines() -> &'static [Machine] {
    &MACHINES
}
