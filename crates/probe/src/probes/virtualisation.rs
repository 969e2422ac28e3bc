//! Containers and virtual machines.

use crate::Source;
use facts::{Fact, Machine, Platform, Virtualisation};

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let mac = matches!(machine.platform, Platform::MacosAarch64 | Platform::MacosX86_64);
    let container = container(source);
    let virtual_machine = if mac {
        let set = source.sysctl().is_set("kern.hv_vmm_present");
        set.then(|| Fact::new("apple".to_string(), "sysctl kern.hv_vmm_present"))
    } else {
        hypervisor(source)
    };
    if container.is_some() || virtual_machine.is_some() {
        machine.virtualisation = Some(Virtualisation { container, machine: virtual_machine });
    }
}

fn container(source: &Source) -> Option<Fact<String>> {
    let fact = |name: &str, from: &str| Some(Fact::new(name.to_string(), from));
    // Kubernetes first: its containers also have the signs of the runtime below it.
    if source.var("KUBERNETES_SERVICE_HOST").is_some() {
        return fact("kubernetes", "KUBERNETES_SERVICE_HOST");
    }
    for (file, name) in [
        ("/run/.containerenv", "podman"),
        ("/.dockerenv", "docker"),
        ("/.singularity.d", "apptainer"),
    ] {
        if source.exists(file) {
            return fact(name, file);
        }
    }
    for file in ["/proc/1/cgroup", "/proc/self/cgroup"] {
        if let Some(name) = source.text(file).as_deref().and_then(container_of_cgroup) {
            return fact(name, file);
        }
    }
    if let Some(name) = source.word("/run/systemd/container") {
        return Some(Fact::new(name, "/run/systemd/container"));
    }
    let release =
        source.word("/proc/sys/kernel/osrelease").unwrap_or_default().to_ascii_lowercase();
    if release.contains("microsoft") {
        return fact("wsl", "/proc/sys/kernel/osrelease");
    }
    None
}

/// The container manager in a control group path.
pub(crate) fn container_of_cgroup(text: &str) -> Option<&'static str> {
    text.lines().find_map(|line| line.splitn(3, ':').nth(2)?.split('/').find_map(container_of_part))
}

/// A manager's own service (`docker.service`) is not a container.
fn container_of_part(part: &str) -> Option<&'static str> {
    match part {
        "docker" => Some("docker"),
        "lxc" => Some("lxc"),
        "kubepods" | "kubepods.slice" => Some("kubernetes"),
        _ if part.starts_with("docker-") => Some("docker"),
        _ if part.starts_with("libpod-") && !part.starts_with("libpod-conmon") => Some("podman"),
        _ if part.starts_with("lxc.payload") => Some("lxc"),
        _ => None,
    }
}

fn hypervisor(source: &Source) -> Option<Fact<String>> {
    const DMI: &str = "/sys/class/dmi/id";
    // Amazon's bare-metal instances have the same vendor name as the virtual ones; their product is for example
    // `g5g.metal`.
    if source.word(format!("{DMI}/product_name")).is_some_and(|product| product.contains(".metal"))
    {
        return None;
    }
    for file in ["sys_vendor", "product_name", "board_vendor", "bios_vendor"] {
        let file = format!("{DMI}/{file}");
        if let Some(name) = source.word(&file).as_deref().and_then(hypervisor_of_dmi) {
            return Some(Fact::new(name.to_string(), file));
        }
    }
    for file in ["/sys/hypervisor/type", "/proc/device-tree/hypervisor/compatible"] {
        if let Some(word) = source.word(file) {
            let name = word.split('\0').next().unwrap_or(&word);
            return Some(Fact::new(name.strip_prefix("linux,").unwrap_or(name).to_string(), file));
        }
    }
    // Hosts without DMI tables, including Firecracker's, still offer their clock.
    const CLOCKS: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";
    if let Some(name) = source.text(CLOCKS).as_deref().and_then(hypervisor_of_clocks) {
        return Some(Fact::new(name.to_string(), CLOCKS));
    }
    let cpuinfo = source.text("/proc/cpuinfo")?;
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    let set = flags.split_whitespace().any(|flag| flag == "hypervisor");
    set.then(|| Fact::new("unknown hypervisor".to_string(), "/proc/cpuinfo flags"))
}

/// The hypervisor of a word in the firmware's tables; `None` for real boards.
pub(crate) fn hypervisor_of_dmi(word: &str) -> Option<&'static str> {
    const NAMES: &[(&str, &str)] = &[
        ("QEMU", "kvm"),
        ("KVM", "kvm"),
        ("Google Compute Engine", "kvm (Google Compute Engine)"),
        ("Amazon EC2", "kvm (Amazon EC2)"),
        ("OpenStack", "kvm (OpenStack)"),
        ("Alibaba Cloud", "kvm (Alibaba Cloud)"),
        ("VMware", "vmware"),
        ("VirtualBox", "virtualbox"),
        ("innotek", "virtualbox"),
        ("Xen", "xen"),
        ("HVM domU", "xen"),
        ("Virtual Machine", "hyper-v"),
        ("Bochs", "bochs"),
        ("Parallels", "parallels"),
        ("Firecracker", "firecracker"),
        ("Cloud Hypervisor", "cloud-hypervisor"),
    ];
    NAMES.iter().find(|(mark, _)| word.contains(mark)).map(|(_, name)| *name)
}

/// The hypervisor whose clock the kernel offers.
pub(crate) fn hypervisor_of_clocks(text: &str) -> Option<&'static str> {
    text.split_whitespace().find_map(|clock| match clock {
        "kvm-clock" => Some("kvm"),
        "xen" => Some("xen"),
        clock if clock.starts_with("hyperv_clocksource") => Some("hyper-v"),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::{container_of_cgroup, hypervisor_of_clocks, hypervisor_of_dmi};

    #[test]
    fn control_groups() {
        let check = |text, expect| assert_eq!(container_of_cgroup(text), expect, "{text:?}");
        check("12:memory:/docker/4f1\n", Some("docker"));
        check(
            "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope\n",
            Some("kubernetes"),
        );
        check("0::/machine.slice/libpod-1.scope\n", Some("podman"));
        check("0::/system.slice/docker-4f1.scope\n", Some("docker"));
        check("0::/lxc.payload.web/init.scope\n", Some("lxc"));
        check("0::/system.slice/docker.service\n", None);
        check("0::/user.slice/user-1000.slice/my-docker-notes.scope\n", None);
        check("0::/\n4:memory\n", None);
    }

    #[test]
    fn firmware_and_clocks() {
        let check = |word, expect| assert_eq!(hypervisor_of_dmi(word), expect, "{word:?}");
        check("QEMU", Some("kvm"));
        check("Standard PC (Q35 + ICH9, 2009)", None);
        check("innotek GmbH", Some("virtualbox"));
        check("Virtual Machine", Some("hyper-v"));
        check("Microsoft Corporation", None);
        check("HP", None);
        assert_eq!(hypervisor_of_clocks("tsc kvm-clock \n"), Some("kvm"));
        assert_eq!(hypervisor_of_clocks("tsc hpet acpi_pm\n"), None);
    }
}
