//! Phases into launches: which phase takes what the one ahead of it made, and where that goes.

mod launch;
mod links;

use super::record::{self, Linear, Record};
use super::wish::Wish;
use super::{NAME, Phase};
use crate::{BUNDLE, Plan, Planned, Planner, arguments, gpu, int};
use device::Device;
use device::cuda::{Args, Buffer, DeviceError, GpuArch, Stream};
use launch::Launched;
use ops::OpError;
use std::sync::Arc;

/// Places that phases' packets lie in turn. A block that makes a phase's has what it needs of the phase ahead, whose makers have all
/// taken theirs: three would do.
const PLACES: usize = 4;
/// A packet, bytes: 32 bits of content and a number.
const PACKET: usize = 8;

arguments! {
    /// Phases, or the one product that its own parameters tell of.
    pub(crate) PersistentChain: persistent_chain { phases: Nullable, count: i32, launches: Nullable, of: (Linear) }
}

/// Puts phases, in their order, into as few launches as can be. Within a launch each phase takes what the one ahead of it made, and waits
/// for that alone; one that reads anything else begins another launch.
///
/// The launches are for one stream at a time, and no others like them may run beside them on the GPU: each of their blocks waits for
/// others.
///
/// # Errors
/// [`OpError::Device`] when phases do not go with each other, the kernel cannot be had or has no room here, or there is no memory.
pub fn chain(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Planned, OpError> {
    planned(device, stream, phases).map_err(|error| OpError::Device { op: NAME, error })
}

fn planned(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Planned, DeviceError> {
    let refused = |what: &str| DeviceError::Refused { what: what.to_owned() };
    let cuda = gpu(device)?;
    let here = cuda.capabilities();
    let wish = Wish::of_all(phases.iter().map(|phase| phase.wish));
    let weights =
        wish.ok_or_else(|| refused("phases of one chain want different kernels"))?.kernel();
    let kernel = cuda.kernel(&weights.source(GpuArch::of(here.compute)), &BUNDLE)?;
    let launch = weights.launch(here);
    // A block that waits for one that has no place would wait for ever.
    if kernel.blocks_per_multiprocessor(launch.block[0], launch.shared_bytes)? == 0 {
        return Err(refused("a multiprocessor has no room for a block that stays"));
    }
    let place = place_bytes(phases);
    let packets = Arc::new(stream.allocate(PLACES * place)?);
    // How often blocks have ended: numbers of packets go on from there.
    let launches = Arc::new(stream.allocate(size_of::<u64>())?);
    stream.fill32(&packets, 0)?;
    stream.fill32(&launches, 0)?;
    let all = linked(phases, |phase| packets.address() + (phase % PLACES * place) as u64);
    let records = Arc::new(stream.upload(&bytes_of(&all))?);
    let (mut planned, mut first) = (Vec::new(), 0);
    for records_of_launch in &all {
        let count = records_of_launch.len();
        let of = records.part(first * record::BYTES, count * record::BYTES)?;
        first += count;
        planned.push((kernel.clone(), launch, Args::from(launched(&of, count, &launches)?)));
    }
    let held = phases.iter().flat_map(|phase| phase.held.iter().cloned());
    Ok(Planned::fixed(Plan::of_launches(NAME, planned), held.chain([packets, launches, records])))
}

/// Adds the launch of a phase by itself, which is how it is verified. Its records point to where tensors lie now, so plans that move have none.
pub(crate) fn plan_alone(phase: &Phase, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let weights = phase.wish.kernel();
    let kernel = planner.kernel(&weights.source(planner.arch()))?;
    let place = place_bytes(std::slice::from_ref(phase));
    let packets = planner.kept(&vec![0; PLACES * place])?;
    let launches = planner.kept(&[0; size_of::<u64>()])?;
    let at = |phase: usize| packets.address() + (phase % PLACES * place) as u64;
    let all = linked(std::slice::from_ref(phase), at);
    let records = planner.kept(&bytes_of(&all))?;
    let args = launched(&records, phase.records.len(), &launches)?;
    planner.launch(kernel, weights.launch(planner.here()), args);
    Ok(())
}

/// A launch of so many phases.
fn launched<'a>(
    phases: &'a Buffer,
    count: usize,
    launches: &'a Buffer,
) -> Result<PersistentChain<'a>, DeviceError> {
    let (phases, launches, of) = (Some(phases), Some(launches), Linear::default());
    Ok(PersistentChain { phases, count: int(count)?, launches, of })
}

/// Room for the packets of any of these phases.
fn place_bytes(phases: &[Phase]) -> usize {
    let records = phases.iter().flat_map(|phase| &phase.records);
    records.map(Record::packet_bytes).max().unwrap_or(0).next_multiple_of(256).max(256)
}

fn bytes_of(launches: &[Vec<Record>]) -> Vec<u8> {
    launches.iter().flatten().flat_map(|record| record.bytes()).copied().collect()
}

/// The records of each launch, with packets between neighbours, those of phase number so and so at an address.
fn linked(phases: &[Phase], packets: impl Fn(usize) -> u64) -> Vec<Vec<Record>> {
    let mut launches: Vec<Launched> = Vec::new();
    for Phase { records, .. } in phases {
        let count = launches.last().map_or(0, Launched::count);
        let joins = |last: &mut Launched| last.takes_in(records) || last.takes(records, &packets);
        if !launches.last_mut().is_some_and(joins) {
            launches.push(Launched::new(records, count, &packets));
        }
    }
    launches.into_iter().map(|launch| launch.records).collect()
}

#[cfg(test)]
mod tests;
