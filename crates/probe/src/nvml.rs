//! NVML, NVIDIA's management library: queried on a live machine, parsed on a recorded one.

use crate::source::CommandError;
use crate::text::major_minor;
use std::fmt::Write;

#[cfg(target_os = "linux")]
mod ask;
mod health;
#[cfg(target_os = "linux")]
mod watch;
#[cfg(target_os = "linux")]
pub use ask::{write_moment, write_record};
pub use health::{GpuPair, Health};
#[cfg(target_os = "linux")]
pub use watch::watch;

/// NVML exists only for Linux (and Windows).
#[cfg(not(target_os = "linux"))]
pub fn write_record(_source: &crate::Source, _out: &mut impl std::io::Write) {}

/// Writes nothing.
#[cfg(not(target_os = "linux"))]
pub fn write_moment(_source: &crate::Source, _out: &mut impl std::io::Write) {}

/// Writes nothing.
#[cfg(not(target_os = "linux"))]
pub fn watch(
    _source: &crate::Source,
    _every: std::time::Duration,
    _told: impl FnMut(&[(u32, facts::LoadState)]) -> bool,
) {
}

/// NVML's answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nvml {
    /// The library is not installed.
    Absent,
    /// The library is installed and fails to start.
    Failed {
        /// The library file.
        library: String,
        /// NVML's message: `Driver/library version mismatch`.
        words: String,
    },
    /// The library is installed and hangs while starting.
    Silent {
        /// The library file.
        library: String,
        /// The call and its outcome: `nvmlInit_v2 did not return within 2.0 s`.
        words: String,
    },
    /// The library answered.
    Answered(NvmlSnapshot),
}

/// All values queried from NVML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NvmlSnapshot {
    /// The library file.
    pub library: String,
    /// nvmlSystemGetDriverVersion.
    pub driver: Option<String>,
    /// nvmlSystemGetCudaDriverVersion_v2, major and minor.
    pub cuda: Option<(u32, u32)>,
    /// Refused calls, each with its message: `nvmlSystemGetDriverVersion: Not Supported`.
    pub refused: Vec<String>,
    /// The call that ended the answers, and its outcome; later calls were not made.
    pub unanswered: Option<String>,
    /// One entry for each index, in order.
    pub gpus: Vec<NvmlDevice>,
    /// One entry for each pair of GPUs.
    pub pairs: Vec<GpuPair>,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NvmlDevice {
    /// NVML's message if it has no handle for this index: `GPU is lost`.
    pub error: Option<String>,
    /// nvmlDeviceGetName.
    pub name: Option<String>,
    /// nvmlDeviceGetUUID.
    pub uuid: Option<String>,
    /// nvmlDeviceGetCudaComputeCapability.
    pub compute_capability: Option<(u32, u32)>,
    /// nvmlDeviceGetMemoryInfo_v2, bytes.
    pub memory_total: Option<u64>,
    /// nvmlDeviceGetMemoryInfo_v2, bytes in use by programs, without the driver's reserve.
    pub memory_used: Option<u64>,
    /// NVML's message if it does not report the memory: `Not Supported` on GB10 and Jetson.
    pub memory_error: Option<String>,
    /// nvmlDeviceGetPciInfo: `00000000:00:06.0`.
    pub pci_bus: Option<String>,
    /// nvmlDeviceGetMigMode; `None` if the GPU has no MIG.
    pub mig: Option<bool>,
    /// nvmlDeviceGetPersistenceMode.
    pub persistence: Option<bool>,
    /// nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetGraphicsRunningProcesses.
    pub processes: Vec<Process>,
    /// NVML's message if it does not list processes.
    pub processes_error: Option<String>,
    /// nvmlDeviceGetClockInfo of the SMs, MHz.
    pub sm_mhz: Option<u32>,
    /// nvmlDeviceGetMaxClockInfo of the SMs, MHz.
    pub sm_mhz_most: Option<u32>,
    /// nvmlDeviceGetClockInfo of the memory, MHz.
    pub memory_mhz: Option<u32>,
    /// nvmlDeviceGetTemperature, degrees Celsius.
    pub celsius: Option<u32>,
    /// nvmlDeviceGetCurrentClocksThrottleReasons by their names.
    pub held_down_by: Option<Vec<String>>,
    /// The state of its hardware.
    pub health: Health,
    /// Other refused calls, each with its message.
    pub refused: Vec<String>,
}

/// One process on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id in the host's PID namespace.
    pub pid: u32,
    /// Bytes, if NVML counts them.
    pub bytes: Option<u64>,
    /// `compute` or `graphics`.
    pub kind: String,
}

impl Process {
    /// Parses `4711 compute 6764363776`, or `-` for the bytes.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        let kind = words.next()?.to_string();
        Some(Self { pid, kind, bytes: words.next().and_then(|bytes| bytes.parse().ok()) })
    }

    fn record(&self) -> String {
        let bytes = self.bytes.map_or("-".to_string(), |bytes| bytes.to_string());
        format!("process = {} {} {bytes}\n", self.pid, self.kind)
    }
}

/// The helper's last line: all calls were made, whatever its process does afterwards.
pub(crate) const COMPLETE: &str = "complete = true";

impl Nvml {
    /// Parses a record: `key = value` lines, then one `[gpu]` section for each GPU.
    pub fn parse(text: &str) -> Self {
        let mut snapshot = NvmlSnapshot::default();
        let (mut error, mut silent) = (None, None);
        for line in text.lines().map(str::trim) {
            if line == "[gpu]" {
                snapshot.gpus.push(NvmlDevice::default());
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let (key, value) = (key.trim(), value.trim());
            match (snapshot.gpus.last_mut(), key) {
                // The call that ends the answers follows the GPU on which it happened.
                (_, "unanswered") => snapshot.unanswered = Some(value.to_string()),
                (_, "pair") => snapshot.pairs.extend(GpuPair::parse(value)),
                (Some(gpu), _) => gpu.set(key, value),
                (None, "library") => snapshot.library = value.to_string(),
                (None, "driver") => snapshot.driver = Some(value.to_string()),
                (None, "cuda") => snapshot.cuda = major_minor(value),
                (None, "refused") => snapshot.refused.push(value.to_string()),
                (None, "error") => error = Some(value.to_string()),
                (None, "silent") => silent = Some(value.to_string()),
                _ => {}
            }
        }
        let library = snapshot.library.clone();
        match (error, silent) {
            (Some(words), _) => Self::Failed { library, words },
            (None, Some(words)) => Self::Silent { library, words },
            (None, None) if library.is_empty() => Self::Absent,
            (None, None) => Self::Answered(snapshot),
        }
    }

    /// Parses the helper's output, which names each call before it is made: the last one named did not return, or
    /// killed the helper.
    pub(crate) fn of_helper(answer: Result<String, CommandError>) -> Self {
        let (text, became) = match answer {
            Ok(text) => (text, "ended the process that called it".to_string()),
            Err(CommandError::TimedOut { limit, text }) => {
                (text, format!("did not return within {:.1} s", limit.as_secs_f64()))
            }
            Err(CommandError::Failed { text }) => {
                (text, "ended the process that called it".to_string())
            }
            Err(error) => {
                let words = format!("NVML was not asked: its helper {error}");
                return Self::Silent { library: "libnvidia-ml.so.1".to_string(), words };
            }
        };
        if text.lines().any(|line| line == COMPLETE) {
            return Self::parse(&text);
        }
        let last = |key: &str| {
            let lines = text.lines().rev();
            lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = ")).next()
        };
        let words = format!("{} {became}", last("asking").unwrap_or("the call into NVML"));
        match Self::parse(&text) {
            Self::Answered(snapshot) => {
                Self::Answered(NvmlSnapshot { unanswered: Some(words), ..snapshot })
            }
            Self::Absent => {
                let library = last("trying").unwrap_or("libnvidia-ml.so.1").to_string();
                Self::Silent { library, words }
            }
            other => other,
        }
    }

    /// Writes the record that [`Nvml::parse`] reads.
    pub fn record(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = {value}");
            }
        };
        match self {
            Self::Absent => {}
            Self::Failed { library, words } => {
                line("library", Some(library.clone()));
                line("error", Some(words.clone()));
            }
            Self::Silent { library, words } => {
                line("library", Some(library.clone()));
                line("silent", Some(words.clone()));
            }
            Self::Answered(snapshot) => {
                line("library", Some(snapshot.library.clone()));
                line("driver", snapshot.driver.clone());
                line("cuda", snapshot.cuda.map(dotted));
                snapshot.refused.iter().for_each(|words| line("refused", Some(words.clone())));
                line("unanswered", snapshot.unanswered.clone());
                for gpu in &snapshot.gpus {
                    let _ = write!(text, "\n[gpu]\n{}", gpu.record());
                }
                text.extend(snapshot.pairs.iter().map(GpuPair::record));
            }
        }
        text
    }
}

impl NvmlDevice {
    fn set(&mut self, key: &str, value: &str) {
        match key {
            "error" => self.error = Some(value.to_string()),
            "name" => self.name = Some(value.to_string()),
            "uuid" => self.uuid = Some(value.to_string()),
            "compute_capability" => self.compute_capability = major_minor(value),
            "memory_total" => self.memory_total = value.parse().ok(),
            "memory_used" => self.memory_used = value.parse().ok(),
            "memory_error" => self.memory_error = Some(value.to_string()),
            "pci_bus" => self.pci_bus = Some(value.to_string()),
            "mig" => self.mig = value.parse().ok(),
            "persistence" => self.persistence = value.parse().ok(),
            "process" => self.processes.extend(Process::parse(value)),
            "sm_mhz" => self.sm_mhz = value.parse().ok(),
            "sm_mhz_most" => self.sm_mhz_most = value.parse().ok(),
            "memory_mhz" => self.memory_mhz = value.parse().ok(),
            "celsius" => self.celsius = value.parse().ok(),
            "held_down_by" => {
                self.held_down_by = Some(value.split_whitespace().map(str::to_string).collect());
            }
            "processes_error" => self.processes_error = Some(value.to_string()),
            "refused" => self.refused.push(value.to_string()),
            _ => self.health.set(key, value),
        }
    }

    fn record(&self) -> String {
        let fields = [
            ("error", self.error.clone()),
            ("name", self.name.clone()),
            ("uuid", self.uuid.clone()),
            ("compute_capability", self.compute_capability.map(dotted)),
            ("memory_total", self.memory_total.map(|bytes| bytes.to_string())),
            ("memory_used", self.memory_used.map(|bytes| bytes.to_string())),
            ("memory_error", self.memory_error.clone()),
            ("pci_bus", self.pci_bus.clone()),
            ("mig", self.mig.map(|on| on.to_string())),
            ("persistence", self.persistence.map(|on| on.to_string())),
            ("processes_error", self.processes_error.clone()),
            ("sm_mhz", self.sm_mhz.map(|mhz| mhz.to_string())),
            ("sm_mhz_most", self.sm_mhz_most.map(|mhz| mhz.to_string())),
            ("memory_mhz", self.memory_mhz.map(|mhz| mhz.to_string())),
            ("celsius", self.celsius.map(|degrees| degrees.to_string())),
            ("held_down_by", self.held_down_by.as_ref().map(|names| names.join(" "))),
        ];
        fields
            .into_iter()
            .filter_map(|(key, value)| Some((key, value?)))
            .chain(self.health.lines())
            .map(|(key, value)| format!("{key} = {value}\n"))
            .chain(self.refused.iter().map(|words| format!("refused = {words}\n")))
            .chain(self.processes.iter().map(Process::record))
            .collect()
    }
}

fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::{COMPLETE, GpuPair, Health, Nvml, NvmlDevice, NvmlSnapshot, Process};
    use crate::source::CommandError;
    use facts::{EccCounts, NvLink, PcieLink, PciePath, RemappedRows};
    use std::time::Duration;

    #[test]
    fn output_before_a_hang_is_used() {
        let hung = |text: &str| {
            Nvml::of_helper(Err(CommandError::TimedOut {
                limit: Duration::from_millis(2000),
                text: text.to_string(),
            }))
        };
        let began = "trying = libnvidia-ml.so.1\nasking = nvmlInit_v2\n";
        let silent =
            |words: &str| Nvml::Silent { library: "libnvidia-ml.so.1".into(), words: words.into() };
        assert_eq!(hung(began), silent("nvmlInit_v2 did not return within 2.0 s"));
        assert_eq!(hung(""), silent("the call into NVML did not return within 2.0 s"));
        assert_eq!(
            Nvml::of_helper(Err(CommandError::Failed { text: began.into() })),
            silent("nvmlInit_v2 ended the process that called it")
        );
        let text = format!(
            "{began}library = libnvidia-ml.so.1\ndriver = 580.1\n\n[gpu]\nname = A\nasking = nvmlX (GPU 0)\n"
        );
        let answered = |unanswered: Option<&str>| {
            Nvml::Answered(NvmlSnapshot {
                library: "libnvidia-ml.so.1".into(),
                driver: Some("580.1".into()),
                unanswered: unanswered.map(str::to_string),
                gpus: vec![NvmlDevice { name: Some("A".into()), ..NvmlDevice::default() }],
                ..NvmlSnapshot::default()
            })
        };
        assert_eq!(hung(&text), answered(Some("nvmlX (GPU 0) did not return within 2.0 s")));
        // A library that hangs or crashes only when it is closed has answered everything.
        assert_eq!(hung(&format!("{text}{COMPLETE}\n")), answered(None));
        // A refusal counts even if the process crashes afterwards.
        let refused = format!("{began}library = l\nerror = Driver Not Loaded\n");
        assert!(matches!(hung(&refused), Nvml::Failed { .. }));
        assert!(matches!(Nvml::of_helper(Err(CommandError::Absent)), Nvml::Silent { .. }));
        assert_eq!(Nvml::of_helper(Ok(format!("{COMPLETE}\n"))), Nvml::Absent);
    }

    #[test]
    fn record_round_trips() {
        let check = |nvml: Nvml| assert_eq!(Nvml::parse(&nvml.record()), nvml);
        check(Nvml::Absent);
        check(Nvml::Failed {
            library: "/usr/lib64/libnvidia-ml.so.1".into(),
            words: "Driver/library version mismatch".into(),
        });
        check(Nvml::Silent {
            library: "libnvidia-ml.so.1".into(),
            words: "nvmlInit_v2 did not return within 2.0 s".into(),
        });
        check(Nvml::Answered(NvmlSnapshot {
            library: "libnvidia-ml.so.1".into(),
            driver: Some("580.159.04".into()),
            cuda: Some((13, 0)),
            refused: vec!["nvmlSystemGetDriverVersion: Not Supported".into()],
            unanswered: Some("nvmlDeviceGetName (GPU 3) did not return within 2.0 s".into()),
            gpus: vec![
                NvmlDevice {
                    name: Some("NVIDIA GB10".into()),
                    uuid: Some("GPU-0".into()),
                    compute_capability: Some((12, 1)),
                    memory_error: Some("Not Supported".into()),
                    mig: Some(false),
                    sm_mhz: Some(1980),
                    sm_mhz_most: Some(1980),
                    memory_mhz: Some(3201),
                    celsius: Some(41),
                    held_down_by: Some(vec!["SW_POWER_CAP".into(), "HW_SLOWDOWN".into()]),
                    health: health(),
                    ..NvmlDevice::default()
                },
                NvmlDevice { error: Some("GPU is lost".into()), ..NvmlDevice::default() },
                NvmlDevice {
                    memory_total: Some(1 << 40),
                    memory_used: Some(0),
                    processes: vec![
                        Process { pid: 7, bytes: Some(1 << 30), kind: "compute".into() },
                        Process { pid: 9, bytes: None, kind: "graphics".into() },
                    ],
                    ..NvmlDevice::default()
                },
                NvmlDevice {
                    processes_error: Some("Not Supported".into()),
                    refused: vec!["nvmlDeviceGetName: Not Supported".into()],
                    ..NvmlDevice::default()
                },
            ],
            pairs: vec![
                GpuPair { between: (0, 2), pcie: PciePath::Sys, by_nvlink: true },
                GpuPair { between: (2, 3), pcie: PciePath::Pix, by_nvlink: false },
            ],
        }));
    }

    fn health() -> Health {
        let link = |up, rate, remote: Option<&str>| NvLink {
            up,
            megabytes_per_second: rate,
            remote: remote.map(str::to_string),
        };
        let (generation_most, width_most) = (Some(5), None);
        Health {
            pcie: Some(PcieLink { generation: 1, width: 8, generation_most, width_most }),
            nvlinks: vec![
                link(true, Some(26_562), Some("00000000:05:00.0")),
                link(false, None, None),
            ],
            busy_percent: Some(97),
            power_milliwatts: Some(699_870),
            power_cap_milliwatts: Some(700_000),
            power_default_milliwatts: Some(700_000),
            ecc: Some(true),
            ecc_volatile: Some(EccCounts { corrected: 3, uncorrected: 0 }),
            ecc_aggregate: Some(EccCounts { corrected: 1 << 40, uncorrected: 2 }),
            retirement_pending: Some(false),
            remapped: Some(RemappedRows {
                corrected: 1,
                uncorrected: 2,
                pending: true,
                failed: false,
            }),
            confidential: Some(false),
        }
    }
}
