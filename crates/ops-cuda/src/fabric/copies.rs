//! Copies between each pair of GPUs: the sender's DMA engine writes to the receiver's memory, as in most programs.

use super::values::word;
use super::{FabricPlan, Gpu, left, median, millis, runs};
use device::DeviceError;
use facts::{FabricReport, PeerCopy};

/// Repetitions of the small copy.
const SMALL_RUNS: usize = 200;

pub(super) fn all(
    plan: &FabricPlan,
    gpus: &mut [Gpu],
    report: &mut FabricReport,
    publish: &mut dyn FnMut(&mut FabricReport),
) -> Result<(), DeviceError> {
    for gpu in gpus.iter_mut() {
        let index = gpu.index;
        gpu.fill(|at| word(index, at))?;
    }
    let pairs =
        || (0..gpus.len()).flat_map(|one| (one + 1..gpus.len()).map(move |other| [one, other]));
    let pairs: Vec<[usize; 2]> = pairs().collect();
    for (done, pair) in pairs.iter().enumerate() {
        if plan.is_late(report, || format!("copies of {} pairs of GPUs", pairs.len() - done)) {
            break;
        }
        let Ok([one, other]) = gpus.get_disjoint_mut(*pair) else { continue };
        of_pair(plan.largest, one, other, report)?;
        publish(report);
    }
    Ok(())
}

/// Both directions, one after the other and at once.
fn of_pair(
    bytes: u64,
    one: &mut Gpu,
    other: &mut Gpu,
    report: &mut FabricReport,
) -> Result<(), DeviceError> {
    let mut ways = [way(bytes, one, other)?, way(bytes, other, one)?];
    if ways.iter().all(|way| way.wrong == 0) {
        let (millis, wrong) = at_once(bytes, one, other)?;
        let rate = 2.0 * bytes as f64 / millis / 1e6;
        for (way, wrong) in ways.iter_mut().zip(wrong) {
            way.wrong = wrong;
            way.both_gbps = (wrong == 0).then_some(rate);
        }
    }
    for way in &mut ways {
        if way.wrong > 0 {
            // If one measurement has wrong words, none is accepted.
            (way.gbps, way.both_gbps, way.micros) = (None, None, None);
        }
    }
    if ways.iter().any(|way| !way.direct) {
        let pair = format!("direct copies between GPU {} and GPU {}", one.index, other.index);
        left(report, pair, "no peer access: copies go through the host");
    }
    report.copies.extend(ways);
    Ok(())
}

fn way(bytes: u64, from: &Gpu, to: &mut Gpu) -> Result<PeerCopy, DeviceError> {
    let direct = from.cuda.can_access_peer(&to.cuda)?;
    if direct {
        from.cuda.enable_peer_access(&to.cuda)?;
    }
    let (large, wrong) = timed(bytes, runs(bytes), from, to)?;
    let (small, wrong_small) = timed(PeerCopy::SMALL_BYTES, SMALL_RUNS, from, to)?;
    Ok(PeerCopy {
        from: from.index,
        to: to.index,
        direct,
        bytes,
        gbps: Some(bytes as f64 / large / 1e6),
        both_gbps: None,
        micros: Some(1e3 * small),
        wrong: wrong + wrong_small,
        links: None,
    })
}

/// Milliseconds of a copy, and wrong words after the last one.
fn timed(bytes: u64, runs: usize, from: &Gpu, to: &mut Gpu) -> Result<(f64, u64), DeviceError> {
    to.poison(bytes)?;
    let copy = || from.cuda.stream().copy_to_peer(&from.from, &to.to, bytes as usize);
    let stretches = from.stretches(runs, copy)?;
    from.cuda.stream().synchronize()?;
    let each = median(millis(&stretches)?) / runs as f64;
    Ok((each, to.wrong(bytes, |at| word(from.index, at))?))
}

/// Milliseconds of the slower direction while both are copied, and the wrong words of each.
fn at_once(bytes: u64, one: &mut Gpu, other: &mut Gpu) -> Result<(f64, [u64; 2]), DeviceError> {
    one.poison(bytes)?;
    other.poison(bytes)?;
    let runs = runs(bytes);
    let copy =
        |from: &Gpu, to: &Gpu| from.cuda.stream().copy_to_peer(&from.from, &to.to, bytes as usize);
    // Both streams are filled before either is awaited; the head start of one is small compared with its total.
    let there = one.stretches(runs, || copy(one, other))?;
    let back = other.stretches(runs, || copy(other, one))?;
    let mut slower: f64 = 0.0;
    for stretches in [&there, &back] {
        slower = slower.max(median(millis(stretches)?) / runs as f64);
    }
    for gpu in [&one, &other] {
        gpu.cuda.stream().synchronize()?;
    }
    let (first, second) = (one.index, other.index);
    let wrong =
        [other.wrong(bytes, |at| word(first, at))?, one.wrong(bytes, |at| word(second, at))?];
    Ok((slower, wrong))
}
