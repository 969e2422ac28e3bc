//! Plans by what calls have in common: the second call of a kind is bound, chosen and planned by a look-up.

use super::plan::{Memory, Plan, Planned, Wanted};
use crate::OpError;
use crate::op::{Bound, Given, Key, Typed};
use device::Device;
use device::cuda::{Buffer, CudaError, Stream};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Plans that are kept. A prompt's attention has a plan for each length: beyond so many, all are forgotten.
const MOST: usize = 8192;

/// The plans of one device, and memory for one of them at a time, in the order of a stream.
#[derive(Debug, Default)]
pub struct Plans {
    /// Places in `plans`: a look-up that finds nothing must not keep the map borrowed.
    kept: HashMap<Box<[u64]>, usize, BuildHasherDefault<Words>>,
    plans: Vec<Arc<Plan>>,
    key: Key,
    scratch: Option<Arc<Buffer>>,
    zeros: Option<Arc<Buffer>>,
    made: u64,
}

impl Plans {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many plans were made, and not found.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// The plan of a call: kept from a like one, or made now by the variant that the op chooses.
    ///
    /// # Errors
    /// [`OpError`] naming what is wrong with the call, why no variant takes it, or what the driver refused.
    pub fn of<C: Typed>(&mut self, call: &C, device: &Device) -> Result<&Arc<Plan>, OpError> {
        self.find(&call.given(), device)
    }

    pub(crate) fn find<F: crate::Family>(
        &mut self,
        given: &Given<'_, F>,
        device: &Device,
    ) -> Result<&Arc<Plan>, OpError> {
        given.key(&mut self.key);
        if let Some(at) = self.kept.get(self.key.words()) {
            return Ok(&self.plans[*at]);
        }
        let plan = make(given, device)?;
        self.made += 1;
        if self.plans.len() >= MOST {
            self.kept.clear();
            self.plans.clear();
        }
        let at = self.plans.len();
        self.kept.insert(self.key.words().into(), at);
        self.plans.push(Arc::new(plan));
        Ok(&self.plans[at])
    }

    /// Plans a call and gives its launches to a stream.
    ///
    /// # Errors
    /// As [`Plans::of`].
    pub fn enqueue<C: Typed>(
        &mut self,
        call: &C,
        device: &Device,
        stream: &Stream,
    ) -> Result<(), OpError> {
        let given = call.given();
        let plan = Arc::clone(self.find(&given, device)?);
        let memory = self.memory(plan.wanted(), stream)?;
        plan.over(&given.inputs, &given.outputs, memory)?.enqueue(stream)
    }

    /// Plans a call whose launches are kept with their memory, to be recorded.
    ///
    /// # Errors
    /// As [`Plans::of`].
    pub fn keep<C: Typed>(
        &mut self,
        call: &C,
        device: &Device,
        stream: &Stream,
    ) -> Result<Planned, OpError> {
        let given = call.given();
        let plan = Arc::clone(self.find(&given, device)?);
        let memory = self.memory(plan.wanted(), stream)?;
        let now = plan.over(&given.inputs, &given.outputs, memory)?.now();
        let tensors = given.inputs.slots().iter().chain(given.outputs.iter());
        let tensors = tensors.filter_map(|(_, _, tensor)| tensor.buffer());
        let held = tensors.chain(memory.scratch).chain(memory.zeros).cloned().collect::<Vec<_>>();
        Ok(Planned::keep(plan, now, held))
    }

    /// Memory for one plan at a time: launches run in the order of the stream, so the next one may write over it.
    fn memory(&mut self, wanted: Wanted, stream: &Stream) -> Result<Memory<'_>, OpError> {
        let named = |error| OpError::Cuda { op: "plan", error };
        let short = |buffer: &Option<Arc<Buffer>>, wanted: usize| {
            wanted > 0 && buffer.as_ref().is_none_or(|buffer| buffer.bytes() < wanted)
        };
        if short(&self.scratch, wanted.scratch) {
            // The old one first: its memory may serve again.
            self.scratch = None;
            self.scratch = Some(Arc::new(stream.allocate(wanted.scratch).map_err(named)?));
        }
        if short(&self.zeros, wanted.zeros) {
            let zeros = stream.allocate(wanted.zeros).map_err(named)?;
            stream.fill32(&zeros, 0).map_err(named)?;
            self.zeros = Some(Arc::new(zeros));
        }
        Ok(Memory { scratch: self.scratch.as_ref(), zeros: self.zeros.as_ref() })
    }
}

fn make<F: crate::Family>(given: &Given<'_, F>, device: &Device) -> Result<Plan, OpError> {
    let bound = Bound::of(given)?;
    // What is uploaded for one call would be launched again for another one's values.
    let on_host = given.inputs.slots().iter().find(|(_, _, tensor)| tensor.buffer().is_none());
    if let Some((_, spec, _)) = on_host {
        let what = format!("tensor `{}` lies in host memory", spec.name);
        return Err(OpError::Cuda { op: F::SPEC.name, error: CudaError::Refused { what } });
    }
    let variant = bound.chosen(device)?;
    bound.plan(device, variant, &given.outputs)
}

/// A hash of whole words: a look-up hashes about a hundred of them, and nobody chooses keys to collide.
#[derive(Debug, Default)]
pub struct Words(u64);

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        for word in bytes.chunks(8) {
            let mut whole = [0; 8];
            whole[..word.len()].copy_from_slice(word);
            self.write_u64(u64::from_ne_bytes(whole));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        // The table takes the upper bits and the lower ones.
        self.0 ^ (self.0 >> 29)
    }
}
