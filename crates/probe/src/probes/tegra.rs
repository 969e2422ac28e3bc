//! Jetson: an integrated GPU with separate driver releases, from the device tree (server Arm machines boot with ACPI).

use crate::Source;
use facts::{Fact, Gpu, GpuVendor, Machine, MachineKind};

const COMPATIBLE: &str = "/proc/device-tree/compatible";
const MODEL: &str = "/proc/device-tree/model";
const RELEASE: &str = "/etc/nv_tegra_release";

/// Compute capability of each Tegra chip's GPU. Source: "CUDA GPU Compute Capability", NVIDIA developer site, read 2026-11
/// for Orin (8.7), Xavier (7.2) and Thor (11.0); the chips by the `nvidia,tegra*` names of the Linux device-tree bindings.
const CHIPS: &[(&str, &str, (u32, u32))] = &[
    ("nvidia,tegra210", "Tegra X1", (5, 3)),
    ("nvidia,tegra186", "Tegra X2", (6, 2)),
    ("nvidia,tegra194", "Xavier", (7, 2)),
    ("nvidia,tegra234", "Orin", (8, 7)),
    ("nvidia,tegra264", "Thor", (11, 0)),
];

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let compatible = source.text(COMPATIBLE).unwrap_or_default();
    let release = source.text(RELEASE).and_then(|text| parse_release(&text));
    let chip = chip_of(&compatible);
    // A container may hide the device tree, but the release file is mounted into Jetson containers.
    if chip.is_none() && release.is_none() {
        return;
    }
    // The kind is set here, because only these facts distinguish a Jetson from a server Arm.
    machine.kind = MachineKind::Jetson;
    if let Some(release) = release {
        machine.notes.push(format!("Jetson Linux (L4T) {release} ({RELEASE})"));
    }
    let Some((_, name, capability)) = chip else { return };
    let model = source.word(MODEL);
    if let Some(gpu) = machine.gpus.first_mut() {
        gpu.compute_capability.get_or_insert_with(|| Fact::new(*capability, COMPATIBLE));
        if gpu.memory_total_bytes.is_none() {
            gpu.memory_total_bytes = shared(machine.memory.total_bytes.as_ref());
        }
        return;
    }
    // Releases before JetPack 6 have no NVML: the chip identifies the GPU.
    machine.gpus.push(Gpu {
        index: 0,
        vendor: GpuVendor::Nvidia,
        name: match model {
            Some(model) => Fact::new(format!("{name} ({model})"), format!("{COMPATIBLE}, {MODEL}")),
            None => Fact::new((*name).to_string(), COMPATIBLE),
        },
        uuid: None,
        compute_capability: Some(Fact::new(*capability, COMPATIBLE)),
        memory_total_bytes: shared(machine.memory.total_bytes.as_ref()),
        memory_used_bytes: None,
        pci_bus: None,
        mig: None,
        persistence: None,
        health: facts::GpuHealth::default(),
    });
}

fn shared(total: Option<&Fact<u64>>) -> Option<Fact<u64>> {
    total.map(|total| Fact::new(total.value, format!("{} (shared with the host)", total.source)))
}

/// The Tegra chip among the device tree's compatible names, which are separated by NUL bytes.
pub(crate) fn chip_of(
    compatible: &str,
) -> Option<&'static (&'static str, &'static str, (u32, u32))> {
    compatible.split('\0').find_map(|name| CHIPS.iter().find(|(chip, ..)| *chip == name.trim()))
}

/// `R36.4.3` of the line `# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, ...`.
pub(crate) fn parse_release(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("# R"))?;
    let major = line.split_whitespace().next()?;
    let revision = line.split(',').find_map(|part| part.trim().strip_prefix("REVISION:"))?.trim();
    let is_number = crate::text::is_dotted_number;
    (is_number(major) && is_number(revision)).then(|| format!("R{major}.{revision}"))
}

#[cfg(test)]
mod tests {
    use super::{chip_of, parse_release};

    #[test]
    fn chips() {
        let check = |text, expect: Option<&str>| {
            assert_eq!(chip_of(text).map(|(_, name, _)| *name), expect)
        };
        check("nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0", Some("Orin"));
        check("nvidia,tegra2340\0", None);
        check("raspberrypi,5-model-b\0brcm,bcm2712\0", None);
        check("", None);
    }

    #[test]
    fn releases() {
        let check = |text, expect: Option<&str>| assert_eq!(parse_release(text).as_deref(), expect);
        let line = "# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025\n# KERNEL_VARIANT: oot\n";
        check(line, Some("R36.4.3"));
        check("# R36 (release)", None);
        check("# Rx (release), REVISION: 4", None);
    }
}
