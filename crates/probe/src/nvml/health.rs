//! The state of a GPU's hardware in NVML's record, one line per fact; `-` is a missing value.

use facts::{EccCounts, GpuPath, NvLink, PcieLink, PciePath, RemappedRows};

/// NVML's values of a GPU's links, memory errors and power.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Health {
    /// nvmlDeviceGetCurrPcieLinkGeneration and its siblings.
    pub pcie: Option<PcieLink>,
    /// nvmlDeviceGetNvLinkState of each link; empty without links.
    pub nvlinks: Vec<NvLink>,
    /// nvmlDeviceGetUtilizationRates.
    pub busy_percent: Option<u32>,
    /// nvmlDeviceGetPowerUsage.
    pub power_milliwatts: Option<u32>,
    /// nvmlDeviceGetEnforcedPowerLimit.
    pub power_cap_milliwatts: Option<u32>,
    /// nvmlDeviceGetPowerManagementDefaultLimit.
    pub power_default_milliwatts: Option<u32>,
    /// nvmlDeviceGetEccMode.
    pub ecc: Option<bool>,
    /// nvmlDeviceGetTotalEccErrors since the driver was loaded.
    pub ecc_volatile: Option<EccCounts>,
    /// nvmlDeviceGetTotalEccErrors of the board's life.
    pub ecc_aggregate: Option<EccCounts>,
    /// nvmlDeviceGetRetiredPagesPendingStatus.
    pub retirement_pending: Option<bool>,
    /// nvmlDeviceGetFieldValues of NVML_FI_DEV_REMAPPED_*.
    pub remapped: Option<RemappedRows>,
    /// nvmlSystemGetConfComputeState.
    pub confidential: Option<bool>,
}

impl Health {
    pub(super) fn set(&mut self, key: &str, value: &str) {
        let words: Vec<&str> = value.split_whitespace().collect();
        let word = |at: usize| words.get(at).copied().unwrap_or("-");
        let counts = || {
            Some(EccCounts { corrected: word(0).parse().ok()?, uncorrected: word(1).parse().ok()? })
        };
        let rows = || {
            Some(RemappedRows {
                corrected: word(0).parse().ok()?,
                uncorrected: word(1).parse().ok()?,
                pending: word(2).parse().ok()?,
                failed: word(3).parse().ok()?,
            })
        };
        match key {
            "pcie" => {
                self.pcie =
                    word(0).parse().ok().zip(word(1).parse().ok()).map(|(generation, width)| {
                        PcieLink {
                            generation,
                            width,
                            generation_most: word(2).parse().ok(),
                            width_most: word(3).parse().ok(),
                        }
                    });
            }
            "nvlink" => self.nvlinks.push(NvLink {
                up: word(0) == "up",
                megabytes_per_second: word(1).parse().ok(),
                remote: Some(word(2)).filter(|word| *word != "-").map(str::to_string),
            }),
            "busy_percent" => self.busy_percent = value.parse().ok(),
            "power_milliwatts" => self.power_milliwatts = value.parse().ok(),
            "power_cap_milliwatts" => self.power_cap_milliwatts = value.parse().ok(),
            "power_default_milliwatts" => self.power_default_milliwatts = value.parse().ok(),
            "ecc" => self.ecc = value.parse().ok(),
            "ecc_volatile" => self.ecc_volatile = counts(),
            "ecc_aggregate" => self.ecc_aggregate = counts(),
            "retirement_pending" => self.retirement_pending = value.parse().ok(),
            "remapped" => self.remapped = rows(),
            "confidential" => self.confidential = value.parse().ok(),
            _ => {}
        }
    }

    /// Every line, as key and value.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let flag = |value: Option<bool>| value.map(|value| value.to_string());
        let counts = |counts: Option<EccCounts>| counts.map(ecc);
        let facts = [
            ("pcie", self.pcie.map(pcie)),
            ("busy_percent", number(self.busy_percent)),
            ("power_milliwatts", number(self.power_milliwatts)),
            ("power_cap_milliwatts", number(self.power_cap_milliwatts)),
            ("power_default_milliwatts", number(self.power_default_milliwatts)),
            ("ecc", flag(self.ecc)),
            ("ecc_volatile", counts(self.ecc_volatile)),
            ("ecc_aggregate", counts(self.ecc_aggregate)),
            ("retirement_pending", flag(self.retirement_pending)),
            ("remapped", self.remapped.map(remapped)),
            ("confidential", flag(self.confidential)),
        ];
        let links = self.nvlinks.iter().map(|link| ("nvlink", nvlink(link)));
        facts.into_iter().filter_map(|(key, value)| Some((key, value?))).chain(links).collect()
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("-".to_string(), |value| value.to_string())
}

fn pcie(link: PcieLink) -> String {
    let (generation, width) = (or_dash(link.generation_most), or_dash(link.width_most));
    format!("{} {} {generation} {width}", link.generation, link.width)
}

fn nvlink(link: &NvLink) -> String {
    let state = if link.up { "up" } else { "down" };
    let (rate, remote) = (or_dash(link.megabytes_per_second), or_dash(link.remote.as_ref()));
    format!("{state} {rate} {remote}")
}

fn ecc(counts: EccCounts) -> String {
    format!("{} {}", counts.corrected, counts.uncorrected)
}

fn remapped(rows: RemappedRows) -> String {
    format!("{} {} {} {}", rows.corrected, rows.uncorrected, rows.pending, rows.failed)
}

/// NVML's values of a pair of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuPair {
    /// Both indices, the lower one first.
    pub between: (u32, u32),
    /// nvmlDeviceGetTopologyCommonAncestor.
    pub pcie: PciePath,
    /// nvmlDeviceGetP2PStatus by NVLink.
    pub by_nvlink: bool,
}

impl GpuPair {
    /// Parses `0 1 SYS nvlink`, or `-` for a pair without NVLink.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let between = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let level = words.next()?;
        let all = [
            PciePath::Psb,
            PciePath::Pix,
            PciePath::Pxb,
            PciePath::Phb,
            PciePath::Node,
            PciePath::Sys,
        ];
        let pcie = all.into_iter().find(|path| path.as_str() == level)?;
        Some(Self { between, pcie, by_nvlink: words.next() == Some("nvlink") })
    }

    pub(super) fn record(&self) -> String {
        let nvlink = if self.by_nvlink { "nvlink" } else { "-" };
        format!("pair = {} {} {} {nvlink}\n", self.between.0, self.between.1, self.pcie.as_str())
    }

    /// The path, with the links between both. Direct links to the other GPU are counted if there are any; otherwise the
    /// links go to switches, or NVML hides their ends, and all active links of both sides count.
    pub(crate) fn path(&self, gpus: &[super::NvmlDevice]) -> GpuPath {
        let gpu = |index: u32| gpus.get(index as usize);
        let up = |index: u32| {
            let links = gpu(index).into_iter().flat_map(|gpu| &gpu.health.nvlinks);
            links.filter(|link| link.up)
        };
        let (one, other) = self.between;
        let is_gpu = |remote: &String| gpus.iter().any(|gpu| gpu.pci_bus.as_ref() == Some(remote));
        let direct = up(one).any(|link| link.remote.as_ref().is_some_and(is_gpu));
        let nvlinks = if !self.by_nvlink {
            0
        } else if direct {
            let address = gpu(other).and_then(|gpu| gpu.pci_bus.as_ref());
            up(one).filter(|link| link.remote.as_ref() == address).count()
        } else {
            up(one).count().min(up(other).count())
        };
        let nvlinks = u32::try_from(nvlinks).unwrap_or(u32::MAX);
        GpuPath { between: self.between, pcie: self.pcie, nvlinks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::NvmlDevice;

    fn gpu(bus: &str, links: &[(bool, Option<&str>)]) -> NvmlDevice {
        let link = |(up, remote): &(bool, Option<&str>)| NvLink {
            up: *up,
            megabytes_per_second: Some(26_562),
            remote: remote.map(str::to_string),
        };
        let nvlinks = links.iter().map(link).collect();
        let health = Health { nvlinks, ..Health::default() };
        NvmlDevice { pci_bus: Some(bus.into()), health, ..NvmlDevice::default() }
    }

    #[test]
    fn links_are_counted_by_their_remote_device() {
        let check = |gpus: &[NvmlDevice], pair: &str, expect: u32| {
            assert_eq!(GpuPair::parse(pair).unwrap().path(gpus).nvlinks, expect, "{pair}");
        };
        let switched = [
            gpu("0:1", &[(true, Some("s")), (true, Some("s"))]),
            gpu("0:2", &[(true, Some("s")), (false, Some("s"))]),
        ];
        check(&switched, "0 1 NODE nvlink", 1);
        check(&switched, "0 1 NODE -", 0);
        let hidden = [gpu("0:1", &[(true, None), (true, None)]), gpu("0:2", &[(true, None); 2])];
        check(&hidden, "0 1 SYS nvlink", 2);
        // Four V100 in a ring of unequal sides.
        let direct = [
            gpu("0:1", &[(true, Some("0:2")), (true, Some("0:3")), (true, Some("0:3"))]),
            gpu("0:2", &[(true, Some("0:1"))]),
            gpu("0:3", &[(true, Some("0:1")), (false, Some("0:1"))]),
        ];
        check(&direct, "0 1 PIX nvlink", 1);
        check(&direct, "0 2 PHB nvlink", 2);
        check(&direct, "0 9 PHB nvlink", 0);
    }

    #[test]
    fn incomplete_pair_is_none() {
        for text in ["", "0", "0 1", "0 1 FAR", "a 1 SYS", "0 4294967296 SYS"] {
            assert_eq!(GpuPair::parse(text), None, "{text}");
        }
    }
}
