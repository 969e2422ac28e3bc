use crate::{EnvOptions, PROBES, ProbeError, Source, env, environments, probes};
use facts::{BackendKind, GpuVendor, Machine, MachineKind, Platform, PyEnv};
use std::path::{Path, PathBuf};

/// Options of [`machine`].
#[derive(Debug, Clone)]
pub struct ProbeOptions {
    /// The machine.
    pub source: Source,
    /// Folders of Python packages whose CUDA libraries are listed with the machine's.
    pub site_packages: Vec<PathBuf>,
}

/// A machine together with its Python environments.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The machine; its libraries include those of the environments.
    pub machine: Machine,
    /// Its environments, in search order.
    pub envs: Vec<PyEnv>,
}

/// Reads a machine. Unreadable facts are absent, with a note if they matter.
pub fn machine(options: &ProbeOptions) -> Machine {
    let source = &options.source;
    let mut machine = Machine::unknown();
    for probe in PROBES {
        (probe.run)(source, &mut machine);
    }
    probes::libraries::in_site_packages(source, &mut machine.libraries, &options.site_packages);
    machine.kind = kind(&machine);
    machine.backend = backend(&mut machine);
    machine
}

/// Reads a machine and its environments concurrently: on a machine with GPUs, NVML takes longer than all files.
///
/// # Errors
/// Those of [`environments`].
pub fn read(options: &EnvOptions) -> Result<Report, ProbeError> {
    let alone = ProbeOptions { source: options.source.clone(), site_packages: Vec::new() };
    // A separate thread, because it waits for the driver and must not block one of the few threads that read files.
    let (machine, envs) = std::thread::scope(|scope| {
        let machine = scope.spawn(|| machine(&alone));
        let envs = environments(options);
        (machine.join(), envs)
    });
    let (mut machine, envs) =
        (machine.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), envs?);
    let folders: Vec<PathBuf> =
        envs.iter().flat_map(|env| &env.site_packages).map(PathBuf::from).collect();
    probes::libraries::in_site_packages(&options.source, &mut machine.libraries, &folders);
    Ok(Report { machine, envs })
}

/// Reads a single environment, for a machine that was read before.
///
/// # Errors
/// Those of [`environments`].
pub fn read_one(
    mut machine: Machine,
    options: &EnvOptions,
    folder: &Path,
) -> Result<Report, ProbeError> {
    let env = env::environment(&options.source, folder, options.cache.as_deref())?;
    let folders: Vec<PathBuf> = env.site_packages.iter().map(PathBuf::from).collect();
    probes::libraries::in_site_packages(&options.source, &mut machine.libraries, &folders);
    Ok(Report { machine, envs: vec![env] })
}

/// The column of the support matrix (row R1-03). The tegra probe has already marked a Jetson.
fn kind(machine: &Machine) -> MachineKind {
    let nvidia = machine.gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia);
    match (machine.platform, nvidia) {
        (Platform::LinuxAarch64, _) if machine.kind == MachineKind::Jetson => MachineKind::Jetson,
        (Platform::LinuxAarch64, true) => MachineKind::ArmCuda,
        (Platform::LinuxAarch64, false) => MachineKind::ArmCpu,
        (Platform::LinuxX86_64, true) => MachineKind::X86Cuda,
        (Platform::LinuxX86_64, false) => MachineKind::X86Cpu,
        (Platform::MacosAarch64, _) => MachineKind::AppleSilicon,
        (Platform::MacosX86_64, _) => MachineKind::IntelMac,
        (Platform::Unknown, _) => MachineKind::Unknown,
    }
}

/// CUDA before Metal; without a GPU it is the CPU (row R1-02). A GPU whose driver does not start runs no kernels.
fn backend(machine: &mut Machine) -> BackendKind {
    let has = |vendor| machine.gpus.iter().any(|gpu| gpu.vendor == vendor);
    let (nvidia, apple) = (has(GpuVendor::Nvidia), has(GpuVendor::Apple));
    let driver = machine.driver.as_ref();
    let refusal = driver.and_then(|driver| driver.nvml_error.as_ref());
    // Missing answers of a hanging driver are noted where they were queried.
    let silent = driver.is_some_and(|driver| driver.no_answer.is_some());
    if nvidia && !silent {
        match refusal {
            None => return BackendKind::Cuda,
            Some(words) => machine.notes.push(format!(
                "an NVIDIA GPU is here but its driver does not answer ({}: {}), so nothing can run on it",
                words.source, words.value
            )),
        }
    }
    if apple { BackendKind::Metal } else { BackendKind::Cpu }
}
