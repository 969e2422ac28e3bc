//! Where a command runs: the one place that decides it, and says why.

use crate::cli::BackendArg;
use crate::failure::Failure;
use crate::output::Output;
use device::{Device, Unavailable};
use facts::BackendKind;
use probe::Source;
use serde::Serialize;
use std::thread::JoinHandle;
use std::time::Instant;

/// What a command says of the device that it runs on, first of all.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Told {
    backend: BackendKind,
    name: String,
    /// Why it is not a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// A GPU that is here and is not used.
    #[serde(skip_serializing_if = "Option::is_none")]
    unused_gpu: Option<String>,
}

impl Told {
    fn new(device: &Device) -> Self {
        let capabilities = device.capabilities();
        let name = match (&capabilities.cuda, capabilities.isas.first()) {
            (Some(gpu), _) => gpu.name.clone(),
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

    /// Tells it on standard error.
    pub(crate) fn notice(&self, output: &Output) {
        output.notice(|style| self.wrapped(style.width));
    }

    /// The first lines of a command's output, as wide as it is.
    pub(crate) fn text(&self, output: &Output) -> String {
        self.wrapped(output.style().width)
    }

    fn wrapped(&self, width: usize) -> String {
        let line = self.line();
        let mut text = String::new();
        let mut column = 0;
        for word in line.split(' ') {
            let wide = word.chars().count();
            if column > 0 && column + 1 + wide > width {
                text += "\n ";
                column = 1;
            }
            if column > 0 {
                text.push(' ');
            }
            text += word;
            column += wide + 1;
        }
        text + "\n"
    }

    /// The same as one line.
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

/// A device that was chosen.
pub(crate) struct Chosen {
    pub(crate) device: Device,
    pub(crate) told: Told,
    /// How long a GPU took to open, whatever was done meanwhile.
    pub(crate) open_seconds: f64,
}

/// A choice that is being made: a driver takes a while to start, which other work need not wait for.
pub(crate) struct Choice {
    asked: BackendArg,
    gpu: Option<JoinHandle<(Result<Device, Unavailable>, f64)>>,
}

/// Begins to open the best device that may be wanted.
pub(crate) fn begin(asked: BackendArg) -> Choice {
    let wanted = asked != BackendArg::Cpu;
    let open = || {
        let start = Instant::now();
        (device::open(BackendKind::Cuda), start.elapsed().as_secs_f64())
    };
    Choice { asked, gpu: wanted.then(|| std::thread::spawn(open)) }
}

/// The best device for a command that can run anywhere.
pub(crate) fn choose(asked: BackendArg) -> anyhow::Result<Chosen> {
    begin(asked).end(|_| Ok(()))
}

impl Choice {
    /// The GPU where it works and `can` finds nothing against it, else the processor, unless the GPU was asked for by name.
    ///
    /// # Errors
    /// When the device that was asked for is not there, or cannot do the work: then in the words of `can`.
    pub(crate) fn end(self, can: impl Fn(&Device) -> anyhow::Result<()>) -> anyhow::Result<Chosen> {
        let (gpu, open_seconds) = match self.gpu.map(JoinHandle::join) {
            Some(Ok((opened, seconds))) => (Some(opened), seconds),
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => (None, 0.0),
        };
        let (unused_gpu, why) = match (gpu, self.asked) {
            (None, _) => (None, "--backend cpu was given".to_owned()),
            (Some(Ok(device)), asked) => match can(&device) {
                Ok(()) => return Ok(Chosen { told: Told::new(&device), device, open_seconds }),
                Err(error) if asked == BackendArg::Cuda => return Err(error),
                Err(error) => (Some(Told::new(&device).name), format!("{error:#}")),
            },
            (Some(Err(unavailable)), BackendArg::Cuda) => return Err(not_there(&unavailable)),
            (Some(Err(unavailable)), _) => match gpus_here() {
                Some(gpus) => (Some(gpus), unavailable.reason),
                None => (None, format!("no GPU: {}", unavailable.reason)),
            },
        };
        let device = device::open(BackendKind::Cpu)?;
        let told = Told { why: Some(why), unused_gpu, ..Told::new(&device) };
        can(&device).map_err(|error| match &told.unused_gpu {
            Some(_) => error.context(told.line()),
            None => error,
        })?;
        Ok(Chosen { device, told, open_seconds })
    }
}

/// Every device that works, for commands that look at all of them; or the one that was asked for.
pub(crate) fn every(asked: BackendArg) -> anyhow::Result<Vec<Told>> {
    every_of(begin(asked))
}

/// The same of a choice that was begun.
pub(crate) fn every_of(choice: Choice) -> anyhow::Result<Vec<Told>> {
    let asked = choice.asked;
    let best = choice.end(|_| Ok(()))?.told;
    Ok(match (asked, best.backend) {
        (BackendArg::Auto, BackendKind::Cuda) => {
            vec![best, Told::new(&device::open(BackendKind::Cpu)?)]
        }
        _ => vec![best],
    })
}

/// The first lines of such a command.
pub(crate) fn lines(all: &[Told], output: &Output) -> String {
    all.iter().map(|told| told.text(output)).collect()
}

/// The GPUs of this machine, whether they work or not.
fn gpus_here() -> Option<String> {
    let names = probe::gpu_names(&Source::live());
    let names: Vec<String> = names.into_iter().map(|name| name.value).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

fn not_there(unavailable: &Unavailable) -> anyhow::Error {
    let here = gpus_here().map_or_else(String::new, |gpus| format!(" (here is {gpus})"));
    Failure::hinted(
        format!("{unavailable}{here}"),
        "leave --backend out to run on the processor; `firstlight doctor` says what is wrong with the driver",
    )
}
