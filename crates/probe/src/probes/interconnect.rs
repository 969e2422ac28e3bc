//! The attachment of GPUs and network cards, and the requirements of peer access.

use crate::Source;
use facts::CompactSort;
use facts::{Fact, Machine, RdmaPort};

const BUS: &str = "/sys/bus/pci/devices";
/// The online NUMA nodes: `0`, `0-1`.
const NODES: &str = "/sys/devices/system/node/online";
const CARDS: &str = "/sys/class/infiniband";
/// GPUDirect RDMA's module, its name before CUDA 11.4, and GDRCopy's.
const MODULES: [&str; 3] = ["nvidia_peermem", "nv_peer_mem", "gdrdrv"];

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    for gpu in &mut machine.gpus {
        let Some(device) = gpu.pci_bus.as_deref().and_then(device) else { continue };
        let node = format!("{device}/numa_node");
        let own = numa_node(source, &node).map(|number| Fact::new(number, node));
        // With a single node the kernel reports -1 for each device; all are on that node.
        let only = || numa_node(source, NODES).map(|number| Fact::new(number, NODES));
        gpu.health.numa_node = own.or_else(only);
        let cores = format!("{device}/local_cpulist");
        gpu.health.nearest_cores = source.word(&cores).map(|list| Fact::new(list, cores));
    }
    machine.interconnect.ports = ports(source);
    machine.interconnect.iommu = iommu(source, machine);
    machine.interconnect.acs_bridges = acs_bridges(source, machine);
    // Without a driver there is no GPU memory to access.
    if machine.driver.is_some() {
        let loaded = |name: &&str| source.is_dir(format!("/sys/module/{name}"));
        let modules = MODULES.iter().filter(|name| loaded(name)).map(|name| (*name).to_string());
        machine.interconnect.direct_modules =
            source.is_dir("/sys/module").then(|| Fact::new(modules.collect(), "/sys/module"));
    }
}

/// The types of the IOMMU domains that the GPUs are in.
fn iommu(source: &Source, machine: &Machine) -> Option<Fact<Vec<String>>> {
    const GROUPS: &str = "/sys/kernel/iommu_groups";
    if !source.is_dir(GROUPS) {
        return None;
    }
    let devices = machine.gpus.iter().filter_map(|gpu| gpu.pci_bus.as_deref().and_then(device));
    let mut types: Vec<String> =
        devices.filter_map(|device| source.word(format!("{device}/iommu_group/type"))).collect();
    types.compact_sort();
    types.dedup();
    Some(Fact::new(types, GROUPS))
}

/// Bridges whose ACS control register redirects requests between devices below them. Only root can read the
/// configuration space beyond its first 64 bytes; for others the state is not known.
fn acs_bridges(source: &Source, machine: &Machine) -> Option<Fact<Vec<String>>> {
    let gpus = machine.gpus.iter().filter_map(|gpu| gpu.pci_bus.as_deref().and_then(device));
    let mut above: Vec<String> = Vec::new();
    for gpu in gpus {
        // The kernel's path of a device contains every bridge above it.
        let Some(path) = source.canonical(&gpu) else { continue };
        let names = path
            .iter()
            .filter_map(|part| part.to_str())
            .filter(|part| part.contains(':') && part.contains('.'));
        let own = gpu.rsplit('/').next().unwrap_or(&gpu);
        above.extend(names.filter(|name| *name != own).map(str::to_owned));
    }
    above.compact_sort();
    above.dedup();
    let configs = above.into_iter().filter_map(|bridge| {
        let bytes = source.read(format!("{BUS}/{bridge}/config")).ok()?;
        (bytes.len() >= 4096).then_some((bridge, bytes))
    });
    let configs: Vec<(String, Vec<u8>)> = configs.collect();
    let redirecting = configs.iter().filter(|(_, bytes)| acs_redirects(bytes));
    let redirecting: Vec<String> = redirecting.map(|(bridge, _)| bridge.clone()).collect();
    (!configs.is_empty()).then(|| Fact::new(redirecting, format!("{BUS}/*/config")))
}

/// Whether the ACS extended capability (id 0x000d) enables P2P request or completion redirect: bits 2 and 3 of its control register.
fn acs_redirects(config: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = config.get(at..at + 4)?;
        Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut at = 0x100;
    // A list of extended capabilities has at most 960 entries; this ends a loop.
    for _ in 0..960 {
        let Some(head) = word(at).filter(|head| *head != 0 && *head != u32::MAX) else {
            return false;
        };
        if head & 0xffff == 0x000d {
            return word(at + 4).is_some_and(|registers| (registers >> 16) & 0b1100 != 0);
        }
        at = (head >> 20) as usize;
        if at < 0x100 {
            return false;
        }
    }
    false
}

/// The kernel's folder of a device: NVML writes the domain with eight digits in upper case, the kernel with four.
fn device(bus: &str) -> Option<String> {
    let (domain, rest) = bus.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{BUS}/{domain:04x}:{}", rest.to_ascii_lowercase()))
}

/// A node's number; none for -1 or for several.
fn numa_node(source: &Source, file: &str) -> Option<u32> {
    source.word(file)?.parse().ok()
}

fn ports(source: &Source) -> Vec<RdmaPort> {
    let mut ports = Vec::new();
    for card in source.list(CARDS) {
        for port in source.list(format!("{CARDS}/{card}/ports")) {
            let folder = format!("{CARDS}/{card}/ports/{port}");
            // `4: ACTIVE`
            let Some(state) = source.word(format!("{folder}/state")) else { continue };
            let state = state.split_once(':').map_or(state.as_str(), |(_, word)| word.trim());
            ports.push(RdmaPort {
                name: format!("{card}/{port}"),
                link_layer: source.word(format!("{folder}/link_layer")),
                state: state.to_string(),
                rate: source.word(format!("{folder}/rate")),
                numa_node: numa_node(source, &format!("{CARDS}/{card}/device/numa_node")),
                source: folder,
            });
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::{acs_redirects, device, ports, run};
    use crate::Source;
    use facts::{Fact, Machine, RdmaPort};

    #[test]
    fn gpu_without_a_node_is_on_the_only_one() {
        let check = |own: &str, online: &str, expect: Option<(u32, &str)>| {
            let folder = tempfile::tempdir().unwrap();
            let bus = "/sys/bus/pci/devices/0000:00:06.0/numa_node";
            for (path, text) in [(bus, own), ("/sys/devices/system/node/online", online)] {
                let path = folder.path().join("root").join(path.trim_start_matches('/'));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let mut machine = Machine::unknown();
            machine.gpus = crate::recorded::report("h200").machine.gpus;
            run(&Source::recorded(folder.path()).unwrap(), &mut machine);
            let node = machine.gpus[0].health.numa_node.clone();
            assert_eq!(node, expect.map(|(node, from)| Fact::new(node, from)), "{own} of {online}");
        };
        check("1\n", "0-1\n", Some((1, "/sys/bus/pci/devices/0000:00:06.0/numa_node")));
        check("-1\n", "0\n", Some((0, "/sys/devices/system/node/online")));
        check("-1\n", "0-1\n", None);
        check("-1\n", "", None);
    }

    #[test]
    fn acs_control_bits_are_read_from_the_extended_capabilities() {
        let config = |control: u16| {
            let mut bytes = vec![0_u8; 4096];
            // Advanced error reporting at 0x100, ACS at 0x148.
            bytes[0x100..0x104].copy_from_slice(&(0x1480_0000_u32 | 0x2_0001).to_le_bytes());
            bytes[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
            bytes[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
            bytes
        };
        assert!(acs_redirects(&config(0x001d)));
        assert!(acs_redirects(&config(0x0004)));
        assert!(!acs_redirects(&config(0x0000)));
        assert!(
            !acs_redirects(&config(0x0011)),
            "validation and forwarding alone redirect nothing"
        );
        assert!(!acs_redirects(&[0; 64]));
    }

    #[test]
    fn nvml_and_kernel_have_the_same_pci_addresses() {
        let check = |bus, expect: Option<&str>| assert_eq!(device(bus).as_deref(), expect, "{bus}");
        check("00000000:3B:00.0", Some("/sys/bus/pci/devices/0000:3b:00.0"));
        check("0009:01:00.0", Some("/sys/bus/pci/devices/0009:01:00.0"));
        check("00010000:01:00.0", Some("/sys/bus/pci/devices/10000:01:00.0"));
        check("", None);
        check("x:01:00.0", None);
    }

    #[test]
    fn ports_of_both_kinds() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("mlx5_0/ports/1/state", "4: ACTIVE\n"),
            ("mlx5_0/ports/1/link_layer", "InfiniBand\n"),
            ("mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n"),
            ("mlx5_0/device/numa_node", "1\n"),
            ("mlx5_1/ports/1/state", "1: DOWN\n"),
            ("mlx5_1/ports/1/link_layer", "Ethernet\n"),
            ("mlx5_1/device/numa_node", "-1\n"),
            ("broken/ports/1/rate", "1\n"),
        ] {
            let path = folder.path().join("root/sys/class/infiniband").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let words = |text: &str| Some(text.to_string());
        let expect = [
            RdmaPort {
                name: "mlx5_0/1".into(),
                link_layer: words("InfiniBand"),
                state: "ACTIVE".into(),
                rate: words("400 Gb/sec (4X NDR)"),
                numa_node: Some(1),
                source: "/sys/class/infiniband/mlx5_0/ports/1".into(),
            },
            RdmaPort {
                name: "mlx5_1/1".into(),
                link_layer: words("Ethernet"),
                state: "DOWN".into(),
                rate: None,
                numa_node: None,
                source: "/sys/class/infiniband/mlx5_1/ports/1".into(),
            },
        ];
        assert_eq!(ports(&Source::recorded(folder.path()).unwrap()), expect);
    }
}
