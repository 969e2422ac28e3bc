//! The machines of the field reports, as `probe` would record them.

use facts::{
    BackendKind, CudaToolkit, DeviceNode, Driver, Fact, Gpu, GpuVendor, Machine, MachineKind,
    PciGpu, Platform, SystemMemory, Virtualisation,
};

const GIB: u64 = 1 << 30;

fn machine(platform: Platform, kind: MachineKind, gib: u64) -> Machine {
    let memory = SystemMemory {
        total_bytes: Some(Fact::new(gib * GIB, "/proc/meminfo MemTotal")),
        ..SystemMemory::default()
    };
    Machine { platform, kind, memory, ..Machine::unknown() }
}

fn ubuntu(mut machine: Machine, version: &str) -> Machine {
    machine.os.id = Some(Fact::new("ubuntu".into(), "/etc/os-release"));
    machine.os.version = Some(Fact::new(version.into(), "/etc/os-release"));
    machine
}

/// One NVIDIA GPU as NVML reports it.
pub(crate) fn gpu(name: &str, capability: (u32, u32), mib: u64) -> Gpu {
    Gpu {
        index: 0,
        vendor: GpuVendor::Nvidia,
        name: Fact::new(name.into(), "NVML nvmlDeviceGetName"),
        uuid: None,
        compute_capability: Some(Fact::new(capability, "NVML nvmlDeviceGetCudaComputeCapability")),
        memory_total_bytes: Some(Fact::new(mib << 20, "NVML nvmlDeviceGetMemoryInfo")),
        memory_used_bytes: None,
        pci_bus: None,
        mig: None,
        persistence: None,
        health: facts::GpuHealth::default(),
    }
}

/// Adds one GPU and a driver with this CUDA limit.
pub(crate) fn with_gpu(mut machine: Machine, gpu: Gpu, driver: &str, limit: (u32, u32)) -> Machine {
    machine.backend = BackendKind::Cuda;
    machine.gpus = vec![gpu];
    machine.driver = Some(Driver {
        kernel_module: Some(Fact::new(driver.into(), "/sys/module/nvidia/version")),
        user_library: Some(Fact::new(driver.into(), format!("/usr/lib/libnvidia-ml.so.{driver}"))),
        cuda_limit: Some(Fact::new(limit, "NVML nvmlSystemGetCudaDriverVersion")),
        ..Driver::default()
    });
    machine
}

/// A server with `count` H200 GPUs.
pub(crate) fn siblings(count: usize) -> Machine {
    let mut machine = h200();
    machine.gpus =
        (0..).take(count).map(|index| Gpu { index, ..machine.gpus[0].clone() }).collect();
    machine
}

/// Adds a toolkit with nvcc.
pub(crate) fn with_toolkit(mut machine: Machine, version: &str, found_by: &str) -> Machine {
    // A toolkit found as /usr/local/cuda is the default; a numbered folder next to it is not.
    let root = match found_by {
        "/usr/local/cuda" => found_by.to_owned(),
        _ => format!("/usr/local/cuda-{version}"),
    };
    let found_by = found_by.trim_end_matches("/cuda");
    let source = format!("{root}/version.json");
    machine.toolkits.push(CudaToolkit {
        root,
        version: Some(Fact::new(version.into(), source)),
        has_nvcc: true,
        found_by: found_by.into(),
    });
    machine
}

/// The same machine seen from inside a container.
pub(crate) fn in_container(machine: Machine) -> Machine {
    within(machine, "docker")
}

/// The same machine seen from inside a container of this kind.
pub(crate) fn within(mut machine: Machine, kind: &str) -> Machine {
    machine.virtualisation = Some(Virtualisation {
        container: Some(Fact::new(kind.into(), "/.dockerenv")),
        machine: None,
    });
    machine
}

/// The same machine with an NVIDIA GPU on its PCI bus, bound to this kernel driver.
pub(crate) fn on_bus(mut machine: Machine, driver: Option<&str>) -> Machine {
    let gpu = PciGpu {
        bus: "0000:01:00.0".into(),
        device: "0x2684".into(),
        driver: driver.map(str::to_owned),
    };
    machine.access.pci = Some(Fact::new(vec![gpu], "/sys/bus/pci/devices"));
    machine
}

/// The same machine with an NVML that refuses to initialize.
pub(crate) fn refused(mut machine: Machine, words: &str) -> Machine {
    let driver = machine.driver.get_or_insert_default();
    driver.nvml_error = Some(Fact::new(words.into(), "NVML nvmlInit_v2"));
    machine
}

/// The same machine for a user outside the group that may use the GPU.
pub(crate) fn closed(mut machine: Machine) -> Machine {
    let node = |path: &str| DeviceNode {
        path: path.into(),
        mode: 0o660,
        group: "vglusers".into(),
        opens: false,
    };
    machine.access.nodes = vec![node("/dev/nvidia0"), node("/dev/nvidiactl")];
    machine
}

/// Any x86-64 machine with this GPU, driver and limit.
pub(crate) fn x86_with(name: &str, sm: (u32, u32), driver: &str, limit: (u32, u32)) -> Machine {
    let machine = ubuntu(machine(Platform::LinuxX86_64, MachineKind::X86Cuda, 64), "22.04");
    with_gpu(machine, gpu(name, sm, 24 << 10), driver, limit)
}

/// The recorded H200 machine: driver 580.159.04, CUDA 13.0.
pub(crate) fn h200() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxX86_64, MachineKind::X86Cuda, 125), "24.04");
    let machine = with_gpu(machine, gpu("NVIDIA H200", (9, 0), 143_771), "580.159.04", (13, 0));
    with_toolkit(machine, "13.0", "CUDA_HOME")
}

/// GH200 480GB on Ubuntu 22.04 with CUDA 12.8 (row R0-01).
pub(crate) fn gh200() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxAarch64, MachineKind::ArmCuda, 525), "22.04");
    let machine =
        with_gpu(machine, gpu("NVIDIA GH200 480GB", (9, 0), 97_871), "570.148.08", (12, 8));
    with_toolkit(machine, "12.8", "/usr/local/cuda")
}

/// A10 with driver 570.148.08 (row R2-01).
pub(crate) fn a10() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxX86_64, MachineKind::X86Cuda, 220), "22.04");
    let machine = with_gpu(machine, gpu("NVIDIA A10", (8, 6), 23_028), "570.148.08", (12, 8));
    with_toolkit(machine, "12.4", "PATH")
}

/// RTX 4090 with driver 550.163.01 (row R4-01).
pub(crate) fn rtx4090() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxX86_64, MachineKind::X86Cuda, 128), "22.04");
    let gpu = gpu("NVIDIA GeForce RTX 4090", (8, 9), 24_564);
    with_gpu(machine, gpu, "550.163.01", (12, 4))
}

/// Jetson AGX Orin on JetPack 6.
pub(crate) fn jetson_orin() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxAarch64, MachineKind::Jetson, 61), "22.04");
    let machine = with_gpu(machine, gpu("Orin (nvgpu)", (8, 7), 62_000), "540.4.0", (12, 6));
    with_toolkit(machine, "12.6", "/usr/local/cuda")
}

/// Jetson AGX Thor on JetPack 7.
pub(crate) fn jetson_thor() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxAarch64, MachineKind::Jetson, 122), "24.04");
    with_gpu(machine, gpu("NVIDIA Thor", (11, 0), 125_000), "580.00", (13, 0))
}

/// DGX Spark: GB10, whose memory NVML does not report.
pub(crate) fn gb10() -> Machine {
    let machine = ubuntu(machine(Platform::LinuxAarch64, MachineKind::ArmCuda, 119), "24.04");
    let mut gpu = gpu("NVIDIA GB10", (12, 1), 0);
    gpu.memory_total_bytes = Some(Fact::new(119 * GIB, "/proc/meminfo (shared with the host)"));
    with_gpu(machine, gpu, "580.95.05", (13, 0))
}

/// An Apple M3 Max.
pub(crate) fn m3_max() -> Machine {
    let mut machine = machine(Platform::MacosAarch64, MachineKind::AppleSilicon, 48);
    machine.backend = BackendKind::Metal;
    machine.gpus = vec![Gpu {
        vendor: GpuVendor::Apple,
        compute_capability: None,
        ..gpu("Apple M3 Max", (0, 0), 0)
    }];
    machine
}

/// A plain x86-64 machine without a GPU.
pub(crate) fn x86() -> Machine {
    ubuntu(machine(Platform::LinuxX86_64, MachineKind::X86Cpu, 16), "24.04")
}
