//! Copies states between a pool, which has one slot per sequence, and a call's separate memory, in which each part of
//! the state has the data of all sequences together. One launch gathers them; one per run of consecutive slots scatters
//! them.

use super::pass::device_error;
use super::run::Run;
use super::states::Part;
use device::cuda::{Buffer, DeviceError, Stream};
use ops::{OpError, Tensor};
use ops_cuda::decoder;
use std::ops::Range;
use std::sync::Arc;

/// Maximum values that a thread block copies.
const MAX_VALUES: usize = 4096;

/// The copy lists for the sequences of one pass.
#[derive(Debug)]
pub(super) struct CopyLists {
    plan: Pieces,
    /// Source piece in the pool for each piece of the separate memory.
    gather: Arc<Buffer>,
    /// Source piece in the separate memory for each piece of the slots in `runs`.
    scatter: Buffer,
}

/// States cut into pieces of equal length; each part is a whole number of pieces.
#[derive(Debug, PartialEq, Eq)]
struct Pieces {
    /// Values per piece.
    values: usize,
    /// Pieces per state.
    of_state: usize,
    /// Piece range of each part.
    parts: Vec<Range<usize>>,
    sequences: usize,
    gather: Vec<i32>,
    scatter: Vec<i32>,
    /// Runs of consecutive slots: the first slot and the count.
    runs: Vec<(usize, usize)>,
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Pieces {
    /// For states `[rows, width]` of sequences in these slots.
    fn new([rows, width]: [usize; 2], parts: &[Part], slots: &[usize]) -> Self {
        let ends = parts.iter().flat_map(|(first, count)| [first * width, count * width]);
        let mut values = ends.fold(rows * width, greatest_common_divisor);
        while values > MAX_VALUES && values.is_multiple_of(8) {
            values /= 2;
        }
        let pieces = |rows: usize| rows * width / values;
        let parts: Vec<Range<usize>> =
            parts.iter().map(|(first, count)| pieces(*first)..pieces(first + count)).collect();
        let (of_state, sequences) = (pieces(rows), slots.len());
        let own = |sequence: usize, part: &Range<usize>, piece: usize| {
            sequences * part.start + sequence * part.len() + piece - part.start
        };
        let mut gather = vec![0; sequences * of_state];
        for (sequence, slot) in slots.iter().enumerate() {
            for part in &parts {
                for piece in part.clone() {
                    gather[own(sequence, part, piece)] = (slot * of_state + piece) as i32;
                }
            }
        }
        let mut order: Vec<usize> = (0..sequences).collect();
        order.sort_by_key(|sequence| slots[*sequence]);
        let (mut scatter, mut runs) = (Vec::new(), Vec::<(usize, usize)>::new());
        for sequence in order {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == slots[sequence] => *count += 1,
                _ => runs.push((slots[sequence], 1)),
            }
            for part in &parts {
                scatter.extend(part.clone().map(|piece| own(sequence, part, piece) as i32));
            }
        }
        Self { values, of_state, parts, sequences, gather, scatter, runs }
    }
}

impl CopyLists {
    /// For the states of a pool `[slots, rows, ..]`.
    pub(super) fn new(
        pool: &Tensor,
        parts: &[Part],
        slots: &[usize],
        stream: &Stream,
    ) -> Result<Self, OpError> {
        let rows = pool.shape()[1];
        let plan = Pieces::new([rows, pool.shape()[2..].iter().product()], parts, slots);
        if !plan.values.is_multiple_of(4) {
            let what = format!("states are moved by 4 values, these by {}", plan.values);
            return Err(device_error(DeviceError::Refused { what }));
        }
        let upload = |list: &[i32]| {
            let list = Tensor::new(&[list.len()], list.to_vec());
            stream.upload_transient(list.bytes()).map_err(device_error)
        };
        Ok(Self { gather: Arc::new(upload(&plan.gather)?), scatter: upload(&plan.scatter)?, plan })
    }

    /// Shape of the separate memory.
    pub(super) fn shape(&self) -> [usize; 2] {
        [self.plan.sequences * self.plan.of_state, self.plan.values]
    }

    /// Part `index` of the separate memory, for all sequences.
    pub(super) fn part(&self, own: &Tensor, index: usize) -> Result<Tensor, OpError> {
        let part = &self.plan.parts[index];
        own.rows(self.plan.sequences * part.start, self.plan.sequences * part.len())
    }

    /// Plans the gather from the pool.
    pub(super) fn gather(&self, run: &Run<'_>, pool: &Tensor, own: &Tensor) -> Result<(), OpError> {
        let [count, values] = self.shape();
        let buffers = [pool.on()?, &self.gather, own.on()?];
        run.push(decoder::take(run.device, buffers, count, values)?)
    }

    /// Plans the scatter back to the pool.
    pub(super) fn scatter(
        &self,
        run: &Run<'_>,
        own: &Tensor,
        pool: &Tensor,
    ) -> Result<(), OpError> {
        let Pieces { values, of_state, .. } = self.plan;
        let mut done = 0;
        for (slot, slots) in &self.plan.runs {
            let count = slots * of_state;
            let pieces = Arc::new(self.scatter.part(4 * done, 4 * count).map_err(device_error)?);
            let to = pool.rows(*slot, *slots)?;
            let buffers = [own.on()?, &pieces, to.on()?];
            run.push(decoder::take(run.device, buffers, count, values)?)?;
            done += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies states by the lists, as the kernel does.
    fn check(state: [usize; 2], parts: &[Part], slots: &[usize], runs: &[(usize, usize)]) {
        let pieces = Pieces::new(state, parts, slots);
        assert_eq!(pieces.runs, runs, "{slots:?}");
        let (length, values) = (state[0] * state[1], pieces.values);
        assert_eq!(pieces.of_state * values, length);
        let pool: Vec<usize> = (0..10 * length).collect();
        let take = |from: &[usize], rows: &[i32]| -> Vec<usize> {
            let row = |row: &i32| from[*row as usize * values..][..values].to_vec();
            rows.iter().flat_map(row).collect()
        };
        let own = take(&pool, &pieces.gather);
        // Each part has the states of all sequences, concatenated.
        let want = parts.iter().flat_map(|(first, count)| {
            let of = move |slot: &usize| {
                let from = slot * length + first * state[1];
                from..from + count * state[1]
            };
            slots.iter().flat_map(of)
        });
        assert!(own.iter().copied().eq(want), "{state:?} {parts:?} {slots:?}");
        let back = take(&own, &pieces.scatter);
        let slots = runs.iter().flat_map(|(first, count)| *first..first + count);
        let want = slots.flat_map(|slot| slot * length..(slot + 1) * length);
        assert!(back.iter().copied().eq(want), "{state:?} {parts:?}");
    }

    #[test]
    fn states_are_gathered_by_part_and_scattered_to_slots() {
        let parts = [(0, 4096), (4096, 128), (4224, 128)];
        check([4352, 3], &parts, &[0, 1, 2], &[(0, 3)]);
        check([4352, 3], &parts, &[7, 0, 3, 1], &[(0, 2), (3, 1), (7, 1)]);
        check([64, 64 * 128], &[(0, 64)], &[5, 4], &[(4, 2)]);
        // A thread block copies at most its limit.
        assert_eq!(Pieces::new([64, 64 * 128], &[(0, 64)], &[5, 4]).values, MAX_VALUES);
        assert_eq!(Pieces::new([4352, 3], &parts, &[1]).values, 384);
    }
}
