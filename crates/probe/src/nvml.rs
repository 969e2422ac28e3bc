//! What NVML, NVIDIA's management library, says about its GPUs: asked on a live machine, read back on a recorded one.

use crate::text::major_minor;
use std::fmt::Write;

#[cfg(target_os = "linux")]
mod ask;
#[cfg(target_os = "linux")]
pub(crate) use ask::live;

/// NVML exists for Linux (and Windows) only.
#[cfg(not(target_os = "linux"))]
pub(crate) fn live(_files: &[std::path::PathBuf]) -> Nvml {
    Nvml::Absent
}

/// NVML's answer as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nvml {
    /// The library is not on this machine.
    Absent,
    /// The library is here and refuses to start.
    Failed {
        /// The library file.
        library: String,
        /// NVML's own words: `Driver/library version mismatch`.
        words: String,
    },
    /// The library answered.
    Answered(Snapshot),
}

/// Everything that is asked of NVML.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The library file, as it was found.
    pub library: String,
    /// nvmlSystemGetDriverVersion.
    pub driver: Option<String>,
    /// nvmlSystemGetCudaDriverVersion_v2, major and minor.
    pub cuda: Option<(u32, u32)>,
    /// One entry for each index, in order.
    pub gpus: Vec<Device>,
}

/// One GPU as NVML describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// NVML's words when it has no handle for this index: `GPU is lost`.
    pub error: Option<String>,
    /// nvmlDeviceGetName.
    pub name: Option<String>,
    /// nvmlDeviceGetUUID.
    pub uuid: Option<String>,
    /// nvmlDeviceGetCudaComputeCapability.
    pub compute_capability: Option<(u32, u32)>,
    /// nvmlDeviceGetMemoryInfo_v2, bytes.
    pub memory_total: Option<u64>,
    /// nvmlDeviceGetMemoryInfo_v2, bytes in use by programs (not the driver's own reserve).
    pub memory_used: Option<u64>,
    /// NVML's words when it does not tell the memory: `Not Supported` on GB10 and Jetson.
    pub memory_error: Option<String>,
    /// nvmlDeviceGetPciInfo: `00000000:00:06.0`.
    pub pci_bus: Option<String>,
    /// nvmlDeviceGetMigMode; `None` where the GPU has no MIG.
    pub mig: Option<bool>,
    /// nvmlDeviceGetComputeRunningProcesses and nvmlDeviceGetGraphicsRunningProcesses.
    pub processes: Vec<Process>,
    /// NVML's words when it does not list processes.
    pub processes_error: Option<String>,
}

/// One process on a GPU as NVML lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id, in the numbering of the driver's host.
    pub pid: u32,
    /// Bytes, where NVML counts them.
    pub bytes: Option<u64>,
    /// `compute` or `graphics`.
    pub kind: String,
}

impl Process {
    /// Reads `4711 compute 6764363776`, or `-` for the bytes.
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

impl Nvml {
    /// Reads a record: `key = value` lines, then one `[gpu]` section for each GPU.
    pub fn parse(text: &str) -> Self {
        let mut snapshot = Snapshot::default();
        let mut error = None;
        for line in text.lines().map(str::trim) {
            if line == "[gpu]" {
                snapshot.gpus.push(Device::default());
                continue;
            }
            let Some((key, value)) = line.split_once('=') else { continue };
            let (key, value) = (key.trim(), value.trim());
            match (snapshot.gpus.last_mut(), key) {
                (Some(gpu), _) => gpu.set(key, value),
                (None, "library") => snapshot.library = value.to_string(),
                (None, "driver") => snapshot.driver = Some(value.to_string()),
                (None, "cuda") => snapshot.cuda = major_minor(value),
                (None, "error") => error = Some(value.to_string()),
                _ => {}
            }
        }
        match error {
            Some(words) => Self::Failed { library: snapshot.library, words },
            None if snapshot.library.is_empty() => Self::Absent,
            None => Self::Answered(snapshot),
        }
    }

    /// Writes the record [`Nvml::parse`] reads.
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
            Self::Answered(snapshot) => {
                line("library", Some(snapshot.library.clone()));
                line("driver", snapshot.driver.clone());
                line("cuda", snapshot.cuda.map(dotted));
                for gpu in &snapshot.gpus {
                    let _ = write!(text, "\n[gpu]\n{}", gpu.record());
                }
            }
        }
        text
    }
}

impl Device {
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
            "process" => self.processes.extend(Process::parse(value)),
            "processes_error" => self.processes_error = Some(value.to_string()),
            _ => {}
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
            ("processes_error", self.processes_error.clone()),
        ];
        fields
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{key} = {}\n", value?)))
            .chain(self.processes.iter().map(Process::record))
            .collect()
    }
}

fn dotted((major, minor): (u32, u32)) -> String {
    format!("{major}.{minor}")
}

#[cfg(test)]
mod tests {
    use super::{Device, Nvml, Process, Snapshot};

    #[test]
    fn a_record_reads_back_as_what_was_written() {
        let check = |nvml: Nvml| assert_eq!(Nvml::parse(&nvml.record()), nvml);
        check(Nvml::Absent);
        check(Nvml::Failed {
            library: "/usr/lib64/libnvidia-ml.so.1".into(),
            words: "Driver/library version mismatch".into(),
        });
        check(Nvml::Answered(Snapshot {
            library: "libnvidia-ml.so.1".into(),
            driver: Some("580.159.04".into()),
            cuda: Some((13, 0)),
            gpus: vec![
                Device {
                    name: Some("NVIDIA GB10".into()),
                    uuid: Some("GPU-0".into()),
                    compute_capability: Some((12, 1)),
                    memory_error: Some("Not Supported".into()),
                    mig: Some(false),
                    ..Device::default()
                },
                Device { error: Some("GPU is lost".into()), ..Device::default() },
                Device {
                    memory_total: Some(1 << 40),
                    memory_used: Some(0),
                    processes: vec![
                        Process { pid: 7, bytes: Some(1 << 30), kind: "compute".into() },
                        Process { pid: 9, bytes: None, kind: "graphics".into() },
                    ],
                    ..Device::default()
                },
                Device { processes_error: Some("Not Supported".into()), ..Device::default() },
            ],
        }));
    }
}
