//! Recorded machines with faults.

use super::{altered, replace, report};
use facts::{BackendKind, Fact, Gpu, Machine, MachineKind};
use std::path::Path;

/// Without NVML, nvidia-smi reports the same facts under its own name.
#[test]
fn nvidia_smi_is_the_last_resort() {
    let with = report("h200").machine;
    let without =
        altered("h200", |folder| std::fs::remove_file(folder.join("nvml")).unwrap()).machine;
    let values = |machine: &Machine| -> Vec<_> {
        let of = |gpu: &Gpu| {
            (
                gpu.name.value.clone(),
                gpu.compute_capability.as_ref().map(|fact| fact.value),
                gpu.memory_total_bytes.as_ref().map(|fact| fact.value),
                gpu.pci_bus.clone(),
                gpu.mig,
                gpu.uuid.clone(),
            )
        };
        machine.gpus.iter().map(of).collect()
    };
    assert_eq!(values(&with), values(&without));
    assert!(
        without.gpus[0].name.source.starts_with("nvidia-smi"),
        "{}",
        without.gpus[0].name.source
    );
    let limit = without.driver.unwrap().cuda_limit.unwrap();
    assert_eq!(limit, Fact::new((13, 0), "nvidia-smi CUDA Version"));
}

/// A driver upgraded under a running system: NVML's message, both versions, and no backend on the GPU.
#[test]
fn driver_library_mismatch_is_reported() {
    let machine = altered("h200", |folder| {
        std::fs::write(
            folder.join("nvml"),
            "library = libnvidia-ml.so.1\nerror = Driver/library version mismatch\n",
        )
        .unwrap();
        replace(folder, "root/sys/module/nvidia/version", "580.159.04", "570.148.08");
    })
    .machine;
    let driver = machine.driver.unwrap();
    assert_eq!(
        driver.nvml_error,
        Some(Fact::new(
            "Driver/library version mismatch".to_string(),
            "NVML nvmlInit_v2 (libnvidia-ml.so.1)"
        ))
    );
    assert_eq!(driver.kernel_module.unwrap().value, "570.148.08");
    assert_eq!(driver.user_library.unwrap().value, "580.159.04");
    // The module's files still have the GPU's name.
    assert_eq!(
        machine.gpus[0].name,
        Fact::new("NVIDIA H200".to_string(), "/proc/driver/nvidia/gpus/0000:00:06.0/information")
    );
    assert_eq!((machine.backend, machine.kind), (BackendKind::Cpu, MachineKind::X86Cuda));
    assert!(
        machine.notes.iter().any(|note| note.contains("Driver/library version mismatch")),
        "{:?}",
        machine.notes
    );
}

#[test]
fn gpu_that_fell_off_the_bus_is_noted() {
    let machine = altered("h200", |folder| {
        let nvml = folder.join("nvml");
        let text = std::fs::read_to_string(&nvml).unwrap();
        std::fs::write(nvml, text + "\n[gpu]\nerror = GPU is lost\n").unwrap();
    })
    .machine;
    assert_eq!(machine.gpus.len(), 1);
    assert_eq!(
        machine.notes,
        ["GPU 1 does not answer (NVML nvmlDeviceGetHandleByIndex: GPU is lost)"]
    );
}

/// A limit on any parent group applies as well: the tightest one counts, of either version.
#[test]
fn lowest_limit_is_used() {
    let check = |files: &[(&str, &str)], memory: (u64, &str), cores: (u32, &str)| {
        let machine = altered("x86-cpu", |folder| {
            for (file, text) in files {
                let file = folder.join("root").join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
        })
        .machine;
        assert_eq!(machine.memory.limit_bytes, Some(Fact::new(memory.0, memory.1)));
        assert_eq!(machine.cpu.usable_cores, Some(Fact::new(cores.0, cores.1)));
    };
    let own = ("proc/self/cgroup", "0::/pod/main\n");
    let root = (8 << 30, "/sys/fs/cgroup/memory.max");
    check(&[own], root, (4, "/sys/fs/cgroup/cpu.max"));
    check(
        &[
            own,
            ("sys/fs/cgroup/pod/memory.max", "1048576\n"),
            ("sys/fs/cgroup/pod/main/memory.max", "max\n"),
        ],
        (1 << 20, "/sys/fs/cgroup/pod/memory.max"),
        (4, "/sys/fs/cgroup/cpu.max"),
    );
    check(
        &[
            own,
            ("sys/fs/cgroup/pod/main/cpu.max", "max 100000\n"),
            ("proc/self/status", "Cpus_allowed_list:\t2-3\n"),
        ],
        root,
        (2, "/proc/self/status Cpus_allowed_list"),
    );
    // Version 1, with its controllers mounted together, next to an unlimited memory group.
    check(
        &[
            ("proc/self/cgroup", "5:cpu,cpuacct:/pod\n4:memory:/pod\n0::/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us", "100000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "9223372036854771712\n"),
        ],
        root,
        (1, "/sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us"),
    );
}

/// Available memory is at most what a limit leaves, of this process's group or of a parent.
#[test]
fn nearly_reached_limit_leaves_little_memory() {
    let check = |files: &[(&str, &str)], left: u64, source: &str| {
        let machine = altered("x86-cpu", |folder| {
            for (file, text) in files {
                let file = folder.join("root/sys/fs/cgroup").join(file);
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(file, text).unwrap();
            }
            std::fs::write(folder.join("root/proc/self/cgroup"), "4:memory:/pod\n0::/pod\n")
                .unwrap();
        })
        .machine;
        assert_eq!(machine.memory.available_bytes, Some(Fact::new(left, source)));
    };
    let stat = ("pod/memory.stat", "anon 7\ninactive_file 1000\nactive_file 9\n");
    let own = [("pod/memory.max", "1048576\n"), ("pod/memory.current", "1040000\n"), stat];
    check(&own, 9_576, "/sys/fs/cgroup/pod/memory.max, less what is in use");
    // The parent group has less left than the group itself.
    let above = [("memory.max", "5000000\n"), ("memory.current", "4999000\n")];
    let source = "/sys/fs/cgroup/memory.max, less what is in use";
    check(&[&own[..], &above].concat(), 1_000, source);
    let first = [
        ("memory/pod/memory.limit_in_bytes", "2000\n"),
        ("memory/pod/memory.usage_in_bytes", "3000\n"),
        ("memory/pod/memory.stat", "total_inactive_file 1500\n"),
    ];
    let source = "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes, less what is in use";
    check(&first, 500, source);
}

/// CUDA's compatibility package precedes the driver's libcuda in the loader's order.
#[test]
fn libcuda_is_the_first_that_the_loader_finds() {
    let compat = |folder: &Path| {
        let place = folder.join("root/usr/local/cuda-13.0/compat");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("libcuda.so.590.44.01"), "").unwrap();
        std::os::unix::fs::symlink("libcuda.so.590.44.01", place.join("libcuda.so.1")).unwrap();
    };
    let check = |change: &dyn Fn(&Path), path: &str, source: &str| {
        let driver = altered("h200", |folder| change(folder)).machine.driver.unwrap();
        assert_eq!(driver.cuda_library, Some(Fact::new(path.to_string(), source)));
        assert_eq!(driver.user_library.unwrap().value, "580.159.04");
    };
    let own = "/usr/local/nvidia/lib64/libcuda.so.580.159.04";
    check(&compat, own, "LD_LIBRARY_PATH /usr/local/nvidia/lib64");
    let in_front = |folder: &Path| {
        compat(folder);
        replace(folder, "env", "LD_LIBRARY_PATH=", "LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat:");
    };
    let first = "/usr/local/cuda-13.0/compat/libcuda.so.590.44.01";
    check(&in_front, first, "LD_LIBRARY_PATH /usr/local/cuda-13.0/compat");
}

#[test]
fn switches_and_the_service_that_sets_them_up() {
    let machine =
        |change: &dyn Fn(&Path)| altered("a10", |folder| change(folder)).machine.driver.unwrap();
    let switches = |folder: &Path| {
        for name in ["0000:05:00.0", "0000:06:00.0"] {
            std::fs::create_dir_all(
                folder.join("root/proc/driver/nvidia-nvswitch/devices").join(name),
            )
            .unwrap();
        }
    };
    let driver = machine(&switches);
    assert_eq!(driver.nvswitches, Some(Fact::new(2, "/proc/driver/nvidia-nvswitch/devices")));
    assert_eq!(driver.fabric_manager, None);
    let driver = machine(&|folder: &Path| {
        switches(folder);
        for (pid, name) in [("1", "systemd"), ("2841", "nv-fabricmanage")] {
            std::fs::create_dir_all(folder.join("root/proc").join(pid)).unwrap();
            std::fs::write(folder.join("root/proc").join(pid).join("comm"), format!("{name}\n"))
                .unwrap();
        }
    });
    assert_eq!(driver.fabric_manager, Some(Fact::new(2841, "/proc/2841/comm")));
    // The driver creates the folder on machines without switches too.
    let empty = machine(&|folder: &Path| {
        std::fs::create_dir_all(folder.join("root/proc/driver/nvidia-nvswitch/devices")).unwrap();
    });
    assert_eq!(empty.nvswitches, None);
}

/// Requirements of GPU access, each read from its file.
#[test]
fn requirements_of_gpu_access_are_read_from_sysfs() {
    let machine = altered("h200", |folder| {
        let write = |path: &str, bytes: &[u8]| {
            let file = folder.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, bytes).unwrap();
        };
        let bus = "root/sys/bus/pci/devices/0000:00:06.0";
        write(&format!("{bus}/vendor"), b"0x10de\n");
        write(&format!("{bus}/class"), b"0x030200\n");
        write(&format!("{bus}/device"), b"0x2335\n");
        std::os::unix::fs::symlink(
            "../../../bus/pci/drivers/nouveau",
            folder.join(bus).join("driver"),
        )
        .unwrap();
        write("root/sys/bus/pci/devices/0000:00:07.0/vendor", b"0x1af4\n");
        write("dev", b"/dev/nvidiactl 660 0 44\n/dev/nvidia0 666 0 0\n");
        replace(
            folder,
            "root/proc/self/status",
            "Cpus_allowed_list",
            "Uid:\t1000\t1000\t1000\t1000\nGid:\t1000\t1000\nGroups:\t27\nCpus_allowed_list",
        );
        write("root/etc/group", b"root:x:0:\nvideo:x:44:\n");
        let kernel = "6.18.44-fc-v657-gpu";
        write(
            &format!("root/lib/modules/{kernel}/modules.dep"),
            b"kernel/a.ko:\nupdates/dkms/nvidia.ko.zst: kernel/a.ko\n",
        );
        write(
            "root/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
            &[6, 0, 0, 0, 1],
        );
        write("root/proc/self/mounts", b"shm /dev/shm tmpfs rw,size=65536k 0 0\n");
        write("root/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", b"");
        let mut env = std::fs::read_to_string(folder.join("env")).unwrap();
        env.push_str("CUDA_VISIBLE_DEVICES=\n");
        write("env", env.as_bytes());
    })
    .machine;
    let access = machine.access;
    let pci = access.pci.unwrap();
    assert_eq!(pci.source, "/sys/bus/pci/devices");
    assert_eq!((pci.value.len(), pci.value[0].driver.as_deref()), (1, Some("nouveau")));
    assert_eq!(
        (pci.value[0].bus.as_str(), pci.value[0].device.as_str()),
        ("0000:00:06.0", "0x2335")
    );
    let nodes: Vec<_> =
        access.nodes.iter().map(|n| (n.path.as_str(), n.group.as_str(), n.opens)).collect();
    assert_eq!(nodes, [("/dev/nvidia0", "root", true), ("/dev/nvidiactl", "video", false)]);
    assert_eq!(access.module_file.unwrap().value, "updates/dkms/nvidia.ko.zst");
    assert!(access.secure_boot.unwrap().value);
    assert_eq!(access.shared_memory_bytes, Some(Fact::new(64 << 20, "/proc/self/mounts /dev/shm")));
    assert_eq!(access.mig_instances.unwrap().value, 1);
    assert_eq!(access.visible_devices, Some(Fact::new(String::new(), "CUDA_VISIBLE_DEVICES")));
    // A recording without any of it has no facts.
    assert_eq!(report("h200").machine.access, facts::GpuAccess::default());
}

#[test]
fn partitions_are_listed_where_one_is_named() {
    let uuids = |mig: &str, visible: &str| {
        let machine = altered("h200", |folder| {
            replace(folder, "nvml", "mig = false", &format!("mig = {mig}"));
            let text = "GPU 0: NVIDIA H200 (UUID: GPU-1)\n  MIG 1g.18gb Device  0: (UUID: MIG-2)\n";
            std::fs::write(folder.join("commands/nvidia-smi-list"), text).unwrap();
            let mut env = std::fs::read_to_string(folder.join("env")).unwrap();
            env.push_str(&format!("CUDA_VISIBLE_DEVICES={visible}\n"));
            std::fs::write(folder.join("env"), env).unwrap();
        });
        machine.machine.access.mig_uuids
    };
    let listed = Fact::new(vec!["MIG-2".to_owned()], "nvidia-smi -L");
    assert_eq!(uuids("true", "MIG-3"), Some(listed));
    assert_eq!(uuids("true", "0"), None);
    assert_eq!(uuids("false", "MIG-3"), None);
}
