//! nvidia-smi, the last resort: run only if NVML cannot be loaded. Its absence is a fact, not a failure.

use super::driver_of;
use crate::Source;
use crate::source::{Command, CommandError};
use crate::text::major_minor;
use facts::{Fact, Gpu, GpuVendor, Machine, Platform};
use std::path::PathBuf;

/// Paths of nvidia-smi outside of PATH: WSL and the container toolkit.
const ELSEWHERE: &[&str] = &["/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi"];

/// Its path.
pub(super) fn program(source: &Source) -> Option<PathBuf> {
    source
        .which("nvidia-smi")
        .or_else(|| ELSEWHERE.iter().map(PathBuf::from).find(|path| source.is_file(path)))
}

pub(crate) fn run(source: &Source, machine: &mut Machine) {
    let program = program(source);
    // If NVML did not answer, nvidia-smi does not either: it uses NVML, and would hang as well.
    if machine.driver.as_ref().is_some_and(|driver| driver.no_answer.is_some()) {
        return;
    }
    let nvml_spoke = !machine.gpus.is_empty()
        || machine
            .driver
            .as_ref()
            .is_some_and(|driver| driver.cuda_limit.is_some() || driver.nvml_error.is_some());
    match program {
        None if nvml_spoke => {
            machine.notes.push("nvidia-smi is not on PATH; NVML answered instead".to_string());
        }
        None if machine.driver.is_some() => {
            machine.notes.push(
                "neither libnvidia-ml.so.1 nor nvidia-smi was found: the GPUs' memory and compute capability are \
                 unknown"
                    .to_string(),
            );
        }
        None if matches!(machine.platform, Platform::LinuxX86_64 | Platform::LinuxAarch64) => {
            machine.notes.push(
                "no trace of an NVIDIA driver: no /sys/module/nvidia, /proc/driver/nvidia, libnvidia-ml.so.1 or \
                 nvidia-smi"
                    .to_string(),
            );
        }
        None => {}
        Some(_) if nvml_spoke => {}
        Some(program) => ask(source, machine, &program.display().to_string()),
    }
}

fn ask(source: &Source, machine: &mut Machine, program: &str) {
    // Drivers before 510 refuse the whole query for one unknown field, hence the second, shorter one.
    const FULL: &str = "--query-gpu=index,name,uuid,compute_cap,driver_version,memory.total,memory.used,pci.bus_id,mig.mode.current";
    const SHORT: &str =
        "--query-gpu=index,name,uuid,driver_version,memory.total,memory.used,pci.bus_id";
    let query = |record, fields| {
        let args = &[fields, "--format=csv"];
        source.run(&Command { record, program, args, limit: source.patience() })
    };
    let answer = match query("nvidia-smi-query-gpu", FULL) {
        Err(CommandError::Failed { text }) if text.contains("not a valid field") => {
            query("nvidia-smi-query-gpu-short", SHORT)
        }
        answer => answer,
    };
    match answer {
        Ok(text) => {
            for row in parse_query(&text) {
                let index = u32::try_from(machine.gpus.len()).unwrap_or(u32::MAX);
                if let Some(version) = &row.driver_version {
                    let driver = driver_of(machine);
                    if driver.kernel_module.is_none() {
                        driver.kernel_module = Some(Fact::new(
                            version.clone(),
                            "nvidia-smi --query-gpu=driver_version",
                        ));
                    }
                }
                machine.gpus.push(gpu(row, index));
            }
        }
        Err(CommandError::Failed { text }) => {
            if let Some(words) = parse_failure(&text) {
                driver_of(machine).nvml_error = Some(Fact::new(words, "nvidia-smi"));
            }
        }
        Err(error @ CommandError::TimedOut { .. }) => {
            driver_of(machine).no_answer =
                Some(Fact::new(format!("{program} {error}"), "nvidia-smi"));
        }
        Err(error) => machine.notes.push(format!("{program} {error}: its GPUs are unknown")),
    }
    // Only the table's header has the CUDA limit.
    if !machine.gpus.is_empty() {
        let table = Command { record: "nvidia-smi", program, args: &[], limit: source.patience() };
        match source.run(&table) {
            Ok(text) => {
                driver_of(machine).cuda_limit = parse_cuda_limit(&text)
                    .map(|version| Fact::new(version, "nvidia-smi CUDA Version"));
            }
            Err(CommandError::Absent) => {}
            Err(error) => machine.notes.push(format!(
                "{program} {error}: the highest CUDA version the driver accepts is unknown"
            )),
        }
    }
}

fn gpu(row: Row, index: u32) -> Gpu {
    let from = |field: &str| format!("nvidia-smi --query-gpu={field}");
    Gpu {
        index: row.index.unwrap_or(index),
        vendor: GpuVendor::Nvidia,
        name: Fact::new(
            row.name.unwrap_or_else(|| "NVIDIA GPU without a name".to_string()),
            from("name"),
        ),
        uuid: row.uuid,
        compute_capability: row.compute_cap.map(|version| Fact::new(version, from("compute_cap"))),
        memory_total_bytes: row.memory_total.map(|bytes| Fact::new(bytes, from("memory.total"))),
        memory_used_bytes: row.memory_used.map(|bytes| Fact::new(bytes, from("memory.used"))),
        pci_bus: row.pci_bus,
        mig: row.mig,
        persistence: None,
        health: facts::GpuHealth::default(),
    }
}

/// One line of `nvidia-smi --query-gpu=... --format=csv`; a field that was not queried, or is `[N/A]`, is `None`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) index: Option<u32>,
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    pub(crate) compute_cap: Option<(u32, u32)>,
    pub(crate) driver_version: Option<String>,
    pub(crate) memory_total: Option<u64>,
    pub(crate) memory_used: Option<u64>,
    pub(crate) pci_bus: Option<String>,
    pub(crate) mig: Option<bool>,
}

/// Parses the table by the names in its header, so that order and choice of fields do not matter.
pub(crate) fn parse_query(text: &str) -> Vec<Row> {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let Some(head) = lines.next() else { return Vec::new() };
    let columns: Vec<&str> = head.split(',').map(str::trim).collect();
    if !columns.contains(&"name") {
        return Vec::new();
    }
    lines
        .map(|line| {
            let mut row = Row::default();
            for (column, value) in columns.iter().zip(line.split(',')) {
                // `[N/A]`, `[Not Supported]`, `[Unknown Error]`: nvidia-smi brackets missing values.
                if !value.trim().starts_with('[') {
                    row.set(column, value.trim());
                }
            }
            row
        })
        .collect()
}

impl Row {
    fn set(&mut self, column: &str, value: &str) {
        let word = || Some(value.to_string()).filter(|value| !value.is_empty());
        match column.split(' ').next().unwrap_or(column) {
            "index" => self.index = value.parse().ok(),
            "name" => self.name = word(),
            "uuid" => self.uuid = word(),
            "compute_cap" => self.compute_cap = major_minor(value),
            "driver_version" => self.driver_version = word(),
            "memory.total" => self.memory_total = bytes(column, value),
            "memory.used" => self.memory_used = bytes(column, value),
            "pci.bus_id" => self.pci_bus = word(),
            "mig.mode.current" => {
                self.mig = match value {
                    "Enabled" => Some(true),
                    "Disabled" => Some(false),
                    _ => None,
                };
            }
            _ => {}
        }
    }
}

/// `143771 MiB`; with `nounits` the unit is only in the header.
fn bytes(column: &str, value: &str) -> Option<u64> {
    let mut words = value.split_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    match words.next().or_else(|| column.split_once('[')?.1.strip_suffix(']'))? {
        "MiB" => number.checked_mul(1 << 20),
        _ => None,
    }
}

/// The CUDA version in the table's header: `| NVIDIA-SMI 580.159.04 ... CUDA Version: 13.0     |`.
pub(crate) fn parse_cuda_limit(text: &str) -> Option<(u32, u32)> {
    let (_, after) = text.split_once("CUDA Version:")?;
    major_minor(after.split_whitespace().next()?)
}

/// nvidia-smi's message instead of a table, without its prefix.
pub(crate) fn parse_failure(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    let words = line.strip_prefix("Failed to initialize NVML:").unwrap_or(line).trim();
    (!words.is_empty()).then(|| words.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Row, bytes, parse_cuda_limit, parse_failure, parse_query};

    #[test]
    fn a_recorded_h200() {
        let text = include_str!("../../fixtures/h200/commands/nvidia-smi-query-gpu");
        let expect = Row {
            index: Some(0),
            name: Some("NVIDIA H200".to_string()),
            uuid: Some("GPU-00000000-0000-0000-0000-000000000000".to_string()),
            compute_cap: Some((9, 0)),
            driver_version: Some("580.159.04".to_string()),
            memory_total: Some(150_754_820_096),
            memory_used: Some(0),
            pci_bus: Some("00000000:00:06.0".to_string()),
            mig: Some(false),
        };
        assert_eq!(parse_query(text), [expect]);
        let table = include_str!("../../fixtures/h200/commands/nvidia-smi");
        assert_eq!(parse_cuda_limit(table), Some((13, 0)));
    }

    #[test]
    fn missing_values_are_absent() {
        let text = "name, compute_cap, memory.total [MiB], mig.mode.current\nOrin (nvgpu), [N/A], [N/A], [N/A]\nB\n";
        let named = |name: &str| Row { name: Some(name.to_string()), ..Row::default() };
        assert_eq!(parse_query(text), [named("Orin (nvgpu)"), named("B")]);
        assert_eq!(parse_query("No devices were found\n"), []);
        assert_eq!(parse_query("\n"), []);
    }

    #[test]
    fn units() {
        assert_eq!(bytes("memory.total [MiB]", "23028 MiB"), Some(24_146_608_128));
        assert_eq!(bytes("memory.total [MiB]", "23028"), Some(24_146_608_128));
        assert_eq!(bytes("memory.total", "23028"), None);
        assert_eq!(bytes("memory.total [MiB]", "-1 MiB"), None);
        assert_eq!(bytes("memory.total [MiB]", "18446744073709551615 MiB"), None);
    }

    #[test]
    fn failures_keep_the_message_of_nvidia_smi() {
        let check = |text, expect: Option<&str>| {
            assert_eq!(parse_failure(text).as_deref(), expect, "{text:?}")
        };
        check(
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161\n",
            Some("Driver/library version mismatch"),
        );
        check(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.\n\n",
            Some(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.",
            ),
        );
        check("\n \n", None);
    }
}
