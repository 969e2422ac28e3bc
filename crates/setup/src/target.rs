//! The target machine of a plan.

use facts::{Fact, GpuVendor, Machine, MachineKind, PlanTarget, Platform};
use knowledge::{Arch, Minor, dotted, machines};

/// Every machine known by name.
pub fn machines() -> Vec<PlanTarget> {
    machines::machines().iter().map(named).collect()
}

/// The machine of a name, in any spelling.
pub fn machine(name: &str) -> Option<PlanTarget> {
    machines::machine(name).map(named)
}

/// Memory of one GPU of a named machine, and its source; none if unknown.
pub fn gpu_memory(name: &str) -> Option<Fact<u64>> {
    let machine = machines::machine(name)?;
    let bytes = machine.gpu_bytes()?;
    Some(Fact::new(bytes, format!("one GPU of {}; {}", machine.name, machine.gpu_bytes_source())))
}

/// Any Linux machine with GPUs of this compute capability, with the C library of the oldest maintained Ubuntu.
pub fn with_gpu(gpu: Minor, arch: Arch) -> PlanTarget {
    let plain = match arch {
        Arch::X86_64 => "cpu-x86_64",
        Arch::Aarch64 => "cpu-aarch64",
    };
    let plain = machine(plain);
    let glibc = plain.as_ref().and_then(|it| it.glibc.clone());
    let cited = plain.map_or_else(String::new, |it| it.source);
    PlanTarget {
        name: format!("gpu-{}-{}", dotted(gpu), arch.as_str()),
        os: "linux".to_owned(),
        arch: arch.as_str().to_owned(),
        glibc,
        gpus: vec![gpu],
        driver: None,
        cuda_limit: None,
        tegra: false,
        memory_bytes: None,
        source: format!("request; {cited}"),
    }
}

fn named(machine: &machines::NamedMachine) -> PlanTarget {
    PlanTarget {
        name: machine.name.clone(),
        os: machine.os.clone(),
        arch: machine.arch.as_str().to_owned(),
        glibc: machine.glibc.clone(),
        gpus: machine.gpu.into_iter().collect(),
        driver: None,
        cuda_limit: None,
        tegra: machine.tegra,
        memory_bytes: machine.memory_gb.map(|gb| gb.saturating_mul(1_000_000_000)),
        source: machine.source.to_string(),
    }
}

/// The probed machine; `None` for an unsupported platform.
pub fn target_of(machine: &Machine) -> Option<PlanTarget> {
    let (os, arch) = match machine.platform {
        Platform::LinuxX86_64 => ("linux", "x86_64"),
        Platform::LinuxAarch64 => ("linux", "aarch64"),
        Platform::MacosX86_64 => ("macos", "x86_64"),
        Platform::MacosAarch64 => ("macos", "aarch64"),
        Platform::Unknown => return None,
    };
    let nvidia = machine.gpus.iter().filter(|gpu| gpu.vendor == GpuVendor::Nvidia);
    let gpus = nvidia.filter_map(|gpu| Some(gpu.compute_capability.as_ref()?.value)).collect();
    let libc = machine.os.libc.as_ref();
    let memory = machine.memory.limit_bytes.as_ref().or(machine.memory.total_bytes.as_ref());
    let driver = machine.driver.as_ref();
    Some(PlanTarget {
        name: "this".to_owned(),
        os: os.to_owned(),
        arch: arch.to_owned(),
        glibc: libc.and_then(|fact| fact.value.strip_prefix("glibc ").map(str::to_owned)),
        gpus,
        driver: driver.and_then(|driver| Some(driver.version()?.value.clone())),
        cuda_limit: driver.and_then(|driver| Some(driver.cuda_limit.as_ref()?.value)),
        tegra: machine.kind == MachineKind::Jetson,
        memory_bytes: memory.map(|fact| fact.value),
        source: "probed on this machine".to_owned(),
    })
}
