//! Combines stages into launches and assigns the packet buffers between them.

mod launch;
mod links;

use super::record::{self, Linear, Record};
use super::requirements::KernelRequirements;
use super::{NAME, PersistentStage};
use crate::{BUNDLE, Plan, PlannedLaunches, Planner, arguments, gpu, int};
use device::Device;
use device::cuda::{Args, Buffer, DeviceError, GpuArch, Stream};
use launch::Launched;
use ops::OpError;
use std::sync::Arc;

/// Packet buffers, which stages use in turn. A block that writes a stage's packets has read those of the previous
/// stage, whose producers have read theirs, so three would suffice.
const PLACES: usize = 4;
/// Size of a packet, bytes: 32 bits of data and a sequence number.
const PACKET: usize = 8;

arguments! {
    /// The stages, or a single projection in the kernel's own parameters.
    pub(crate) PersistentChain: persistent_chain { phases: Nullable, count: i32, launches: Nullable, of: (Linear) }
}

/// Combines stages, in order, into as few launches as possible. Within a launch each stage reads the outputs of the
/// previous one and waits only for these; a stage that reads anything else starts another launch.
///
/// The launches are for one stream at a time. No other launch of this kind may run concurrently on the GPU, since
/// blocks wait for each other.
///
/// # Errors
/// [`OpError::Device`] if no kernel runs all stages, the kernel cannot be loaded or does not fit on an SM, or memory
/// is exhausted.
pub fn chain(
    device: &Device,
    stream: &Stream,
    stages: &[PersistentStage],
) -> Result<PlannedLaunches, OpError> {
    planned(device, stream, stages).map_err(|error| OpError::Device { op: NAME, error })
}

fn planned(
    device: &Device,
    stream: &Stream,
    stages: &[PersistentStage],
) -> Result<PlannedLaunches, DeviceError> {
    let refused = |what: &str| DeviceError::Refused { what: what.to_owned() };
    let cuda = gpu(device)?;
    let here = cuda.capabilities();
    let requirements = KernelRequirements::of_all(stages.iter().map(|stage| stage.requirements));
    let weights = requirements
        .ok_or_else(|| refused("stages of one fused sequence need different kernels"))?
        .kernel();
    let kernel = cuda.kernel(&weights.source(GpuArch::of(here.compute)), &BUNDLE)?;
    let launch = weights.launch(here);
    // A block that waits for one that is not resident would never end.
    if kernel.blocks_per_multiprocessor(launch.block[0], launch.shared_bytes)? == 0 {
        return Err(refused("the persistent kernel does not fit on an SM"));
    }
    let place = place_bytes(stages);
    let packets = Arc::new(stream.allocate(PLACES * place)?);
    // Number of ended blocks, from which launches continue the sequence numbers of packets.
    let launches = Arc::new(stream.allocate(size_of::<u64>())?);
    stream.fill32(&packets, 0)?;
    stream.fill32(&launches, 0)?;
    let all = linked(stages, |stage| packets.address() + (stage % PLACES * place) as u64);
    let records = Arc::new(stream.upload(&bytes_of(&all))?);
    let (mut planned, mut first) = (Vec::new(), 0);
    for records_of_launch in &all {
        let count = records_of_launch.len();
        let of = records.part(first * record::BYTES, count * record::BYTES)?;
        first += count;
        planned.push((kernel.clone(), launch, Args::from(launched(&of, count, &launches)?)));
    }
    let held = stages.iter().flat_map(|stage| stage.held.iter().cloned());
    Ok(PlannedLaunches::fixed(
        Plan::of_launches(NAME, planned),
        held.chain([packets, launches, records]),
    ))
}

/// Adds the launch of a single stage, for verification. Its records have the tensors' current addresses, so a
/// relocatable plan cannot contain it.
pub(crate) fn plan_alone(
    stage: &PersistentStage,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let weights = stage.requirements.kernel();
    let kernel = planner.kernel(&weights.source(planner.arch()))?;
    let place = place_bytes(std::slice::from_ref(stage));
    let packets = planner.persistent_memory(&vec![0; PLACES * place])?;
    let launches = planner.persistent_memory(&[0; size_of::<u64>()])?;
    let at = |stage: usize| packets.address() + (stage % PLACES * place) as u64;
    let all = linked(std::slice::from_ref(stage), at);
    let records = planner.persistent_memory(&bytes_of(&all))?;
    let args = launched(&records, stage.records.len(), &launches)?;
    planner.launch(kernel, weights.launch(planner.here()), args);
    Ok(())
}

/// The arguments of a launch of `count` stages.
fn launched<'a>(
    stages: &'a Buffer,
    count: usize,
    launches: &'a Buffer,
) -> Result<PersistentChain<'a>, DeviceError> {
    let (stages, launches, of) = (Some(stages), Some(launches), Linear::default());
    Ok(PersistentChain { phases: stages, count: int(count)?, launches, of })
}

/// Size of a packet buffer for any of these stages, bytes.
fn place_bytes(stages: &[PersistentStage]) -> usize {
    let records = stages.iter().flat_map(|stage| &stage.records);
    records.map(Record::packet_bytes).max().unwrap_or(0).next_multiple_of(256).max(256)
}

fn bytes_of(launches: &[Vec<Record>]) -> Vec<u8> {
    launches.iter().flatten().flat_map(|record| record.bytes()).copied().collect()
}

/// The records of each launch; `packets` returns the address of a stage's packet buffer by its index.
fn linked(stages: &[PersistentStage], packets: impl Fn(usize) -> u64) -> Vec<Vec<Record>> {
    let mut launches: Vec<Launched> = Vec::new();
    for PersistentStage { records, .. } in stages {
        let count = launches.last().map_or(0, Launched::count);
        let joins =
            |last: &mut Launched| last.fuse_router(records) || last.takes(records, &packets);
        if !launches.last_mut().is_some_and(joins) {
            launches.push(Launched::new(records, count, &packets));
        }
    }
    launches.into_iter().map(|launch| launch.records).collect()
}

#[cfg(test)]
mod tests;
