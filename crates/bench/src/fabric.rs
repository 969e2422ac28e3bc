//! What GPUs of one machine carry between each other: copies of each pair, collectives of all, and small sums inside a recorded graph.
//!
//! What arrives is known beforehand. Destinations hold NaN before the first transfer and are compared after the last timed one; one
//! that differs, or was not written, has no speed.

mod collectives;
mod copies;
mod recorded;
mod values;

use crate::BenchError;
use device::Device;
use device::cuda::{Buffer, Cuda, CudaError, Event, Nccl, PinnedBuffer};
use facts::CompactSort;
use facts::{FabricLeft, FabricReport};
use std::sync::Arc;
use std::time::Instant;
use verify::OUT_OF_TIME;

/// What is measured between GPUs.
#[derive(Debug, Clone)]
pub struct FabricPlan {
    /// The driver's index of each GPU that this process sees, in their order.
    pub gpus: Vec<u32>,
    /// Bytes of the copies and of the largest collectives.
    pub largest: u64,
    /// When nothing further begins; `None` for as long as it takes.
    pub until: Option<Instant>,
}

impl FabricPlan {
    /// Bytes of the largest transfers whose rates are worth keeping, and of those of a quick look.
    pub const LARGEST: u64 = 256 << 20;
    /// The same of a quick look.
    pub const QUICK: u64 = 16 << 20;
}

/// Sizes of collectives: each this many times the one before it.
const STEP: u64 = 16;
const SMALLEST: u64 = 1 << 10;
/// Timed stretches of each transfer.
const SAMPLES: usize = 5;

/// A GPU that takes part.
struct Gpu {
    /// The driver's index.
    index: u32,
    device: Device,
    cuda: Cuda,
    from: Arc<Buffer>,
    to: Arc<Buffer>,
    /// Where results come to the host.
    host: PinnedBuffer,
}

/// Measures what the plan says, telling each time something is added: what follows may hang in the driver.
///
/// # Errors
/// [`BenchError`] when a GPU cannot be opened. What fails later is in the report.
pub fn fabric(
    plan: &FabricPlan,
    tell: &mut dyn FnMut(&FabricReport),
) -> Result<FabricReport, BenchError> {
    let began = Instant::now();
    let mut gpus = open(plan)?;
    let mut report = FabricReport { gpus: plan.gpus.clone(), ..FabricReport::default() };
    let mut told = |report: &mut FabricReport| {
        report.seconds = began.elapsed().as_secs_f64();
        tell(report);
    };
    let measured = measure(plan, &mut gpus, &mut report, &mut told);
    report.broke = measured.err().map(|error| error.to_string());
    told(&mut report);
    Ok(report)
}

/// Opens all of them at once, while NCCL is looked for: a quick look takes not much longer than that.
fn open(plan: &FabricPlan) -> Result<Vec<Gpu>, BenchError> {
    let open = &|(at, index): (u32, u32)| -> Result<Gpu, BenchError> {
        let device = device::open_gpu(at)?;
        let cuda = device.cuda().cloned().ok_or_else(|| refused("the device is no GPU"))?;
        let buffer = || cuda.stream().allocate(plan.largest as usize).map(Arc::new);
        let (from, to) = (buffer()?, buffer()?);
        let host = cuda.pinned(plan.largest as usize)?;
        Ok(Gpu { index, device, cuda, from, to, host })
    };
    std::thread::scope(|scope| {
        // Whoever needs it asks again, and is told why where there is none.
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
    told: &mut dyn FnMut(&mut FabricReport),
) -> Result<(), CudaError> {
    copies::all(plan, gpus, report, told)?;
    if gpus.len() < 2 {
        return Ok(());
    }
    match Nccl::find() {
        Ok(nccl) => {
            report.nccl = Some(nccl.told());
            // Whatever happens while they join: it is known with which library.
            told(report);
            let ranks = collectives::Ranks::join(gpus, nccl)?;
            collectives::all(plan, &ranks, gpus, report, told)?;
            recorded::by_library(plan, &ranks, gpus, report)?;
        }
        Err(error) => left(report, "collectives", error.to_string()),
    }
    told(report);
    recorded::by_kernel(plan, gpus, report)
}

fn left(report: &mut FabricReport, what: impl Into<String>, why: impl Into<String>) {
    report.left_out.push(FabricLeft { what: what.into(), why: why.into() });
}

impl FabricPlan {
    /// Whether no time is left for what is named; then it is listed.
    fn is_late(&self, report: &mut FabricReport, what: impl FnOnce() -> String) -> bool {
        let late = self.until.is_some_and(|until| Instant::now() >= until);
        if late {
            left(report, what(), OUT_OF_TIME);
        }
        late
    }
}

/// How often a transfer of so many bytes is repeated within a timed stretch.
fn runs(bytes: u64) -> usize {
    ((1 << 28) / bytes.max(1)).clamp(4, 100) as usize
}

/// Milliseconds of each stretch between two events.
fn millis(stretches: &[(Event, Event)]) -> Result<Vec<f64>, CudaError> {
    stretches.iter().map(|(begin, end)| begin.millis_until(end)).collect()
}

/// The middle one of several times.
fn median(mut times: Vec<f64>) -> f64 {
    times.compact_sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

fn refused(what: &str) -> CudaError {
    CudaError::Refused { what: what.to_owned() }
}

impl Gpu {
    /// Gives work to this GPU's stream: once or twice to warm up, then so many times in each timed stretch.
    fn stretches(
        &self,
        runs: usize,
        work: impl Fn() -> Result<(), CudaError>,
    ) -> Result<Vec<(Event, Event)>, CudaError> {
        let stream = self.cuda.stream();
        (0..2).try_for_each(|_| work())?;
        let stretch = |_| {
            let begin = stream.record()?;
            (0..runs).try_for_each(|_| work())?;
            Ok((begin, stream.record()?))
        };
        (0..SAMPLES).map(stretch).collect()
    }

    /// Makes all of the destination's first bytes NaN.
    fn poison(&self, bytes: u64) -> Result<(), CudaError> {
        self.cuda.stream().fill32(&self.to.part(0, bytes as usize)?, u32::MAX)?;
        self.cuda.stream().synchronize()
    }

    /// How many of the destination's first words differ from those that have to be there.
    fn wrong(
        &mut self,
        bytes: u64,
        wanted: impl Fn(usize) -> u32 + Sync,
    ) -> Result<u64, CudaError> {
        let got = &mut self.host[..bytes as usize];
        self.cuda.stream().read(&self.to, got)?;
        Ok(values::wrong(got, wanted))
    }

    /// Fills what is sent.
    fn give(&mut self, word: impl Fn(usize) -> u32 + Sync) -> Result<(), CudaError> {
        values::fill(&mut self.host, word);
        self.cuda.stream().write(&self.from, &self.host)
    }
}
