//! Collectives of all GPUs by NCCL, with one thread per rank.

use super::values::{sum, value};
use super::{FabricPlan, Gpu, SMALLEST, STEP, median, millis, runs};
use device::cuda::{Buffer, Communicator, DeviceError, Nccl, Stream};
use facts::{Collective, CollectiveKind, FabricReport};

/// The communicators of all GPUs.
pub(super) struct Ranks(Vec<Communicator>);

impl Ranks {
    pub(super) fn join(gpus: &[Gpu], nccl: &'static Nccl) -> Result<Self, DeviceError> {
        let (id, ranks) = (nccl.id()?, gpus.len());
        let joined = of_all(gpus.iter().enumerate(), |(rank, gpu)| {
            Communicator::new(nccl, &gpu.cuda, &id, [rank, ranks])
        });
        Ok(Self(joined?))
    }

    pub(super) fn with<'a>(
        &'a self,
        gpus: &'a mut [Gpu],
    ) -> impl Iterator<Item = (usize, &'a Communicator, &'a mut Gpu)> {
        self.0.iter().zip(gpus).enumerate().map(|(rank, (by, gpu))| (rank, by, gpu))
    }
}

/// Runs a function for each GPU in parallel.
pub(super) fn of_all<I: Send, T: Send>(
    each: impl Iterator<Item = I>,
    work: impl Fn(I) -> Result<T, DeviceError> + Sync,
) -> Result<Vec<T>, DeviceError> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = each.map(|one| scope.spawn(move || work(one))).collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect()
    })
}

pub(super) fn all(
    plan: &FabricPlan,
    ranks: &Ranks,
    gpus: &mut [Gpu],
    report: &mut FabricReport,
    publish: &mut dyn FnMut(&mut FabricReport),
) -> Result<(), DeviceError> {
    for (rank, gpu) in gpus.iter_mut().enumerate() {
        gpu.fill(|at| value(rank, at).to_bits())?;
    }
    let smaller = |bytes: &u64| Some(bytes / STEP).filter(|bytes| *bytes >= SMALLEST);
    let sizes = || std::iter::successors(Some(plan.largest), smaller);
    let calls = CollectiveKind::ALL.into_iter().flat_map(|kind| sizes().map(move |it| (kind, it)));
    let calls: Vec<(CollectiveKind, u64)> = calls.collect();
    for (done, (kind, bytes)) in calls.iter().copied().enumerate() {
        let rest = || {
            let (left, all) = (calls.len() - done, calls.len());
            format!("{left} of {all} collectives, from {} of {bytes} bytes on", kind.as_str())
        };
        if plan.is_late(report, rest) {
            break;
        }
        report.collectives.push(one(kind, bytes, ranks, gpus)?);
        publish(report);
    }
    Ok(())
}

/// One collective of one size on all ranks.
fn one(
    kind: CollectiveKind,
    bytes: u64,
    ranks: &Ranks,
    gpus: &mut [Gpu],
) -> Result<Collective, DeviceError> {
    let count = gpus.len();
    // The size has this many values for each rank.
    let row = bytes as usize / size_of::<f32>() / count;
    let whole = if kind == CollectiveKind::AllReduce {
        bytes as usize / size_of::<f32>()
    } else {
        row * count
    };
    let (bytes, runs) = ((whole * size_of::<f32>()) as u64, runs(bytes));
    let times = of_all(ranks.with(gpus), |(rank, by, gpu)| {
        let gets = if kind == CollectiveKind::ReduceScatter { row } else { whole };
        let got = (gets * size_of::<f32>()) as u64;
        gpu.poison(got)?;
        let call = || call(kind, by, gpu, row, whole);
        let stretches = gpu.stretches(runs, call)?;
        gpu.cuda.stream().synchronize()?;
        let wrong = gpu.wrong(got, |at| wanted(kind, rank, count, row, at).to_bits())?;
        Ok((millis(&stretches)?, wrong))
    })?;
    // An interval's duration is that of the slowest rank.
    let slowest = |at: usize| times.iter().map(|(millis, _)| millis[at]).fold(0.0, f64::max);
    let stretches = times.first().map_or(0, |(millis, _)| millis.len());
    let each = median((0..stretches).map(slowest).collect()) / runs as f64;
    let wrong = times.iter().map(|(_, wrong)| wrong).sum();
    let believed = |value: f64| (wrong == 0).then_some(value);
    let rate = bytes as f64 / each / 1e6;
    Ok(Collective {
        kind,
        bytes,
        micros: believed(1e3 * each),
        algorithm_gbps: believed(rate),
        bus_gbps: believed(rate * kind.bus_factor(count)),
        wrong,
    })
}

fn call(
    kind: CollectiveKind,
    by: &Communicator,
    gpu: &Gpu,
    row: usize,
    whole: usize,
) -> Result<(), DeviceError> {
    let (buffers, stream): ([&Buffer; 2], &Stream) = ([&gpu.from, &gpu.to], gpu.cuda.stream());
    match kind {
        CollectiveKind::AllReduce => by.sum_into(buffers, whole, stream),
        CollectiveKind::AllGather => by.gather(buffers, row, stream),
        CollectiveKind::ReduceScatter => by.scatter_sums(buffers, row, stream),
        CollectiveKind::AllToAll => by.exchange(buffers, row, stream),
    }
}

/// The expected value at an index of a rank's destination.
fn wanted(kind: CollectiveKind, rank: usize, ranks: usize, row: usize, at: usize) -> f32 {
    match kind {
        CollectiveKind::AllReduce => sum(ranks, at),
        CollectiveKind::AllGather => value(at / row, at % row),
        CollectiveKind::ReduceScatter => sum(ranks, rank * row + at),
        CollectiveKind::AllToAll => value(at / row, rank * row + at % row),
    }
}
