use crate::{DriverLine, Fact, GpuAccess, GpuHealth, GpuProcess, Interconnect, Xid};
use serde::{Deserialize, Serialize};

/// One machine as its files describe it. A missing fact is `None`, never a guess.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Operating system and processor architecture.
    pub platform: Platform,
    /// The best backend: CUDA before Metal, CPU without a GPU.
    pub backend: BackendKind,
    /// Its column of the support matrix.
    pub kind: MachineKind,
    /// Host name; reports may redact it.
    pub host: Option<Fact<String>>,
    /// Operating system.
    pub os: Os,
    /// Processor.
    pub cpu: CpuFacts,
    /// Main memory.
    pub memory: SystemMemory,
    /// Every GPU seen, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// The NVIDIA driver; `None` without any trace of one.
    pub driver: Option<Driver>,
    /// Every CUDA toolkit found.
    pub toolkits: Vec<CudaToolkit>,
    /// Host compilers on PATH, by name: `gcc`, `g++`, `cc`, `c++`, `clang`, `clang++`; `None` if PATH is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compilers: Option<Fact<Vec<String>>>,
    /// NVRTC, cuBLASLt, cuDNN and NCCL libraries found on the system and in environments.
    pub libraries: Vec<AcceleratorLibrary>,
    /// Container or virtual machine; `None` when neither was recognised.
    pub virtualisation: Option<Virtualisation>,
    /// Processes that use memory of an NVIDIA GPU, by process id.
    #[serde(default)]
    pub gpu_processes: Vec<GpuProcess>,
    /// Access to the GPUs.
    #[serde(default)]
    pub access: GpuAccess,
    /// Connections between the GPUs and to other machines.
    #[serde(default, skip_serializing_if = "Interconnect::is_blank")]
    pub interconnect: Interconnect,
    /// Xid errors in the kernel log; `None` if the log cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xids: Option<Fact<Vec<Xid>>>,
    /// Other driver problems in the kernel log; `None` if the log cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_lines: Option<Fact<Vec<DriverLine>>>,
    /// Facts that could not be read, with the reason, one sentence each; a missing `nvidia-smi` is a fact, not a failure.
    pub notes: Vec<String>,
}

impl Machine {
    /// A machine about which nothing is known.
    pub fn unknown() -> Self {
        Self {
            platform: Platform::Unknown,
            backend: BackendKind::Cpu,
            kind: MachineKind::Unknown,
            host: None,
            os: Os::default(),
            cpu: CpuFacts::default(),
            memory: SystemMemory::default(),
            gpus: Vec::new(),
            driver: None,
            toolkits: Vec::new(),
            compilers: None,
            libraries: Vec::new(),
            virtualisation: None,
            gpu_processes: Vec::new(),
            access: GpuAccess::default(),
            interconnect: Interconnect::default(),
            xids: None,
            driver_lines: None,
            notes: Vec::new(),
        }
    }
}

/// Operating system and architecture, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Platform {
    /// Linux on x86-64.
    #[serde(rename = "linux-x86_64")]
    LinuxX86_64,
    /// Linux on 64-bit Arm.
    #[serde(rename = "linux-aarch64")]
    LinuxAarch64,
    /// macOS on x86-64.
    #[serde(rename = "macos-x86_64")]
    MacosX86_64,
    /// macOS on 64-bit Arm.
    #[serde(rename = "macos-aarch64")]
    MacosAarch64,
    /// Anything else; never assumed to be x86-64.
    #[serde(rename = "unknown")]
    Unknown,
}

impl Platform {
    /// Platform from the output of `uname -s` and `uname -m`, in any case (row R1-01).
    pub fn from_uname(system: &str, machine: &str) -> Self {
        let arm = match machine.trim().to_ascii_lowercase().as_str() {
            "arm64" | "aarch64" => true,
            "x86_64" | "amd64" => false,
            _ => return Self::Unknown,
        };
        match (system.trim().to_ascii_lowercase().as_str(), arm) {
            ("linux", false) => Self::LinuxX86_64,
            ("linux", true) => Self::LinuxAarch64,
            ("darwin" | "macos", false) => Self::MacosX86_64,
            ("darwin" | "macos", true) => Self::MacosAarch64,
            _ => Self::Unknown,
        }
    }

    /// The name used in JSON and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LinuxX86_64 => "linux-x86_64",
            Self::LinuxAarch64 => "linux-aarch64",
            Self::MacosX86_64 => "macos-x86_64",
            Self::MacosAarch64 => "macos-aarch64",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the processor is 64-bit Arm.
    pub fn is_arm(self) -> bool {
        matches!(self, Self::LinuxAarch64 | Self::MacosAarch64)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The backends of kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU through the CUDA driver.
    Cuda,
    /// An Apple GPU.
    Metal,
}

impl BackendKind {
    /// The name used in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Metal => "metal",
        }
    }
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Classes of machines that differ in package support (row R1-03).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineKind {
    /// x86-64 with an NVIDIA GPU.
    X86Cuda,
    /// x86-64 without a GPU.
    X86Cpu,
    /// A 64-bit Arm server or desktop with an NVIDIA GPU: GH200, GB200, GB10 (the hosts are Arm, not the GPUs).
    ArmCuda,
    /// 64-bit Arm without a GPU.
    ArmCpu,
    /// NVIDIA Jetson (Tegra): an integrated GPU with a separate driver and separate wheels, unlike Arm servers.
    Jetson,
    /// Apple Silicon.
    AppleSilicon,
    /// An Intel Mac.
    IntelMac,
    /// Anything else.
    Unknown,
}

/// Operating system facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Os {
    /// Name for people: `Ubuntu 24.04.3 LTS`.
    pub name: Option<Fact<String>>,
    /// Distribution id of os-release: `ubuntu`, `debian`, `macos`.
    pub id: Option<Fact<String>>,
    /// Distribution version: `24.04`.
    pub version: Option<Fact<String>>,
    /// Kernel release.
    pub kernel: Option<Fact<String>>,
    /// C library and version: `glibc 2.39`, `musl 1.2.4`.
    pub libc: Option<Fact<String>>,
}

/// Processor facts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuFacts {
    /// Model name.
    pub model: Option<Fact<String>>,
    /// Cores the operating system schedules on, all sockets together.
    pub logical_cores: Option<Fact<u32>>,
    /// Physical cores, all sockets together.
    pub physical_cores: Option<Fact<u32>>,
    /// Cores available to this process (affinity and container limits).
    pub usable_cores: Option<Fact<u32>>,
    /// Instruction-set features that select kernels: `avx2`, `fma`, `avx512f`, `avx512_bf16`, `neon`, `bf16`.
    pub features: Option<Fact<Vec<String>>>,
    /// Data and unified caches.
    pub caches: Vec<CpuCache>,
}

/// One cache level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuCache {
    /// 1, 2 or 3.
    pub level: u32,
    /// `data`, `instruction` or `unified`.
    pub kind: String,
    /// Size of one instance in bytes.
    pub bytes: u64,
    /// The source that it was read from.
    pub source: String,
}

/// Main memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SystemMemory {
    /// Installed (or assigned) memory.
    pub total_bytes: Option<Fact<u64>>,
    /// Memory available without swapping and within the container's limit.
    pub available_bytes: Option<Fact<u64>>,
    /// The container's limit, if it is below the machine's memory.
    pub limit_bytes: Option<Fact<u64>>,
}

/// The vendor of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuVendor {
    /// NVIDIA.
    Nvidia,
    /// Apple.
    Apple,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's index.
    pub index: u32,
    /// Vendor.
    pub vendor: GpuVendor,
    /// Product name.
    pub name: Fact<String>,
    /// UUID; reports may redact it.
    pub uuid: Option<String>,
    /// CUDA compute capability, major and minor.
    pub compute_capability: Option<Fact<(u32, u32)>>,
    /// Total memory in bytes. GB10 and Jetson share the host's memory, which NVML does not report; the source says so.
    pub memory_total_bytes: Option<Fact<u64>>,
    /// Memory in use in bytes.
    pub memory_used_bytes: Option<Fact<u64>>,
    /// PCI bus id.
    pub pci_bus: Option<String>,
    /// Whether MIG is enabled.
    pub mig: Option<bool>,
    /// Whether persistence mode is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// The state of its hardware.
    #[serde(default, skip_serializing_if = "GpuHealth::is_blank")]
    pub health: GpuHealth,
}

/// The parts of the NVIDIA driver, whose versions can differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Version of the loaded kernel module.
    pub kernel_module: Option<Fact<String>>,
    /// Whether the loaded module is the open one.
    pub open_module: Option<Fact<bool>>,
    /// Version of the user-space library (libnvidia-ml, libcuda) on disk.
    pub user_library: Option<Fact<String>>,
    /// Maximum CUDA version of the driver, major and minor.
    pub cuda_limit: Option<Fact<(u32, u32)>>,
    /// NVML's error message instead of a device list.
    pub nvml_error: Option<Fact<String>>,
    /// The driver call that did not return: `nvmlInit_v2 did not return within 2.0 s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_answer: Option<Fact<String>>,
    /// The libcuda that a program gets, with links resolved; the source names the loader's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda_library: Option<Fact<String>>,
    /// Number of NVSwitches, if any: CUDA then waits for the fabric manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvswitches: Option<Fact<u32>>,
    /// Process id of the fabric manager, if it is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_manager: Option<Fact<u32>>,
}

impl Driver {
    /// The driver version to show: the loaded module's, otherwise the library's.
    pub fn version(&self) -> Option<&Fact<String>> {
        self.kernel_module.as_ref().or(self.user_library.as_ref())
    }
}

/// One CUDA toolkit on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaToolkit {
    /// Installation folder.
    pub root: String,
    /// Version, if it could be read.
    pub version: Option<Fact<String>>,
    /// Whether `bin/nvcc` exists.
    pub has_nvcc: bool,
    /// How it was found: `CUDA_HOME`, `PATH`, `/usr/local`.
    pub found_by: String,
}

/// A library that accelerator stacks load at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceleratorLibrary {
    /// `nvrtc`, `cublasLt`, `cudnn` or `nccl`.
    pub name: String,
    /// The file.
    pub path: String,
    /// Version digits of the file name: `13`, `9`, `12.9.86`.
    pub version: Option<String>,
    /// How it was found.
    pub source: String,
}

/// Container or virtual machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Virtualisation {
    /// `docker`, `podman`, `kubernetes`, `lxc`, `wsl`; `None` outside a container.
    pub container: Option<Fact<String>>,
    /// `kvm`, `vmware`, `firecracker`, ...; `None` on bare metal.
    pub machine: Option<Fact<String>>,
}

#[cfg(test)]
mod tests {
    use super::Platform;

    #[test]
    fn uname_words_in_any_case_and_nothing_unknown_becomes_x86() {
        let check = |system, machine, expect| {
            assert_eq!(Platform::from_uname(system, machine), expect, "{system} {machine}")
        };
        for word in ["x86_64", "AMD64", "amd64", "X86_64"] {
            check("Linux", word, Platform::LinuxX86_64);
        }
        for word in ["arm64", "ARM64", "aarch64", "AArch64"] {
            check("Linux", word, Platform::LinuxAarch64);
            check("Darwin", word, Platform::MacosAarch64);
        }
        for word in ["riscv64", "i686", "ppc64le", "", "x86"] {
            check("Linux", word, Platform::Unknown);
        }
        check("FreeBSD", "amd64", Platform::Unknown);
    }
}
