//! Access of programs to the GPUs: the PCI bus, device files, Secure Boot, shared memory, variables.

use super::nvidia_smi;
use crate::Source;
use crate::source::Command;
use facts::CompactSort;
use facts::{DeviceNode, Fact, Machine, PciGpu, Platform};

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    if !matches!(machine.platform, Platform::LinuxX86_64 | Platform::LinuxAarch64) {
        return;
    }
    let access = &mut machine.access;
    access.pci = pci(source);
    access.nodes = nodes(source);
    access.module_file = module_file(source);
    access.secure_boot = secure_boot(source);
    access.shared_memory_bytes = shared_memory(source);
    access.mig_instances = mig_instances(source);
    access.visible_devices = source
        .set_var("CUDA_VISIBLE_DEVICES")
        .map(|devices| Fact::new(devices.to_owned(), "CUDA_VISIBLE_DEVICES"));
    // Only nvidia-smi lists them, and starting it takes a while: it is run only if a variable names one.
    let names_one = access.visible_devices.as_ref().is_some_and(|it| it.value.contains("MIG-"));
    let on = machine.gpus.iter().any(|gpu| gpu.mig == Some(true));
    access.mig_uuids = if names_one && on { mig_uuids(source) } else { None };
}

/// NVIDIA's VGA and 3D controllers, by vendor and class.
fn pci(source: &Source) -> Option<Fact<Vec<PciGpu>>> {
    const BUS: &str = "/sys/bus/pci/devices";
    let mut places = source.list(BUS);
    places.compact_sort();
    if places.is_empty() {
        return None;
    }
    let word = |place: &str, file: &str| source.word(format!("{BUS}/{place}/{file}"));
    let gpus = places.into_iter().filter_map(|place| {
        let nvidia = word(&place, "vendor").is_some_and(|vendor| vendor == "0x10de");
        let display = word(&place, "class").is_some_and(|class| class.starts_with("0x03"));
        let driver = source.link(format!("{BUS}/{place}/driver"));
        (nvidia && display).then(|| PciGpu {
            device: word(&place, "device").unwrap_or_default(),
            driver: driver.and_then(|link| Some(link.rsplit('/').next()?.to_owned())),
            bus: place,
        })
    });
    Some(Fact::new(gpus.collect(), BUS))
}

fn nodes(source: &Source) -> Vec<DeviceNode> {
    let status = source.text("/proc/self/status").unwrap_or_default();
    let who = Credentials::of(&status);
    let groups = source.text("/etc/group").unwrap_or_default();
    let node = |node: crate::source::Node| DeviceNode {
        opens: who.as_ref().is_none_or(|who| who.opens(node.mode, node.user, node.group)),
        group: group_name(&groups, node.group).unwrap_or_else(|| node.group.to_string()),
        path: node.path,
        mode: node.mode & 0o777,
    };
    source.gpu_nodes().into_iter().map(node).collect()
}

/// The effective user and groups of a process.
#[derive(Debug, PartialEq, Eq)]
struct Credentials {
    user: u32,
    groups: Vec<u32>,
}

impl Credentials {
    /// From /proc/PID/status, whose second number is the effective one.
    fn of(status: &str) -> Option<Self> {
        let numbers = |key: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().split_whitespace().filter_map(|n| n.parse().ok()).collect()
        };
        let user = *numbers("Uid:").get(1)?;
        let mut groups = numbers("Groups:");
        groups.extend(numbers("Gid:").get(1));
        Some(Self { user, groups })
    }

    /// Read and write permission by the kernel's rules. Root has both, except for owners outside its user namespace
    /// (65534).
    fn opens(&self, mode: u32, user: u32, group: u32) -> bool {
        const UNKNOWN: u32 = 65_534;
        if self.user == 0 && user != UNKNOWN {
            return true;
        }
        let bits = if self.user == user {
            mode >> 6
        } else if self.groups.contains(&group) {
            mode >> 3
        } else {
            mode
        };
        bits & 0o6 == 0o6
    }
}

fn group_name(groups: &str, number: u32) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (parts.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    })
}

/// `updates/dkms/nvidia.ko.zst`, the module's path in the kernel's list.
fn module_file(source: &Source) -> Option<Fact<String>> {
    let kernel = source.word("/proc/sys/kernel/osrelease")?;
    let list = format!("/lib/modules/{kernel}/modules.dep");
    let text = source.text(&list)?;
    let file = text.lines().find_map(|line| {
        let file = line.split(':').next()?;
        let name = file.rsplit('/').next()?;
        (name == "nvidia.ko" || name.starts_with("nvidia.ko.")).then_some(file)
    })?;
    Some(Fact::new(file.to_owned(), list))
}

/// Four bytes of attributes, then 1 or 0 (UEFI specification, section 3.3).
fn secure_boot(source: &Source) -> Option<Fact<bool>> {
    const FILE: &str = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    let bytes = source.read(FILE).ok()?;
    Some(Fact::new(*bytes.get(4)? == 1, FILE))
}

fn shared_memory(source: &Source) -> Option<Fact<u64>> {
    const MOUNTS: &str = "/proc/self/mounts";
    let bytes = parse_shared_memory(&source.text(MOUNTS)?)?;
    Some(Fact::new(bytes, format!("{MOUNTS} /dev/shm")))
}

/// The last mount of /dev/shm is the visible one: `shm /dev/shm tmpfs rw,nosuid,size=65536k 0 0`.
fn parse_shared_memory(mounts: &str) -> Option<u64> {
    let mut options = mounts.lines().rev().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.nth(1)? == "/dev/shm").then(|| words.nth(1)).flatten()
    });
    let size = options.next()?.split(',').find_map(|option| option.strip_prefix("size="))?;
    let digits = size.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &size[digits.len()..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// GPU instances from the driver's capability folders of a GPU in MIG mode.
fn mig_instances(source: &Source) -> Option<Fact<u32>> {
    const FOLDER: &str = "/proc/driver/nvidia/capabilities";
    let mut seen = None;
    for gpu in source.list(FOLDER).iter().filter(|name| name.starts_with("gpu")) {
        let folder = format!("{FOLDER}/{gpu}/mig");
        if source.is_dir(&folder) {
            let instances =
                source.list(&folder).iter().filter(|name| name.starts_with("gi")).count();
            *seen.get_or_insert(0) += u32::try_from(instances).unwrap_or(u32::MAX);
        }
    }
    seen.map(|count| Fact::new(count, FOLDER))
}

fn mig_uuids(source: &Source) -> Option<Fact<Vec<String>>> {
    let limit = source.patience();
    let program = nvidia_smi::program(source)?.display().to_string();
    let command = Command { record: "nvidia-smi-list", program: &program, args: &["-L"], limit };
    let uuids = parse_partitions(&source.run(&command).ok()?);
    (!uuids.is_empty()).then(|| Fact::new(uuids, "nvidia-smi -L"))
}

/// `  MIG 1g.10gb     Device  0: (UUID: MIG-377e0049-554c-540b-93c6-d0976f8426cb)`, below the line of its GPU.
fn parse_partitions(text: &str) -> Vec<String> {
    let uuid = |line: &str| {
        let (_, rest) = line.trim_start().strip_prefix("MIG ")?.split_once("(UUID: ")?;
        let uuid = rest.split(')').next()?.trim();
        uuid.starts_with("MIG-").then(|| uuid.to_owned())
    };
    text.lines().filter_map(uuid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in NVIDIA's MIG user guide, for drivers since 470 and before.
    #[test]
    fn partitions_by_uuid() {
        let check = |text: &str, expect: &[&str]| assert_eq!(parse_partitions(text), expect);
        check(
            "GPU 0: A100-SXM4-40GB (UUID: GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0)\n  \
             MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)\n  \
             MIG 3g.20gb     Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)\n",
            &[
                "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f",
                "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb",
            ],
        );
        check(
            "  MIG 1c.3g.20gb Device 0: (UUID: MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/2/0)",
            &["MIG-GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0/2/0"],
        );
        check("GPU 0: MIG (UUID: GPU-1)\nMIG (UUID: \n MIG x (UUID: GPU-2)\n", &[]);
    }

    #[test]
    fn file_access_follows_the_rules_of_the_kernel() {
        let who = |status: &str| Credentials::of(status).unwrap();
        let user = who("Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\nGroups:\t27 44 1000 \n");
        assert_eq!(user, Credentials { user: 1000, groups: vec![27, 44, 1000, 1000] });
        assert!(user.opens(0o666, 0, 0) && user.opens(0o660, 0, 44));
        assert!(!user.opens(0o660, 0, 0) && !user.opens(0o444, 0, 0));
        // The owner's bits apply to the owner, even if others have more permissions.
        assert!(!user.opens(0o066, 1000, 1000));
        let root = who("Uid:\t0\t0\t0\t0\nGid:\t0\t0\nGroups:\t\n");
        assert!(root.opens(0o000, 0, 0));
        // In a rootless container root has no rights on files of the host.
        assert!(!root.opens(0o660, 65_534, 65_534) && root.opens(0o666, 65_534, 65_534));
        assert_eq!(Credentials::of(""), None);
        assert_eq!(group_name("root:x:0:\nvideo:x:44:me\n", 44).as_deref(), Some("video"));
        assert_eq!(group_name("broken\nx:y\n", 44), None);
    }

    #[test]
    fn shared_memory_size_is_read() {
        let check = |line: &str, expect: Option<u64>| {
            assert_eq!(parse_shared_memory(line), expect, "{line}");
        };
        check("shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k 0 0", Some(64 << 20));
        check("tmpfs /dev/shm tmpfs rw,size=16g,inode64 0 0\n", Some(16 << 30));
        check("a /dev/shm tmpfs size=1k 0 0\nb /dev/shm tmpfs size=2k 0 0", Some(2 << 10));
        // The default is half of the memory, without an explicit limit.
        check("tmpfs /dev/shm tmpfs rw,nosuid,nodev,inode64 0 0", None);
        check("tmpfs /run tmpfs size=1k 0 0\n/dev/shm\n\n", None);
        check("x /dev/shm tmpfs size=18446744073709551615g 0 0", None);
    }
}
