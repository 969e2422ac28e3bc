//! All-reduces of a few values, repeated inside a CUDA graph as in a decode step with tensor parallelism: by the kernel that
//! such models use, and by NCCL.

use super::collectives::{Ranks, of_all};
use super::values::{accumulated, small, sum};
use super::{FabricPlan, Gpu, SAMPLES, left, median, millis};
use crate::PlannedLaunches;
use crate::decoder::{Inboxes, PEERS, ResidualSum, join_peers};
use device::cuda::{Buffer, Cuda, DeviceError, Event, Graph, PeerAccess};
use facts::{FabricReport, RecordedSum};
use ops::OpError;
use std::sync::Arc;

/// Values per token of a common model: 16 KiB.
const VALUES: usize = 4096;
const BYTES: u64 = (VALUES * size_of::<f32>()) as u64;
/// All-reduces per graph.
const SUMS: usize = 200;
/// The kernel's name in launch counters.
const KERNEL: &str = "decoder.join_peers";

fn describe(by: &str) -> String {
    format!("sums of {BYTES} bytes in a recorded graph, by {by}")
}

/// Measures NCCL.
pub(super) fn by_library(
    plan: &FabricPlan,
    ranks: &Ranks,
    gpus: &mut [Gpu],
    report: &mut FabricReport,
) -> Result<(), DeviceError> {
    if plan.is_late(report, || describe("NCCL")) {
        return Ok(());
    }
    let count = gpus.len();
    let graphs = of_all(ranks.with(gpus), |(_, by, gpu)| {
        gpu.poison(BYTES)?;
        recorded(&gpu.cuda, || by.sum_into([&gpu.from, &gpu.to], VALUES, gpu.cuda.stream()))
    })?;
    let millis = replayed(gpus.iter().map(|gpu| &gpu.cuda).zip(&graphs))?;
    let mut wrong = 0;
    for gpu in gpus.iter_mut() {
        wrong += gpu.wrong(BYTES, |at| sum(count, at).to_bits())?;
    }
    report.recorded.push(row("NCCL", millis, wrong));
    Ok(())
}

/// Measures `join_peers`.
pub(super) fn by_kernel(
    plan: &FabricPlan,
    gpus: &[Gpu],
    report: &mut FabricReport,
) -> Result<(), DeviceError> {
    if plan.is_late(report, || describe(KERNEL)) {
        return Ok(());
    }
    let count = gpus.len();
    if count > PEERS {
        let why = format!("it supports up to {PEERS} GPUs, got {count}");
        left(report, describe(KERNEL), why);
        return Ok(());
    }
    if report.copies.iter().any(|copy| !copy.direct) {
        left(
            report,
            describe(KERNEL),
            "it writes to the others' memory, which not all of them reach",
        );
        return Ok(());
    }
    let mut sums = Vec::new();
    for gpu in gpus {
        sums.push(Sums::of(gpu, count)?);
    }
    let mut graphs = Vec::new();
    for (rank, (gpu, own)) in gpus.iter().zip(&sums).enumerate() {
        let (inboxes, reached) = own.open(rank, gpu, gpus, &sums)?;
        let planned = own.plan(gpu, &inboxes)?;
        let graph =
            recorded(&gpu.cuda, || planned.enqueue(gpu.cuda.stream()).map_err(driver_error))?;
        graphs.push((graph, planned, reached));
    }
    let launched = |gpu: &Gpu| gpu.device.launches().of(KERNEL).count;
    let before: u64 = gpus.iter().map(launched).sum();
    let cudas = gpus.iter().map(|gpu| &gpu.cuda);
    let millis = replayed(cudas.zip(graphs.iter().map(|(graph, ..)| graph)))?;
    let times = SUMS * (1 + SAMPLES);
    // Each run adds to the previous result, so all of them count.
    let wanted = |at: usize| accumulated(times, count, at).to_bits();
    let mut wrong = 0;
    for (gpu, own) in gpus.iter().zip(&sums) {
        let mut got = vec![0xff; BYTES as usize];
        gpu.cuda.stream().read(&own.x, &mut got)?;
        wrong += super::values::wrong(&got, wanted);
    }
    let launches = gpus.iter().map(launched).sum::<u64>() - before;
    if launches != (times * count) as u64 {
        let why = format!("{launches} launches were counted instead of {}", times * count);
        left(report, describe(KERNEL), why);
        return Ok(());
    }
    report.recorded.push(row(KERNEL, millis, wrong));
    Ok(())
}

/// A GPU's buffers for the kernel's all-reduces.
struct Sums {
    /// Its contribution `[1, VALUES]`.
    added: Arc<Buffer>,
    /// The accumulated sum `[1, VALUES]`, initially zeros.
    x: Arc<Buffer>,
    inbox: Arc<Buffer>,
    turns: Arc<Buffer>,
}

impl Sums {
    fn of(gpu: &Gpu, count: usize) -> Result<Self, DeviceError> {
        let stream = gpu.cuda.stream();
        let zeros = |bytes: usize| -> Result<_, DeviceError> {
            let buffer = stream.allocate(bytes)?;
            stream.fill32(&buffer, 0)?;
            Ok(Arc::new(buffer))
        };
        let (x, inbox, turns) =
            (zeros(BYTES as usize)?, zeros(Inboxes::bytes(count))?, zeros(Inboxes::TURNS)?);
        let added = Arc::new(stream.allocate(BYTES as usize)?);
        stream.synchronize()?;
        Ok(Self { added, x, inbox, turns })
    }

    /// Maps the inboxes of all GPUs on this one, and fills its contribution.
    fn open(
        &self,
        rank: usize,
        gpu: &Gpu,
        gpus: &[Gpu],
        sums: &[Self],
    ) -> Result<(Inboxes, Vec<PeerAccess>), DeviceError> {
        let mut bytes = vec![0; BYTES as usize];
        super::values::fill(&mut bytes, |at| small(rank, at).to_bits());
        gpu.cuda.stream().write(&self.added, &bytes)?;
        let mut reached = Vec::new();
        let mut of = Vec::new();
        for (other, (there, theirs)) in gpus.iter().zip(sums).enumerate() {
            if other == rank {
                of.push(Arc::clone(&self.inbox));
                continue;
            }
            let opened = gpu.cuda.map_peer_buffer(&there.cuda, &theirs.inbox)?;
            of.push(Arc::clone(opened.buffer()));
            reached.push(opened);
        }
        Ok((Inboxes { of, turns: Arc::clone(&self.turns), rank }, reached))
    }

    fn plan(&self, gpu: &Gpu, inboxes: &Inboxes) -> Result<PlannedLaunches, DeviceError> {
        let join = ResidualSum {
            added: &self.added,
            squares: None,
            x: &self.x,
            count: 1,
            hidden: VALUES,
            factor: 1.0,
        };
        join_peers(&gpu.device, &join, None, inboxes).map_err(driver_error)
    }
}

fn driver_error(error: OpError) -> DeviceError {
    match error {
        OpError::Device { error, .. } => error,
        other => DeviceError::Refused { what: other.to_string() },
    }
}

/// Captures the all-reduces and uploads the graph: otherwise the first launch could wait for a kernel that waits for
/// this GPU.
fn recorded(cuda: &Cuda, sum: impl Fn() -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
    let stream = cuda.stream();
    let graph = stream.capture(|_| (0..SUMS).try_for_each(|_| sum()))?;
    graph.upload(stream)?;
    stream.synchronize()?;
    Ok(graph)
}

/// Milliseconds per all-reduce on the slowest GPU, the median of several launches of all graphs.
fn replayed<'a>(graphs: impl Iterator<Item = (&'a Cuda, &'a Graph)>) -> Result<f64, DeviceError> {
    let graphs: Vec<(&Cuda, &Graph)> = graphs.collect();
    // All launches are enqueued before anything is awaited, the first as warm-up: no GPU waits for the host in between.
    let mut stretches: Vec<Vec<(Event, Event)>> = graphs.iter().map(|_| Vec::new()).collect();
    for sample in 0..=SAMPLES {
        for ((cuda, graph), stretches) in graphs.iter().zip(&mut stretches) {
            let begin = cuda.stream().record()?;
            graph.launch(cuda.stream())?;
            let end = cuda.stream().record()?;
            if sample > 0 {
                stretches.push((begin, end));
            }
        }
    }
    for (cuda, _) in &graphs {
        cuda.stream().synchronize()?;
    }
    let mut slowest = vec![0.0; SAMPLES];
    for stretches in &stretches {
        for (slowest, millis) in slowest.iter_mut().zip(millis(stretches)?) {
            *slowest = f64::max(*slowest, millis);
        }
    }
    Ok(median(slowest) / SUMS as f64)
}

fn row(by: &str, millis: f64, wrong: u64) -> RecordedSum {
    let micros = (wrong == 0).then_some(1e3 * millis);
    RecordedSum { by: by.to_owned(), bytes: BYTES, micros, wrong }
}
