//! Hardware facts of a machine with two H200, compared with the output of `nvidia-smi` at the same time.

use super::{altered, replace, report};
use facts::{EccCounts, GpuPath, PcieLink, PciePath, RemappedRows};

#[test]
fn two_h200_have_the_values_of_nvidia_smi() {
    let machine = report("h200-x2").machine;
    assert_eq!(machine.gpus.len(), 2);
    for gpu in &machine.gpus {
        let health = &gpu.health;
        let pcie = health.pcie.as_ref().unwrap();
        let (generation_most, width_most) = (Some(5), Some(16));
        assert_eq!(pcie.value, PcieLink { generation: 5, width: 16, generation_most, width_most });
        assert_eq!(pcie.source, "NVML nvmlDeviceGetCurrPcieLinkGeneration");
        let links = &health.nvlinks.as_ref().unwrap().value;
        assert_eq!((links.len(), links.iter().all(|link| link.up)), (18, true));
        assert_eq!(health.nearest_cores.as_ref().unwrap().value, "0-31");
        assert_eq!(health.numa_node, None, "the kernel wrote -1");
        assert_eq!(health.held_down_by.as_ref().unwrap().value, Vec::<String>::new());
        assert_eq!(health.power_cap_milliwatts.as_ref().unwrap().value, 700_000);
        assert_eq!(health.ecc_aggregate.as_ref().unwrap().value, EccCounts::default());
        assert_eq!(health.remapped.as_ref().unwrap().value, RemappedRows::default());
        assert!(!health.confidential.as_ref().unwrap().value);
        // These GPUs remap rows; no page is retired.
        assert_eq!(health.retirement_pending, None);
    }
    let path = GpuPath { between: (0, 1), pcie: PciePath::Phb, nvlinks: 18 };
    assert_eq!(machine.interconnect.paths.unwrap().value, [path]);
    assert_eq!(machine.xids.unwrap().value, []);
    assert_eq!(machine.interconnect.direct_modules.unwrap().value, Vec::<String>::new());
}

#[test]
fn xids_are_read_from_the_kernel_log_and_absent_without_access() {
    let lost = altered("h200-x2", |folder| {
        let line = "NVRM: Persistence";
        let xid = "NVRM: Xid (PCI:0000:00:07): 79, pid=4711, GPU has fallen off the bus.\nNVRM: Persistence";
        replace(folder, "commands/dmesg", line, xid);
    });
    let xids = lost.machine.xids.unwrap().value;
    assert_eq!((xids.len(), xids[0].number, xids[0].pci_bus.as_str()), (1, 79, "0000:00:07"));
    let closed = altered("h200-x2", |folder| {
        std::fs::remove_file(folder.join("commands/dmesg")).unwrap();
    });
    assert_eq!(closed.machine.xids, None);
}
