//! Phases into launches: which phase takes what the one ahead of it made, and where that goes.

use super::form::{ANY, MOST_PHASES};
use super::record::{self, Kind, Linear, Record};
use super::{NAME, Phase, STATE};
use crate::cuda::{BUNDLE, Plan, Planned, arguments, int};
use crate::{DType, OpError};
use device::Device;
use device::cuda::{Args, CudaError, GpuArch, Stream};
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

/// Columns that a phase makes: where they lie, which the first is, and how many there are.
struct Made {
    address: u64,
    first: usize,
    width: usize,
}

/// Columns that a phase reads.
struct Read {
    /// The field that has their address, and the one of their packets.
    field: &'static str,
    packets: &'static str,
    width: usize,
    /// Whether they are in f32.
    wide: bool,
}

/// A field of a record that packets go to, and the first of its columns.
type Taken = (&'static str, usize);

impl Record {
    /// Whether its columns are in f32.
    fn is_wide(&self) -> bool {
        self.kind == Kind::Linear && self.number("out_f32") != 0
    }

    fn makes(&self) -> Vec<Made> {
        if self.kind == Kind::Scan {
            let width = self.number("heads") * self.number("head_dim");
            return vec![Made { address: self.address("o"), first: 0, width }];
        }
        let starts = ["start1", "start2", "start3", "start4", "start5", "columns"];
        let mut first = 0;
        let each = ["o0", "o1", "o2", "o3", "o4", "o5"].into_iter().zip(starts).map(|(o, end)| {
            let (start, end) = (first, self.number(end));
            first = end;
            Made { address: self.address(o), first: start, width: end - start }
        });
        each.filter(|made| made.address != 0 && made.width > 0).collect()
    }

    /// What it reads of what other phases make.
    fn reads(&self) -> Vec<Read> {
        let read = |field, packets, width| Read { field, packets, width, wide: false };
        if self.kind == Kind::Linear {
            // See FORM in `phase.cuh`.
            let wide = self.number("form") & 2 != 0;
            return vec![Read { wide, ..read("x", "x_packets", self.number("inputs")) }];
        }
        let heads = self.number("heads");
        let rows = heads * self.number("head_dim");
        let of_groups = heads / self.number("heads_of_group").max(1) * STATE;
        let all = [
            read("x", "x_packets", rows),
            read("z", "z_packets", rows),
            read("dt", "dt_packets", heads),
            read("b", "b_packets", of_groups),
            read("c", "c_packets", of_groups),
        ];
        all.into_iter().filter(|read| self.address(read.field) != 0).collect()
    }

    /// Where what it reads stands among what the phase ahead makes; none where some of it does not, or not as packets are asked for.
    fn takes(&self, ahead: &Self) -> Option<Vec<Taken>> {
        let (wide, made) = (ahead.is_wide(), ahead.makes());
        let size = if wide { DType::F32.bytes() } else { DType::Bf16.bytes() };
        let place = |Read { field, packets, width, wide: in_f32 }: Read| {
            let address = self.address(field);
            let of = made.iter().find(|made| {
                let end = made.address + (made.width * size) as u64;
                (made.address..end).contains(&address) && address + (width * size) as u64 <= end
            })?;
            let column = of.first + (address - of.address) as usize / size;
            // Two packets are asked for at once; of step sizes one.
            let whole = if wide || field == "dt" { 2 } else { 4 };
            (in_f32 == wide && column.is_multiple_of(whole)).then_some((packets, column))
        };
        self.reads().into_iter().map(place).collect()
    }

    /// Packets of all its columns, bytes.
    fn packet_bytes(&self) -> usize {
        let columns = self.makes().iter().map(|made| made.first + made.width).max().unwrap_or(0);
        PACKET * if self.is_wide() { columns } else { columns.div_ceil(2) }
    }

    /// Whether a thread that adds to a residual has itself written it if one of these has. A residual that is not overwritten is another
    /// phase's.
    fn adds_to_its_own(&self, ahead: &[Self]) -> bool {
        let residual = if self.kind == Kind::Linear { self.address("residual") } else { 0 };
        let same = |of: &Self| {
            let columns = of.kind == Kind::Linear && of.number("columns") == self.number("columns");
            of.makes().iter().all(|made| {
                let within = made.address..made.address + (made.width * DType::F32.bytes()) as u64;
                !within.contains(&residual) || columns && made.address == residual
            })
        };
        residual == 0 || residual == self.address("o0") && ahead.iter().all(same)
    }
}

/// Puts phases, in their order, into as few launches as can be. Within a launch each phase takes what the one ahead of it made, and waits
/// for that alone; one that reads anything else begins another launch.
///
/// The launches are for one stream at a time, and no others like them may run beside them on the GPU: each of their blocks waits for
/// others.
///
/// # Errors
/// [`OpError::Cuda`] when phases do not go with each other, the kernel cannot be had or has no room here, or there is no memory.
pub fn chain(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Planned, OpError> {
    planned(device, stream, phases).map_err(|error| OpError::Cuda { op: NAME, error })
}

fn planned(device: &Device, stream: &Stream, phases: &[Phase]) -> Result<Planned, CudaError> {
    let refused = |what: &str| CudaError::Refused { what: what.to_owned() };
    let (Some(cuda), Some(here)) = (device.cuda(), &device.capabilities().cuda) else {
        return Err(refused("the device is no GPU"));
    };
    let weights = phases.iter().find_map(|phase| phase.weights).unwrap_or(ANY);
    if !phases.iter().all(|phase| phase.weights.is_none_or(|of| of == weights)) {
        return Err(refused("phases of one chain want different kernels"));
    }
    let kernel = cuda.kernel(&weights.source(GpuArch::of(here.compute)), &BUNDLE)?;
    let launch = weights.launch(here);
    // A block that waits for one that has no place would wait for ever.
    if kernel.blocks_per_multiprocessor(launch.block[0], launch.shared_bytes)? == 0 {
        return Err(refused("a multiprocessor has no room for a block that stays"));
    }
    let place = phases.iter().map(|phase| phase.record.packet_bytes()).max().unwrap_or(0);
    let place = place.next_multiple_of(256);
    let packets = Arc::new(stream.allocate(PLACES * place.max(1))?);
    // How often blocks have ended: numbers of packets go on from there.
    let launches = Arc::new(stream.allocate(size_of::<u64>())?);
    stream.fill32(&packets, 0)?;
    stream.fill32(&launches, 0)?;
    let all = linked(phases, |phase| packets.address() + (phase % PLACES * place) as u64);
    let bytes = all.iter().flatten().flat_map(|record| record.bytes()).copied();
    let records = Arc::new(stream.upload(&bytes.collect::<Vec<_>>())?);
    let (mut planned, mut first) = (Vec::new(), 0);
    for records_of_launch in &all {
        let count = records_of_launch.len();
        let of = records.part(first * record::BYTES, count * record::BYTES)?;
        first += count;
        let (phases, launches, of) = (Some(&of), Some(&*launches), Linear::default());
        let args = PersistentChain { phases, count: int(count)?, launches, of };
        planned.push((kernel.clone(), launch, Args::from(args)));
    }
    let held = phases.iter().flat_map(|phase| phase.held.iter().cloned());
    Ok(Planned::fixed(Plan::of_launches(NAME, planned), held.chain([packets, launches, records])))
}

/// The records of each launch, with packets between neighbours, those of phase number so and so at an address.
fn linked(phases: &[Phase], packets: impl Fn(usize) -> u64) -> Vec<Vec<Record>> {
    let mut launches: Vec<Vec<Record>> = Vec::new();
    for (at, phase) in phases.iter().enumerate() {
        let mut record = phase.record.clone();
        let last = launches.last_mut().filter(|last| last.len() < MOST_PHASES);
        let last = last.filter(|last| record.adds_to_its_own(last));
        let taken = last.and_then(|last| Some((record.takes(last.last()?)?, last)));
        let Some((taken, last)) = taken else {
            launches.push(vec![record]);
            continue;
        };
        if let Some(ahead) = last.last_mut() {
            let from = packets(at - 1);
            ahead.point("packets", from);
            let columns = if ahead.is_wide() { 1 } else { 2 };
            for (field, column) in taken {
                record.point(field, from + (PACKET * (column / columns)) as u64);
            }
        }
        last.push(record);
    }
    launches
}

#[cfg(test)]
mod tests;
