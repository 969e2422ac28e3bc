//! Measures transfers between the GPUs of one machine: copies of each pair, collectives of all, and small all-reduces
//! inside a CUDA graph.
//!
//! The expected data is known in advance. Destinations contain NaN before the first transfer and are compared after the
//! last timed one; a transfer with a wrong or unwritten word has no speed.

mod collectives;
mod copies;
mod recorded;
mod values;

use crate::{NvidiaGpus, gpu};
use device::cuda::{Buffer, Cuda, DeviceError, Event, Nccl, PinnedBuffer};
use device::{Device, DeviceOwnership, Unavailable};
use facts::{BackendKind, CompactSort, FabricReport, OUT_OF_TIME, UnmeasuredFabric};
use ops::Backend;
use std::sync::Arc;
use std::time::Instant;

/// A plan of measurements between GPUs.
#[derive(Debug, Clone)]
pub struct FabricPlan {
    /// The driver's index of each GPU visible to this process, in order.
    pub gpus: Vec<u32>,
    /// Bytes of the copies and of the largest collectives.
    pub largest: u64,
    /// When no further measurement starts; `None` for no limit.
    pub until: Option<Instant>,
}

impl FabricPlan {
    /// Bytes of the largest transfers for a full measurement.
    pub const LARGEST: u64 = 256 << 20;
    /// Bytes of the largest transfers for a quick one.
    pub const QUICK: u64 = 16 << 20;
}

/// Ratio of consecutive sizes of collectives.
const STEP: u64 = 16;
const SMALLEST: u64 = 1 << 10;
/// Timed intervals per transfer.
const SAMPLES: usize = 5;

/// A measured GPU.
struct Gpu {
    /// The driver's index.
    index: u32,
    device: Device,
    cuda: Cuda,
    from: Arc<Buffer>,
    to: Arc<Buffer>,
    /// Receives results on the host.
    host: PinnedBuffer,
}

/// Runs the plan and calls `tell` after each addition to the report, because later measurements may hang in the driver.
///
/// # Errors
/// [`Unavailable`] when a GPU cannot be opened or has no memory for the buffers. Later failures are in the report.
pub fn fabric(
    plan: &FabricPlan,
    tell: &mut dyn FnMut(&FabricReport),
) -> Result<FabricReport, Unavailable> {
    let began = Instant::now();
    let mut gpus = open(plan)?;
    let mut report = FabricReport { gpus: plan.gpus.clone(), ..FabricReport::default() };
    let mut publish = |report: &mut FabricReport| {
        report.seconds = began.elapsed().as_secs_f64();
        tell(report);
    };
    let measured = measure(plan, &mut gpus, &mut report, &mut publish);
    report.broke = measured.err().map(|error| error.to_string());
    publish(&mut report);
    Ok(report)
}

/// Opens all GPUs in parallel while another thread searches for NCCL, to keep quick measurements short.
fn open(plan: &FabricPlan) -> Result<Vec<Gpu>, Unavailable> {
    let open = &|(at, index): (u32, u32)| -> Result<Gpu, Unavailable> {
        let device = NvidiaGpus.open(at, DeviceOwnership::Owned)?;
        Gpu::new(index, device, plan.largest as usize)
            .map_err(|error| Unavailable { backend: BackendKind::Cuda, reason: error.to_string() })
    };
    std::thread::scope(|scope| {
        // `measure` calls this too and reports the error if there is none.
        scope.spawn(|| drop(Nccl::find()));
        let each = (0..).zip(plan.gpus.iter().copied());
        let threads: Vec<_> = each.map(|gpu| scope.spawn(move || open(gpu))).collect();
        let opened = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        opened.collect()
    })
}

fn measure(
    plan: &FabricPlan,
    gpus: &mut [Gpu],
    report: &mut FabricReport,
    publish: &mut dyn FnMut(&mut FabricReport),
) -> Result<(), DeviceError> {
    copies::all(plan, gpus, report, publish)?;
    if gpus.len() < 2 {
        return Ok(());
    }
    match Nccl::find() {
        Ok(nccl) => {
            report.nccl = Some(nccl.describe());
            // Reported before the ranks join, so that the library is known if that fails.
            publish(report);
            let ranks = collectives::Ranks::join(gpus, nccl)?;
            collectives::all(plan, &ranks, gpus, report, publish)?;
            recorded::by_library(plan, &ranks, gpus, report)?;
        }
        Err(error) => left(report, "collectives", error.to_string()),
    }
    publish(report);
    recorded::by_kernel(plan, gpus, report)
}

fn left(report: &mut FabricReport, what: impl Into<String>, why: impl Into<String>) {
    report.left_out.push(UnmeasuredFabric { what: what.into(), why: why.into() });
}

impl FabricPlan {
    /// Whether the time limit was reached; then `what` is listed as not measured.
    fn is_late(&self, report: &mut FabricReport, what: impl FnOnce() -> String) -> bool {
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        if late {
            left(report, what(), OUT_OF_TIME);
        }
        late
    }
}

/// Repetitions of a transfer of this size within a timed interval.
fn runs(bytes: u64) -> usize {
    ((1 << 28) / bytes.max(1)).clamp(4, 100) as usize
}

/// Milliseconds of each interval between two events.
fn millis(stretches: &[(Event, Event)]) -> Result<Vec<f64>, DeviceError> {
    stretches.iter().map(|(begin, end)| begin.millis_until(end)).collect()
}

/// The median.
fn median(mut times: Vec<f64>) -> f64 {
    times.compact_sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Gpu {
    fn new(index: u32, device: Device, bytes: usize) -> Result<Self, DeviceError> {
        let cuda = gpu(&device)?.clone();
        let buffer = || cuda.stream().allocate(bytes).map(Arc::new);
        let (from, to) = (buffer()?, buffer()?);
        let host = cuda.pinned(bytes)?;
        Ok(Self { index, device, cuda, from, to, host })
    }

    /// Enqueues work on this GPU's stream: one or two warm-up runs, then `runs` in each timed interval.
    fn stretches(
        &self,
        runs: usize,
        work: impl Fn() -> Result<(), DeviceError>,
    ) -> Result<Vec<(Event, Event)>, DeviceError> {
        let stream = self.cuda.stream();
        (0..2).try_for_each(|_| work())?;
        let stretch = |_| {
            let begin = stream.record()?;
            (0..runs).try_for_each(|_| work())?;
            Ok((begin, stream.record()?))
        };
        (0..SAMPLES).map(stretch).collect()
    }

    /// Fills the first bytes of the destination with NaN.
    fn poison(&self, bytes: u64) -> Result<(), DeviceError> {
        self.cuda.stream().fill32(&self.to.part(0, bytes as usize)?, u32::MAX)?;
        self.cuda.stream().synchronize()
    }

    /// Number of words at the destination that differ from the expected ones.
    fn wrong(
        &mut self,
        bytes: u64,
        wanted: impl Fn(usize) -> u32 + Sync,
    ) -> Result<u64, DeviceError> {
        let got = &mut self.host[..bytes as usize];
        self.cuda.stream().read(&self.to, got)?;
        Ok(values::wrong(got, wanted))
    }

    /// Fills the source.
    fn fill(&mut self, word: impl Fn(usize) -> u32 + Sync) -> Result<(), DeviceError> {
        values::fill(&mut self.host, word);
        self.cuda.stream().write(&self.from, &self.host)
    }
}
