//! The calls of NVML.

mod health;

use super::{COMPLETE, Process};
use crate::Source;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{cuda_driver_version_major, cuda_driver_version_minor};
use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Starts NVML, makes all calls, and writes the record that [`super::Nvml::parse`] reads, line by line: each call is
/// named before it is made, so that the reader knows which one did not return. This function may hang.
pub fn write_record(source: &Source, out: &mut impl Write) {
    NvmlWriter { out }.write_record(source, NvmlWriter::everything);
}

/// As [`write_record`], only for values that change while programs run: each GPU's processes, clocks and temperature. Links,
/// memory errors and pairs need many calls, and every process of a check queries NVML.
pub fn write_moment(source: &Source, out: &mut impl Write) {
    NvmlWriter { out }.write_record(source, |teller, nvml| {
        teller.devices(nvml, |teller, device, of| {
            teller.processes(device, of);
            teller.clocks(device, of);
        });
    });
}

/// NVML's names of the reasons for reduced clocks; idleness is not counted.
pub(super) fn throttle_reasons(reasons: ThrottleReasons) -> Vec<String> {
    let names = (reasons - ThrottleReasons::GPU_IDLE).iter_names();
    names.map(|(name, _)| name.to_owned()).collect()
}

struct NvmlWriter<'a, W> {
    out: &'a mut W,
}

impl<W: Write> NvmlWriter<'_, W> {
    /// Starts a library, and makes the calls of `of`.
    fn write_record(&mut self, source: &Source, of: impl FnOnce(&mut Self, &nvml_wrapper::Nvml)) {
        self.start(&source.loader().files(source, "libnvidia-ml.so.1"), of);
        self.line(COMPLETE);
    }

    /// `files` are library paths outside the loader's search.
    fn start(&mut self, files: &[PathBuf], of: impl FnOnce(&mut Self, &nvml_wrapper::Nvml)) {
        let mut refused = None;
        // The loader's choice goes first, because CUDA programs get that library.
        let own = std::iter::once(Path::new("libnvidia-ml.so.1"));
        for library in own.chain(files.iter().map(PathBuf::as_path)) {
            let name = library.display().to_string();
            self.key("trying", &name);
            self.key("asking", "nvmlInit_v2");
            match nvml_wrapper::Nvml::builder().lib_path(OsStr::new(library)).init() {
                Ok(nvml) => {
                    self.key("library", &name);
                    of(self, &nvml);
                    // Closing NVML can hang like any call, and this process exits anyway.
                    std::mem::forget(nvml);
                    return;
                }
                Err(NvmlError::LibloadingError(_)) => {}
                Err(error) => drop(refused.get_or_insert((name, words(&error)))),
            }
        }
        if let Some((library, words)) = refused {
            self.key("library", &library);
            self.key("error", &words);
        }
    }

    fn everything(&mut self, nvml: &nvml_wrapper::Nvml) {
        let part = |number: i32| u32::try_from(number).unwrap_or(0);
        let driver = self.ask("nvmlSystemGetDriverVersion", "", || nvml.sys_driver_version());
        self.fact("driver", driver);
        let cuda =
            self.ask("nvmlSystemGetCudaDriverVersion_v2", "", || nvml.sys_cuda_driver_version());
        self.fact(
            "cuda",
            cuda.map(|version| {
                let (major, minor) =
                    (cuda_driver_version_major(version), cuda_driver_version_minor(version));
                format!("{}.{}", part(major), part(minor))
            }),
        );
        let count = self.devices(nvml, Self::device);
        self.pairs(nvml, count);
    }

    /// Makes the calls of `tell` for each GPU; returns their number.
    fn devices(
        &mut self,
        nvml: &nvml_wrapper::Nvml,
        tell: impl Fn(&mut Self, &nvml_wrapper::Device, &str),
    ) -> u32 {
        let count = self.ask("nvmlDeviceGetCount_v2", "", || nvml.device_count()).unwrap_or(0);
        for index in 0..count {
            let of = format!(" (GPU {index})");
            self.line("\n[gpu]");
            self.key("asking", &format!("nvmlDeviceGetHandleByIndex_v2{of}"));
            match nvml.device_by_index(index) {
                Ok(device) => tell(self, &device, &of),
                Err(error) => self.key("error", &words(&error)),
            }
        }
        count
    }

    fn device(&mut self, device: &nvml_wrapper::Device, of: &str) {
        let name = self.ask("nvmlDeviceGetName", of, || device.name());
        self.fact("name", name);
        let uuid = self.ask("nvmlDeviceGetUUID", of, || device.uuid());
        self.fact("uuid", uuid);
        let capability =
            self.ask("nvmlDeviceGetCudaComputeCapability", of, || device.cuda_compute_capability());
        self.fact("compute_capability", capability.map(|c| format!("{}.{}", c.major, c.minor)));
        let pci = self.ask("nvmlDeviceGetPciInfo_v3", of, || device.pci_info());
        self.fact("pci_bus", pci.map(|pci| pci.bus_id));
        // Most GPUs have no MIG and refuse the call.
        self.key("asking", &format!("nvmlDeviceGetMigMode{of}"));
        self.fact("mig", device.mig_mode().ok().map(|mode| mode.current == 1));
        self.key("asking", &format!("nvmlDeviceGetPersistenceMode{of}"));
        self.fact("persistence", device.is_in_persistent_mode().ok());
        self.key("asking", &format!("nvmlDeviceGetMemoryInfo_v2{of}"));
        match device.memory_info() {
            Ok(memory) => {
                self.fact("memory_total", Some(memory.total));
                self.fact("memory_used", Some(memory.used));
            }
            Err(error) => self.key("memory_error", &words(&error)),
        }
        self.processes(device, of);
        self.clocks(device, of);
        self.health(device, of);
    }

    /// The current clocks. A GPU that does not report them is not a problem.
    fn clocks(&mut self, device: &nvml_wrapper::Device, of: &str) {
        self.key("asking", &format!("nvmlDeviceGetClockInfo{of}"));
        self.fact("sm_mhz", device.clock_info(Clock::SM).ok());
        self.fact("memory_mhz", device.clock_info(Clock::Memory).ok());
        self.key("asking", &format!("nvmlDeviceGetMaxClockInfo{of}"));
        self.fact("sm_mhz_most", device.max_clock_info(Clock::SM).ok());
        self.key("asking", &format!("nvmlDeviceGetTemperature{of}"));
        self.fact("celsius", device.temperature(TemperatureSensor::Gpu).ok());
        self.key("asking", &format!("nvmlDeviceGetCurrentClocksThrottleReasons{of}"));
        let reasons = device.current_throttle_reasons().ok();
        self.fact("held_down_by", reasons.map(|reasons| throttle_reasons(reasons).join(" ")));
    }

    /// Compute and graphics processes; one that is both is in both lists and counts its memory once.
    fn processes(&mut self, device: &nvml_wrapper::Device, of: &str) {
        let process = |kind: &str, info: ProcessInfo| Process {
            pid: info.pid,
            bytes: match info.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
            kind: kind.to_string(),
        };
        self.key("asking", &format!("nvmlDeviceGetComputeRunningProcesses_v3{of}"));
        let compute = match device.running_compute_processes() {
            Ok(list) => list,
            Err(error) => return self.key("processes_error", &words(&error)),
        };
        let mut all: Vec<Process> =
            compute.into_iter().map(|info| process("compute", info)).collect();
        self.key("asking", &format!("nvmlDeviceGetGraphicsRunningProcesses_v3{of}"));
        for info in device.running_graphics_processes().unwrap_or_default() {
            if !all.iter().any(|known| known.pid == info.pid) {
                all.push(process("graphics", info));
            }
        }
        for process in all {
            self.line(process.record().trim_end());
        }
    }

    /// Makes one call after naming it; a refusal is part of the record.
    fn ask<T>(
        &mut self,
        call: &str,
        of: &str,
        answer: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Option<T> {
        self.key("asking", &format!("{call}{of}"));
        match answer() {
            Ok(value) => Some(value),
            Err(error) => {
                self.key("refused", &format!("{call}: {}", words(&error)));
                None
            }
        }
    }

    fn fact(&mut self, key: &str, value: Option<impl std::fmt::Display>) {
        if let Some(value) = value {
            self.key(key, &value.to_string());
        }
    }

    fn key(&mut self, key: &str, value: &str) {
        // A line is one fact: a driver's text must not start another.
        let value = value.replace(['\n', '\r'], " ");
        self.line(&format!("{key} = {value}"));
    }

    /// Writes a line; a closed pipe is ignored.
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
        let _ = self.out.flush();
    }
}

/// NVML's own error messages (nvmlErrorString), because users paste and search those; the wrapper's differ.
fn words(error: &NvmlError) -> String {
    let words = match error {
        NvmlError::Uninitialized => "Uninitialized",
        NvmlError::InvalidArg => "Invalid Argument",
        NvmlError::NotSupported => "Not Supported",
        NvmlError::NoPermission => "Insufficient Permissions",
        NvmlError::NotFound => "Not Found",
        NvmlError::InsufficientSize(_) => "Insufficient Size",
        NvmlError::InsufficientPower => "Insufficient External Power",
        NvmlError::DriverNotLoaded => "Driver Not Loaded",
        NvmlError::Timeout => "Timeout",
        NvmlError::IrqIssue => "Interrupt Request Issue",
        NvmlError::LibraryNotFound => "NVML Shared Library Not Found",
        NvmlError::FunctionNotFound => "Function Not Found",
        NvmlError::CorruptedInfoROM => "Corrupted infoROM",
        NvmlError::GpuLost => "GPU is lost",
        NvmlError::ResetRequired => "GPU requires reset",
        NvmlError::OperatingSystem => "The operating system has blocked the request",
        NvmlError::LibRmVersionMismatch => "Driver/library version mismatch",
        NvmlError::InUse => "In use by another client",
        NvmlError::InsufficientMemory => "Insufficient Memory",
        NvmlError::NoData => "No Data",
        NvmlError::Unknown => "Unknown Error",
        other => return other.to_string(),
    };
    words.to_string()
}
