//! Every fact of each recorded machine, with its source.

use super::{altered, replace, report};
use facts::{BackendKind, Fact, Machine, MachineKind, Platform};

/// A summary of a machine, each value followed by its source.
fn describe(machine: &Machine) -> Vec<String> {
    let mut lines = vec![format!("{} {} {:?}", machine.platform, machine.backend, machine.kind)];
    let mut line = |name: &str, value: Option<(String, &str)>| {
        if let Some((value, source)) = value {
            lines.push(format!("{name}: {value} <- {source}"));
        }
    };
    macro_rules! fact {
        ($name:literal, $fact:expr) => {
            line($name, $fact.as_ref().map(|fact| (fact.value.to_string(), fact.source.as_str())))
        };
    }
    fact!("os", machine.os.name);
    fact!("kernel", machine.os.kernel);
    fact!("libc", machine.os.libc);
    fact!("cpu", machine.cpu.model);
    fact!("logical", machine.cpu.logical_cores);
    fact!("physical", machine.cpu.physical_cores);
    fact!("usable", machine.cpu.usable_cores);
    fact!("memory", machine.memory.total_bytes);
    fact!("limit", machine.memory.limit_bytes);
    for gpu in &machine.gpus {
        fact!("gpu", Some(&gpu.name));
        line(
            "capability",
            gpu.compute_capability.as_ref().map(|f| (format!("{:?}", f.value), f.source.as_str())),
        );
        fact!("gpu memory", gpu.memory_total_bytes);
    }
    if let Some(driver) = &machine.driver {
        fact!("module", driver.kernel_module);
        fact!("open", driver.open_module);
        fact!("library", driver.user_library);
        line(
            "limit",
            driver.cuda_limit.as_ref().map(|f| (format!("{:?}", f.value), f.source.as_str())),
        );
        fact!("nvml", driver.nvml_error);
    }
    for toolkit in &machine.toolkits {
        let found = format!("{} by {}, nvcc {}", toolkit.root, toolkit.found_by, toolkit.has_nvcc);
        match &toolkit.version {
            Some(version) => {
                line("toolkit", Some((format!("{} in {found}", version.value), &version.source)))
            }
            None => line("toolkit", Some((found, "no version"))),
        }
    }
    for library in &machine.libraries {
        let version = library.version.as_deref().unwrap_or("?");
        line(
            "lib",
            Some((format!("{} {version} {}", library.name, library.path), &library.source)),
        );
    }
    if let Some(virtualisation) = &machine.virtualisation {
        fact!("container", virtualisation.container);
        fact!("vm", virtualisation.machine);
    }
    lines.extend(machine.notes.iter().map(|note| format!("note: {note}")));
    lines
}

fn check(name: &str, expect: &str) {
    let expect: Vec<&str> = expect.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let lines = describe(&report(name).machine);
    assert_eq!(lines.join("\n"), expect.join("\n"), "{name}");
}

#[test]
fn h200() {
    check(
        "h200",
        "linux-x86_64 cuda X86Cuda
        os: Ubuntu 24.04.3 LTS <- /etc/os-release PRETTY_NAME
        kernel: 6.18.44-fc-v657-gpu <- /proc/sys/kernel/osrelease
        libc: glibc 2.39 <- /lib/x86_64-linux-gnu/libc.so.6
        cpu: Intel(R) Xeon(R) Processor <- /proc/cpuinfo
        logical: 16 <- /sys/devices/system/cpu/online
        physical: 16 <- /proc/cpuinfo physical id, core id
        usable: 16 <- /proc/self/status Cpus_allowed_list
        memory: 135148564480 <- /proc/meminfo MemTotal
        gpu: NVIDIA H200 <- NVML nvmlDeviceGetName
        capability: (9, 0) <- NVML nvmlDeviceGetCudaComputeCapability
        gpu memory: 150754820096 <- NVML nvmlDeviceGetMemoryInfo_v2
        module: 580.159.04 <- /sys/module/nvidia/version
        open: true <- /proc/driver/nvidia/version
        library: 580.159.04 <- /usr/local/nvidia/lib64/libnvidia-ml.so.580.159.04
        limit: (13, 0) <- NVML nvmlSystemGetCudaDriverVersion_v2
        toolkit: 13.0 in /usr/local/cuda by CUDA_HOME, nvcc true <- /usr/local/cuda-13.0/include/cuda.h
        lib: nvrtc 13.0.88 /usr/local/cuda-13.0/targets/x86_64-linux/lib/libnvrtc.so.13.0.88 <- /etc/ld.so.cache
        lib: cublasLt 13.1.0.3 /usr/local/cuda-13.0/targets/x86_64-linux/lib/libcublasLt.so.13.1.0.3 <- /etc/ld.so.cache
        lib: cudnn 9.14.0 /usr/lib/x86_64-linux-gnu/libcudnn.so.9.14.0 <- /etc/ld.so.cache
        lib: nccl 2.28.3 /usr/lib/x86_64-linux-gnu/libnccl.so.2.28.3 <- /etc/ld.so.cache
        lib: nvrtc 13 /opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13 <- /opt/torch/.venv/lib/python3.12/site-packages
        lib: cublasLt 13 /opt/torch/.venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13 <- /opt/torch/.venv/lib/python3.12/site-packages
        lib: cudnn 9 /opt/torch/.venv/lib/python3.12/site-packages/nvidia/cudnn/lib/libcudnn.so.9 <- /opt/torch/.venv/lib/python3.12/site-packages
        lib: nccl 2 /opt/torch/.venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2 <- /opt/torch/.venv/lib/python3.12/site-packages
        container: docker <- /.dockerenv
        vm: kvm <- /sys/devices/system/clocksource/clocksource0/available_clocksource",
    );
}

/// Rows R0-01 and R0-02: 101,468,602,368 bytes are 101.47 GB or 94.50 GiB, from a single count.
#[test]
fn gh200() {
    check(
        "gh200",
        "linux-aarch64 cuda ArmCuda
        os: Ubuntu 22.04.5 LTS <- /etc/os-release PRETTY_NAME
        kernel: 6.8.0-1013-nvidia-64k <- /proc/sys/kernel/osrelease
        libc: glibc 2.35 <- /lib/aarch64-linux-gnu/libc.so.6
        cpu: Neoverse-V2 <- /proc/cpuinfo
        logical: 72 <- /sys/devices/system/cpu/online
        physical: 72 <- /sys/devices/system/cpu/smt/active
        usable: 72 <- /proc/self/status Cpus_allowed_list
        memory: 514401501184 <- /proc/meminfo MemTotal
        gpu: NVIDIA GH200 480GB <- NVML nvmlDeviceGetName
        capability: (9, 0) <- NVML nvmlDeviceGetCudaComputeCapability
        gpu memory: 101468602368 <- NVML nvmlDeviceGetMemoryInfo_v2
        module: 570.148.08 <- /sys/module/nvidia/version
        open: true <- /proc/driver/nvidia/version
        library: 570.148.08 <- /usr/lib/aarch64-linux-gnu/libnvidia-ml.so.570.148.08
        limit: (12, 8) <- NVML nvmlSystemGetCudaDriverVersion_v2
        toolkit: 12.8 in /usr/local/cuda by PATH, nvcc true <- /usr/local/cuda-12.8/bin/nvcc --version",
    );
    let bytes = 101_468_602_368f64;
    assert_eq!(
        (format!("{:.2}", bytes / 1e9), format!("{:.2}", bytes / (1u64 << 30) as f64)),
        ("101.47".into(), "94.50".into())
    );
}

/// Row R2-01. CUDA 12.4 is the toolkit's: a 570 driver accepts up to 12.8.
#[test]
fn a10() {
    check(
        "a10",
        "linux-x86_64 cuda X86Cuda
        os: Ubuntu 22.04.5 LTS <- /etc/os-release PRETTY_NAME
        kernel: 6.8.0-1029-aws <- /proc/sys/kernel/osrelease
        libc: glibc 2.35 <- /lib/x86_64-linux-gnu/libc.so.6
        cpu: Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz <- /proc/cpuinfo
        logical: 8 <- /sys/devices/system/cpu/online
        physical: 4 <- /proc/cpuinfo physical id, core id
        usable: 8 <- /proc/self/status Cpus_allowed_list
        memory: 33285996544 <- /proc/meminfo MemTotal
        gpu: NVIDIA A10 <- NVML nvmlDeviceGetName
        capability: (8, 6) <- NVML nvmlDeviceGetCudaComputeCapability
        gpu memory: 24146608128 <- NVML nvmlDeviceGetMemoryInfo_v2
        module: 570.148.08 <- /sys/module/nvidia/version
        open: false <- /proc/driver/nvidia/version
        library: 570.148.08 <- /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.148.08
        limit: (12, 8) <- NVML nvmlSystemGetCudaDriverVersion_v2
        toolkit: 12.4.1 in /usr/local/cuda by /usr/local, nvcc true <- /usr/local/cuda-12.4/version.json
        lib: nvrtc 12.4.127 /usr/local/cuda-12.4/targets/x86_64-linux/lib/libnvrtc.so.12.4.127 <- toolkit /usr/local/cuda
        lib: cublasLt 12.4.5.8 /home/ubuntu/miniconda3/envs/granite/lib/libcublasLt.so.12.4.5.8 <- conda environment /home/ubuntu/miniconda3/envs/granite
        vm: kvm (Amazon EC2) <- /sys/class/dmi/id/sys_vendor",
    );
    let gpu = report("a10").machine.gpus.remove(0);
    assert_eq!(gpu.memory_total_bytes.map(|fact| fact.value), Some(23_028 << 20));
    assert_eq!(gpu.memory_used_bytes.map(|fact| fact.value), Some(18_973 << 20));
}

/// Row R4-01.
#[test]
fn rtx4090() {
    check(
        "rtx4090",
        "linux-x86_64 cuda X86Cuda
        os: Ubuntu 22.04.3 LTS <- /etc/os-release PRETTY_NAME
        kernel: 6.8.0-49-generic <- /proc/sys/kernel/osrelease
        libc: glibc 2.35 <- /lib/x86_64-linux-gnu/libc.so.6
        cpu: AMD Ryzen 9 7950X 16-Core Processor <- /proc/cpuinfo
        logical: 16 <- /sys/devices/system/cpu/online
        physical: 8 <- /proc/cpuinfo physical id, core id
        usable: 16 <- /proc/self/status Cpus_allowed_list
        memory: 134217728000 <- /proc/meminfo MemTotal
        gpu: NVIDIA GeForce RTX 4090 <- NVML nvmlDeviceGetName
        capability: (8, 9) <- NVML nvmlDeviceGetCudaComputeCapability
        gpu memory: 25757220864 <- NVML nvmlDeviceGetMemoryInfo_v2
        module: 550.163.01 <- /sys/module/nvidia/version
        open: false <- /proc/driver/nvidia/version
        library: 550.163.01 <- /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.163.01
        limit: (12, 4) <- NVML nvmlSystemGetCudaDriverVersion_v2
        lib: nvrtc 12 /workspace/nsa/.venv/lib/python3.11/site-packages/torch/lib/libnvrtc-b51b459d.so.12 <- /workspace/nsa/.venv/lib/python3.11/site-packages
        container: docker <- /.dockerenv
        note: nvidia-smi is not on PATH; NVML answered instead",
    );
    assert_eq!(25_757_220_864, 24_564u64 << 20);
}

#[test]
fn jetson_orin() {
    const EXPECT: &str = "linux-aarch64 cuda Jetson
        os: Ubuntu 22.04.5 LTS <- /etc/os-release PRETTY_NAME
        kernel: 5.15.148-tegra <- /proc/sys/kernel/osrelease
        libc: glibc 2.35 <- /lib/aarch64-linux-gnu/libc.so.6
        cpu: Cortex-A78AE <- /proc/cpuinfo
        logical: 12 <- /sys/devices/system/cpu/online
        usable: 12 <- /proc/self/status Cpus_allowed_list
        memory: 65883566080 <- /proc/meminfo MemTotal
        gpu: Orin (nvgpu) <- NVML nvmlDeviceGetName
        capability: (8, 7) <- NVML nvmlDeviceGetCudaComputeCapability
        gpu memory: 65883566080 <- /proc/meminfo MemTotal (shared with the host; NVML nvmlDeviceGetMemoryInfo_v2: Not Supported)
        module: 540.4.0 <- /sys/module/nvidia/version
        open: true <- /proc/driver/nvidia/version
        limit: (12, 6) <- NVML nvmlSystemGetCudaDriverVersion_v2
        toolkit: 12.6.11 in /usr/local/cuda by PATH, nvcc true <- /usr/local/cuda-12.6/version.json
        note: nvidia-smi is not on PATH; NVML answered instead
        note: Jetson Linux (L4T) R36.4.3 (/etc/nv_tegra_release)";
    check("jetson-orin", EXPECT);
    // JetPack 5 has neither NVML nor the nvidia module: only the device tree has the facts.
    let old = altered("jetson-orin", |folder| {
        std::fs::remove_file(folder.join("nvml")).unwrap();
        std::fs::remove_dir_all(folder.join("root/sys/module/nvidia")).unwrap();
        std::fs::remove_dir_all(folder.join("root/proc/driver")).unwrap();
    });
    assert_eq!((old.machine.kind, old.machine.backend), (MachineKind::Jetson, BackendKind::Cuda));
    let gpu = &old.machine.gpus[0];
    assert_eq!(gpu.name.value, "Orin (NVIDIA Jetson AGX Orin Developer Kit)");
    assert_eq!(gpu.compute_capability, Some(Fact::new((8, 7), "/proc/device-tree/compatible")));
    assert_eq!(
        gpu.memory_total_bytes,
        Some(Fact::new(65_883_566_080, "/proc/meminfo MemTotal (shared with the host)"))
    );
}

#[test]
fn gb10() {
    check(
        "gb10",
        "linux-aarch64 cuda ArmCuda
        os: Ubuntu 24.04.3 LTS <- /etc/os-release PRETTY_NAME
        kernel: 6.14.0-1013-nvidia <- /proc/sys/kernel/osrelease
        libc: glibc 2.39 <- /lib/aarch64-linux-gnu/libc.so.6
        cpu: Cortex-X925 + Cortex-A725 <- /proc/cpuinfo
        logical: 20 <- /sys/devices/system/cpu/online
        usable: 20 <- /proc/self/status Cpus_allowed_list
        memory: 128525754368 <- /proc/meminfo MemTotal
        gpu: NVIDIA GB10 <- NVML nvmlDeviceGetName
        capability: (12, 1) <- NVML nvmlDeviceGetCudaComputeCapability
        gpu memory: 128525754368 <- /proc/meminfo MemTotal (shared with the host; NVML nvmlDeviceGetMemoryInfo_v2: Not Supported)
        module: 580.95.05 <- /sys/module/nvidia/version
        open: true <- /proc/driver/nvidia/version
        library: 580.95.05 <- /usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.95.05
        limit: (13, 0) <- NVML nvmlSystemGetCudaDriverVersion_v2
        toolkit: 13.0.2 in /usr/local/cuda by /usr/local, nvcc true <- /usr/local/cuda-13.0/version.json",
    );
}

#[test]
fn apple_silicon() {
    check(
        "m4-max",
        "macos-aarch64 metal AppleSilicon
        os: macOS 15.6.1 <- sw_vers
        kernel: 24.6.0 <- sysctl kern.osrelease
        cpu: Apple M4 Max <- sysctl machdep.cpu.brand_string
        logical: 16 <- sysctl hw.logicalcpu_max
        physical: 16 <- sysctl hw.physicalcpu_max
        usable: 16 <- sysctl hw.activecpu
        memory: 68719476736 <- sysctl hw.memsize
        gpu: Apple M4 Max, 40-core GPU <- system_profiler SPDisplaysDataType
        gpu memory: 68719476736 <- sysctl hw.memsize (shared with the host)",
    );
    let cpu = report("m4-max").machine.cpu;
    assert_eq!(cpu.features.unwrap().value, ["bf16", "dotprod", "fp16", "i8mm", "neon", "sme"]);
    let caches: Vec<(u32, u64)> =
        cpu.caches.iter().map(|cache| (cache.level, cache.bytes)).collect();
    assert_eq!(caches, [(1, 131_072), (2, 16_777_216)]);
    for chip in ["Apple M1", "Apple M2 Ultra", "Apple M3 Pro"] {
        let report = altered("m4-max", |folder| {
            for file in ["commands/sysctl", "commands/system_profiler-displays"] {
                replace(folder, file, "Apple M4 Max", chip);
            }
            // A program translated by Rosetta sees x86_64.
            replace(folder, "commands/uname", "arm64", "x86_64");
        });
        assert_eq!(
            (report.machine.kind, report.machine.backend),
            (MachineKind::AppleSilicon, BackendKind::Metal)
        );
        assert_eq!(report.machine.cpu.model.unwrap().value, chip);
    }
}

/// Rows R1-02 and R1-04: without a GPU there is the CPU backend and a note, not a failure; a container's limits are
/// respected.
#[test]
fn machine_without_gpu_uses_the_cpu_backend() {
    check(
        "x86-cpu",
        "linux-x86_64 cpu X86Cpu
        os: Alpine Linux v3.21 <- /etc/os-release PRETTY_NAME
        kernel: 6.12.0-generic <- /proc/sys/kernel/osrelease
        libc: musl 1.2.5 <- /lib/apk/db/installed
        cpu: Intel(R) Xeon(R) E-2388G CPU @ 3.20GHz <- /proc/cpuinfo
        logical: 8 <- /sys/devices/system/cpu/online
        physical: 4 <- /proc/cpuinfo physical id, core id
        usable: 4 <- /sys/fs/cgroup/cpu.max
        memory: 33554432000 <- /proc/meminfo MemTotal
        limit: 8589934592 <- /sys/fs/cgroup/memory.max
        container: kubernetes <- KUBERNETES_SERVICE_HOST
        vm: kvm <- /sys/class/dmi/id/sys_vendor
        note: no trace of an NVIDIA driver: no /sys/module/nvidia, /proc/driver/nvidia, libnvidia-ml.so.1 or nvidia-smi",
    );
}

/// Row R1-03, for the machines that differ from a recorded one by a name.
#[test]
fn machines_that_differ_by_a_name_get_their_kind() {
    let gb200 = altered("gh200", |folder| replace(folder, "nvml", "GH200 480GB", "GB200"));
    assert_eq!(gb200.machine.kind, MachineKind::ArmCuda);
    let graviton = altered("gh200", |folder| {
        std::fs::remove_file(folder.join("nvml")).unwrap();
        for gone in ["root/sys/module", "root/proc/driver", "root/usr/lib", "root/usr/bin"] {
            std::fs::remove_dir_all(folder.join(gone)).unwrap();
        }
    });
    assert_eq!(
        (graviton.machine.kind, graviton.machine.backend),
        (MachineKind::ArmCpu, BackendKind::Cpu)
    );
    let riscv = altered("x86-cpu", |folder| {
        replace(folder, "root/proc/sys/kernel/arch", "x86_64", "riscv64")
    });
    assert_eq!(
        (riscv.machine.platform, riscv.machine.kind),
        (Platform::Unknown, MachineKind::Unknown)
    );
    assert!(riscv.machine.notes[0].contains("`riscv64`"), "{:?}", riscv.machine.notes);
}
