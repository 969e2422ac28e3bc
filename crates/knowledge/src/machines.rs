//! Named machines, for plans made on another machine.

use crate::packed::table;
use crate::table::{optional_minor, rows};
use crate::{Arch, Citation, Sm};
use serde::Deserialize;
use std::sync::LazyLock;

/// One kind of machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedMachine {
    /// Its name: `gh200`.
    pub name: String,
    /// Its other names: `thor`.
    #[serde(default)]
    pub also: Vec<String>,
    /// A one-line description.
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
    /// Memory of one GPU in MiB, as the driver reports it; `None` if it shares the machine's memory or boards of the name differ.
    pub gpu_mib: Option<u64>,
    /// Source of `gpu_mib`.
    pub gpu_mib_source: Option<Citation>,
    /// Whether it is a Tegra (Jetson).
    #[serde(default)]
    pub tegra: bool,
    /// System memory in units of 10^9 bytes; `None` if machines of the name differ.
    pub memory_gb: Option<u64>,
    /// Source of the row.
    pub source: Citation,
}

static MACHINES: LazyLock<Vec<NamedMachine>> =
    LazyLock::new(|| rows(table!("machines.toml"), "machine"));

impl NamedMachine {
    /// Bytes of memory of one GPU: its dedicated memory, or the machine's if they share it. `None` if there is no GPU or it is unknown.
    pub fn gpu_bytes(&self) -> Option<u64> {
        self.gpu?;
        let own = self.gpu_mib.map(|mib| mib << 20);
        // Only Jetsons and the DGX Spark (GB10) have unified memory; a GH200 has two memories.
        own.or_else(|| {
            Some(self.memory_gb.filter(|_| self.shares_memory())?.saturating_mul(1_000_000_000))
        })
    }

    /// The source of `gpu_bytes`: that of `gpu_mib`, otherwise that of the row.
    pub fn gpu_bytes_source(&self) -> &Citation {
        self.gpu_mib_source.as_ref().unwrap_or(&self.source)
    }

    fn shares_memory(&self) -> bool {
        self.tegra || self.name == "gb10"
    }
}

/// Every machine.
pub fn machines() -> &'static [NamedMachine] {
    &MACHINES
}

/// The machine with this name, ignoring case and punctuation: `RTX PRO 6000` is `rtx-pro-6000`.
pub fn machine(name: &str) -> Option<&'static NamedMachine> {
    let wanted = plain(name);
    MACHINES.iter().find(|machine| {
        std::iter::once(&machine.name).chain(&machine.also).any(|known| plain(known) == wanted)
    })
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn gpu_memory_is_dedicated_or_shared() {
        for (name, bytes) in [
            ("rtx4090", Some(24564 << 20)),
            ("l4", Some(23034 << 20)),
            ("h100", Some(81559 << 20)),
            ("gb10", Some(128_000_000_000)),
            ("gb200", None),
            ("m-series", None),
            ("cpu-x86_64", None),
        ] {
            assert_eq!(machine(name).unwrap().gpu_bytes(), bytes, "{name}");
        }
    }

    #[test]
    fn each_memory_size_names_its_source() {
        for machine in machines() {
            assert_eq!(
                machine.gpu_mib.is_some(),
                machine.gpu_mib_source.is_some(),
                "{}",
                machine.name
            );
        }
    }

    #[test]
    fn common_gpu_names_find_their_machine() {
        for (name, gpu) in [
            ("a100", (8, 0)),
            ("l4", (8, 9)),
            ("L40S", (8, 9)),
            ("t4", (7, 5)),
            ("V100", (7, 0)),
            ("rtx3090", (8, 6)),
            ("RTX 3090", (8, 6)),
            ("a6000", (8, 6)),
            ("rtx pro 6000", (12, 0)),
            ("h20", (9, 0)),
            ("b300", (10, 3)),
            ("thor", (11, 0)),
        ] {
            assert_eq!(machine(name).and_then(|machine| machine.gpu), Some(gpu), "{name}");
        }
        assert!(machine("a1000").is_none() && machine("").is_none());
    }

    #[test]
    fn names_are_unique() {
        let mut seen = BTreeSet::new();
        for machine in machines() {
            for name in std::iter::once(&machine.name).chain(&machine.also) {
                assert!(seen.insert(plain(name)), "{name}");
            }
        }
    }
}
