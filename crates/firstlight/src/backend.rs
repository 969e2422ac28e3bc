//! Chooses the device of a command and reports the choice.

use crate::cli::BackendArg;
use crate::failure::Failure;
use crate::output::{self, Output};
use device::{Device, Unavailable};
use facts::BackendKind;
use probe::Source;
use serde::Serialize;
use std::thread::JoinHandle;
use std::time::Instant;

/// The notice about the device that a command runs on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct DeviceNotice {
    backend: BackendKind,
    name: String,
    /// Why the device is not a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// A GPU of this machine that is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    unused_gpu: Option<String>,
}

impl DeviceNotice {
    fn new(device: &Device) -> Self {
        let capabilities = device.capabilities();
        let name = match (&capabilities.name, capabilities.isas.first()) {
            (Some(gpu), _) => gpu.clone(),
            (None, isa) => {
                let isa = isa.map_or("portable", |isa| isa.as_str());
                format!("the processor, {} threads, {isa}", capabilities.threads)
            }
        };
        Self { backend: capabilities.backend, name, why: None, unused_gpu: None }
    }

    pub(crate) fn backend(&self) -> BackendKind {
        self.backend
    }

    /// Prints the notice on standard error.
    pub(crate) fn notice(&self, output: &Output) {
        output.notice(|style| self.wrapped(style.width));
    }

    /// The notice, wrapped to the width of the output.
    pub(crate) fn text(&self, output: &Output) -> String {
        self.wrapped(output.style().width)
    }

    fn wrapped(&self, width: usize) -> String {
        output::wrapped(&self.line(), width) + "\n"
    }

    /// The notice as one line.
    fn line(&self) -> String {
        let mut line = format!("device: {} ({})", self.name, self.backend);
        match (&self.unused_gpu, &self.why) {
            (Some(gpu), Some(why)) => line += &format!(", NOT {gpu}: {why}"),
            (None, Some(why)) => line += &format!("; {why}"),
            _ => {}
        }
        line
    }
}

/// The chosen device.
pub(crate) struct OpenedDevice {
    pub(crate) device: Device,
    pub(crate) device_notice: DeviceNotice,
    /// Seconds that opening the GPU took, including concurrent work.
    pub(crate) open_seconds: f64,
}

/// A device that is being opened: a driver takes a while to start, and other work continues meanwhile.
pub(crate) struct PendingDevice {
    asked: BackendArg,
    gpu: Option<JoinHandle<(Result<Device, Unavailable>, f64)>>,
}

/// Starts opening the best device that may be used.
pub(crate) fn begin(asked: BackendArg) -> PendingDevice {
    let wanted = asked != BackendArg::Cpu;
    let open = || {
        let start = Instant::now();
        (backends::open(BackendKind::Cuda), start.elapsed().as_secs_f64())
    };
    PendingDevice { asked, gpu: wanted.then(|| std::thread::spawn(open)) }
}

/// The best device for a command that can run anywhere.
pub(crate) fn choose(asked: BackendArg) -> anyhow::Result<OpenedDevice> {
    begin(asked).end(|_| Ok(()))
}

impl PendingDevice {
    /// Returns the GPU if it works and `can` accepts it, and otherwise the processor, unless the GPU was requested by
    /// name.
    ///
    /// # Errors
    /// The requested device is missing, or `can` refuses it; the message is that of `can`.
    pub(crate) fn end(
        self,
        can: impl Fn(&Device) -> anyhow::Result<()>,
    ) -> anyhow::Result<OpenedDevice> {
        let (gpu, open_seconds) = match self.gpu.map(JoinHandle::join) {
            Some(Ok((opened, seconds))) => (Some(opened), seconds),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => (None, 0.0),
        };
        let (unused_gpu, why) = match (gpu, self.asked) {
            (None, _) => (None, "--backend cpu was given".to_owned()),
            (Some(Ok(device)), asked) => match can(&device) {
                Ok(()) => {
                    return Ok(OpenedDevice {
                        device_notice: DeviceNotice::new(&device),
                        device,
                        open_seconds,
                    });
                }
                Err(error) if asked == BackendArg::Cuda => return Err(error),
                Err(error) => (Some(DeviceNotice::new(&device).name), format!("{error:#}")),
            },
            (Some(Err(unavailable)), BackendArg::Cuda) => return Err(not_there(&unavailable)),
            (Some(Err(unavailable)), _) => match gpus_here() {
                Some(gpus) => (Some(gpus), unavailable.reason),
                None => (None, format!("no GPU: {}", unavailable.reason)),
            },
        };
        let device = backends::open(BackendKind::Cpu)?;
        let device_notice =
            DeviceNotice { why: Some(why), unused_gpu, ..DeviceNotice::new(&device) };
        can(&device).map_err(|error| match &device_notice.unused_gpu {
            Some(_) => error.context(device_notice.line()),
            None => error,
        })?;
        Ok(OpenedDevice { device, device_notice, open_seconds })
    }
}

/// Every working device, for commands that use all of them; or the requested one.
pub(crate) fn every(asked: BackendArg) -> anyhow::Result<Vec<DeviceNotice>> {
    every_of(begin(asked))
}

/// As [`every`], for a device that is already being opened.
pub(crate) fn every_of(choice: PendingDevice) -> anyhow::Result<Vec<DeviceNotice>> {
    let asked = choice.asked;
    let best = choice.end(|_| Ok(()))?.device_notice;
    Ok(match (asked, best.backend) {
        (BackendArg::Auto, BackendKind::Cuda) => {
            vec![best, DeviceNotice::new(&backends::open(BackendKind::Cpu)?)]
        }
        _ => vec![best],
    })
}

/// The notices about all devices.
pub(crate) fn lines(all: &[DeviceNotice], output: &Output) -> String {
    all.iter().map(|device_notice| device_notice.text(output)).collect()
}

/// The GPUs of this machine, working or not.
fn gpus_here() -> Option<String> {
    let names = probe::gpu_names(&Source::live());
    let names: Vec<String> = names.into_iter().map(|name| name.value).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn not_there(unavailable: &Unavailable) -> anyhow::Error {
    let here = gpus_here().map_or_else(String::new, |gpus| format!(" (here is {gpus})"));
    Failure::hinted(
        format!("{unavailable}{here}"),
        "leave --backend out to run on the processor; `firstlight doctor` diagnoses the driver",
    )
}
