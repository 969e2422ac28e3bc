//! The calls for a GPU's links, memory errors and power, and for pairs of GPUs. Most GPUs lack some of these: a missing
//! value is not a problem and is omitted.

use super::super::{GpuPair, Health};
use super::NvmlWriter;
use facts::{EccCounts, NvLink, PcieLink, PciePath, RemappedRows};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{
    EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, TopologyLevel,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::*;
use std::io::Write;

/// NVML_NVLINK_MAX_LINKS.
const MAX_LINKS: u32 = 18;
/// The rate of the links, in NVML's units of 10^6 bytes per second: of the first one (since Hopper), and of all
/// (before). The links of one GPU have the same rate.
const RATES: [u32; 2] = [NVML_FI_DEV_NVLINK_GET_SPEED, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON];
/// The placeholder for the remote address of a link in a virtual machine.
const HIDDEN: &str = "FFFFFFFF:FF:FF.0";

impl<W: Write> NvmlWriter<'_, W> {
    pub(super) fn health(&mut self, device: &Device, of: &str) {
        let mut health = Health::default();
        self.key("asking", &format!("nvmlDeviceGetCurrPcieLinkGeneration{of}"));
        let now = device.current_pcie_link_gen().ok().zip(device.current_pcie_link_width().ok());
        health.pcie = now.map(|(generation, width)| PcieLink {
            generation,
            width,
            generation_most: device.max_pcie_link_gen().ok(),
            width_most: device.max_pcie_link_width().ok(),
        });
        self.key("asking", &format!("nvmlDeviceGetUtilizationRates{of}"));
        health.busy_percent = device.utilization_rates().ok().map(|rates| rates.gpu);
        self.key("asking", &format!("nvmlDeviceGetPowerUsage{of}"));
        health.power_milliwatts = device.power_usage().ok();
        health.power_cap_milliwatts = device.enforced_power_limit().ok();
        health.power_default_milliwatts = device.power_management_limit_default().ok();
        self.key("asking", &format!("nvmlDeviceGetTotalEccErrors{of}"));
        health.ecc = device.is_ecc_enabled().ok().map(|state| state.currently_enabled);
        let counts = |since: EccCounter| {
            let count = |kind| device.total_ecc_errors(kind, since).ok();
            let (corrected, uncorrected) =
                (count(MemoryError::Corrected)?, count(MemoryError::Uncorrected)?);
            Some(EccCounts { corrected, uncorrected })
        };
        health.ecc_volatile = counts(EccCounter::Volatile);
        health.ecc_aggregate = counts(EccCounter::Aggregate);
        self.key("asking", &format!("nvmlDeviceGetRetiredPagesPendingStatus{of}"));
        health.retirement_pending = device.are_pages_pending_retired().ok();
        self.key("asking", &format!("nvmlDeviceGetFieldValues{of}"));
        health.remapped = remapped(device);
        self.key("asking", &format!("nvmlSystemGetConfComputeState{of}"));
        health.confidential = device.check_confidential_compute_status().ok();
        self.key("asking", &format!("nvmlDeviceGetNvLinkState{of}"));
        health.nvlinks = nvlinks(device);
        for (key, value) in health.lines() {
            self.key(key, &value);
        }
    }

    /// The connection of each pair of GPUs.
    pub(super) fn pairs(&mut self, nvml: &nvml_wrapper::Nvml, count: u32) {
        for (one, other) in
            (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other)))
        {
            self.key(
                "asking",
                &format!("nvmlDeviceGetTopologyCommonAncestor (GPUs {one} and {other})"),
            );
            let (Ok(first), Ok(second)) = (nvml.device_by_index(one), nvml.device_by_index(other))
            else {
                continue;
            };
            let by_nvlink = first.p2p_status(&second, P2pCapabilitiesIndex::NvLink);
            let Ok(level) = first.topology_common_ancestor(second) else { continue };
            let pair = GpuPair {
                between: (one, other),
                pcie: path(level),
                by_nvlink: by_nvlink.is_ok_and(|status| status == P2pStatus::Ok),
            };
            self.line(pair.record().trim_end());
        }
    }
}

fn path(level: TopologyLevel) -> PciePath {
    match level {
        TopologyLevel::Internal => PciePath::Psb,
        TopologyLevel::Single => PciePath::Pix,
        TopologyLevel::Multiple => PciePath::Pxb,
        TopologyLevel::HostBridge => PciePath::Phb,
        TopologyLevel::Node => PciePath::Node,
        TopologyLevel::System => PciePath::Sys,
    }
}

/// Count fields of NVML.
fn fields<const N: usize>(device: &Device, ids: [u32; N]) -> [Option<u32>; N] {
    let mut values = [None; N];
    let answers = device.field_values_for(&ids.map(FieldId)).unwrap_or_default();
    for (value, answer) in values.iter_mut().zip(answers) {
        *value = match answer.and_then(|sample| sample.value) {
            Ok(SampleValue::U32(count)) => Some(count),
            Ok(SampleValue::U64(count)) => u32::try_from(count).ok(),
            _ => None,
        };
    }
    values
}

fn remapped(device: &Device) -> Option<RemappedRows> {
    let ids = [
        NVML_FI_DEV_REMAPPED_COR,
        NVML_FI_DEV_REMAPPED_UNC,
        NVML_FI_DEV_REMAPPED_PENDING,
        NVML_FI_DEV_REMAPPED_FAILURE,
    ];
    let [corrected, uncorrected, pending, failed] = fields(device, ids);
    Some(RemappedRows {
        corrected: corrected?,
        uncorrected: uncorrected?,
        pending: pending? != 0,
        failed: failed? != 0,
    })
}

fn nvlinks(device: &Device) -> Vec<NvLink> {
    let states: Vec<(u32, bool)> = (0..MAX_LINKS)
        .map_while(|link| Some((link, device.link_wrapper_for(link).is_active().ok()?)))
        .collect();
    if states.is_empty() {
        return Vec::new();
    }
    let rates = fields(device, RATES);
    let rate = rates.into_iter().flatten().find(|rate| *rate > 0);
    let address = |link: u32| device.link_wrapper_for(link).remote_pci_info().ok();
    let link = |(link, up): (u32, bool)| NvLink {
        up,
        megabytes_per_second: rate.filter(|_| up),
        remote: address(link).map(|pci| pci.bus_id).filter(|address| address != HIDDEN),
    };
    states.into_iter().map(link).collect()
}
