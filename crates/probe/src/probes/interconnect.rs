//! Where GPUs and network cards are attached, and what lets one reach the other.

use crate::Source;
use facts::{Fact, Machine, RdmaPort};

const BUS: &str = "/sys/bus/pci/devices";
/// The NUMA nodes that are there: `0`, `0-1`.
const NODES: &str = "/sys/devices/system/node/online";
const CARDS: &str = "/sys/class/infiniband";
/// GPUDirect RDMA's module, its name before CUDA 11.4, and GDRCopy's.
const MODULES: [&str; 3] = ["nvidia_peermem", "nv_peer_mem", "gdrdrv"];

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    for gpu in &mut machine.gpus {
        let Some(device) = gpu.pci_bus.as_deref().and_then(device) else { continue };
        let node = format!("{device}/numa_node");
        let own = numa_node(source, &node).map(|number| Fact::new(number, node));
        // Where there is one node alone the kernel writes -1 for each device, and all of them are there.
        let only = || numa_node(source, NODES).map(|number| Fact::new(number, NODES));
        gpu.health.numa_node = own.or_else(only);
        let cores = format!("{device}/local_cpulist");
        gpu.health.nearest_cores = source.word(&cores).map(|list| Fact::new(list, cores));
    }
    machine.interconnect.ports = ports(source);
    // Without a driver there is no GPU memory to reach.
    if machine.driver.is_some() {
        let loaded = |name: &&str| source.is_dir(format!("/sys/module/{name}"));
        let modules = MODULES.iter().filter(|name| loaded(name)).map(|name| (*name).to_string());
        machine.interconnect.direct_modules =
            source.is_dir("/sys/module").then(|| Fact::new(modules.collect(), "/sys/module"));
    }
}

/// The kernel's folder of a device: NVML writes the domain with eight digits and in capitals, the kernel with four.
fn device(bus: &str) -> Option<String> {
    let (domain, rest) = bus.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    Some(format!("{BUS}/{domain:04x}:{}", rest.to_ascii_lowercase()))
}

/// A node's number, and nothing for -1 or for several.
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
    use super::{device, ports, run};
    use crate::Source;
    use facts::{Fact, Machine, RdmaPort};

    #[test]
    fn a_gpu_is_on_the_only_node_where_the_kernel_does_not_say() {
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
    fn nvmls_addresses_are_the_kernels() {
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
