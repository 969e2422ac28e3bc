//! Plans by what calls have in common: the second call of a kind is bound, chosen and planned by a look-up.

use super::plan::{Lender, Memory, Plan, Planned, Wanted};
use super::planner::{Pieces, Planner};
use super::{gpu, op};
use device::Device;
use device::cuda::{Buffer, DeviceError, Stream};
use ops::{Family, Given, Inputs, Key, Op, OpError, Options, Problem, Slots, Typed, choose};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Plans of a generation. A prompt's attention has a plan for each length, so that they have to be bounded.
const MOST: usize = 4096;

/// The plans of one device, and memory for one of them at a time, in the order of a stream.
#[derive(Debug, Default)]
pub struct Plans {
    kept: Generations<Arc<Plan>>,
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

    fn find<F: Family>(
        &mut self,
        given: &Given<'_, F>,
        device: &Device,
    ) -> Result<&Arc<Plan>, OpError> {
        self.key.set(F::SPEC, &given.options, [given.inputs.slots(), &given.outputs]);
        self.found(|| {
            let problem = F::parse(given.inputs, &given.options)?;
            plan(&problem, given.inputs, &given.outputs, device)
        })
    }

    /// The plan of the key that was set last.
    fn found(
        &mut self,
        make: impl FnOnce() -> Result<Plan, OpError>,
    ) -> Result<&Arc<Plan>, OpError> {
        let made = &mut self.made;
        self.kept.find(self.key.words(), MOST, || {
            let plan = make()?;
            *made += 1;
            Ok(Arc::new(plan))
        })
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

    /// Plans a call whose launches are kept with their memory, to be recorded. Transient tensors are not held: a step writes to them
    /// before it reads, in the order of the stream, and so do the other steps that have the same memory. Where the caller reads one
    /// after the step, it has to hold it.
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
        let passing = tensors.chain(memory.scratch).filter(|buffer| !buffer.is_transient());
        let held = passing.chain(memory.zeros).cloned().collect::<Vec<_>>();
        Ok(Planned::keep(plan, now, held))
    }

    /// Memory for one plan at a time: launches run in the order of the stream, so the next one may write over it.
    fn memory(&mut self, wanted: Wanted, stream: &Stream) -> Result<Memory<'_>, OpError> {
        let named = |error| OpError::Device { op: "plan", error };
        let short = |buffer: &Option<Arc<Buffer>>, wanted: usize| {
            wanted > 0 && buffer.as_ref().is_none_or(|buffer| buffer.bytes() < wanted)
        };
        if short(&self.scratch, wanted.scratch) {
            // The old one first: its memory may serve again.
            self.scratch = None;
            self.scratch =
                Some(Arc::new(stream.allocate_transient(wanted.scratch).map_err(named)?));
        }
        if short(&self.zeros, wanted.zeros) {
            let zeros = stream.allocate(wanted.zeros).map_err(named)?;
            stream.fill32(&zeros, 0).map_err(named)?;
            self.zeros = Some(Arc::new(zeros));
        }
        Ok(Memory { scratch: self.scratch.as_ref(), zeros: self.zeros.as_ref() })
    }
}

/// Values by key, in two generations: when the younger one is full, the older one is dropped, apart from what was used since.
#[derive(Debug)]
struct Generations<V> {
    young: Generation<V>,
    old: Generation<V>,
}

#[derive(Debug)]
struct Generation<V> {
    /// Places in `values`: a look-up that finds nothing must not keep the map borrowed.
    places: HashMap<Box<[u64]>, usize, BuildHasherDefault<Words>>,
    values: Vec<V>,
}

impl<V> Default for Generation<V> {
    fn default() -> Self {
        Self { places: HashMap::default(), values: Vec::new() }
    }
}

impl<V> Default for Generations<V> {
    fn default() -> Self {
        Self { young: Generation::default(), old: Generation::default() }
    }
}

impl<V: Clone> Generations<V> {
    /// The value of a key, made where it is not there; a generation has at most so many.
    fn find<E>(
        &mut self,
        key: &[u64],
        most: usize,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&V, E> {
        if let Some(at) = self.young.places.get(key) {
            return Ok(&self.young.values[*at]);
        }
        let value = match self.old.places.get(key) {
            Some(at) => self.old.values[*at].clone(),
            None => make()?,
        };
        if self.young.values.len() >= most {
            self.old = std::mem::take(&mut self.young);
        }
        let Generation { places, values } = &mut self.young;
        let at = values.len();
        places.insert(key.into(), at);
        values.push(value);
        Ok(&values[at])
    }
}

/// Where a call by places runs ([`enqueue`]), and what it runs with.
pub struct Place<'a> {
    /// The GPU.
    pub device: &'a Device,
    /// Plans that were made on it.
    pub plans: &'a mut Plans,
    /// The stream that the launches go to.
    pub stream: &'a Stream,
    /// Gives memory, where a plan wants any.
    pub memory: Lender<'a>,
}

/// Gives the launches of a call, whose inputs and outputs lie at their places in the op's table, to a stream of the GPU that they lie
/// on. The plan can be launched again over tensors like these ([`Plan::at_addresses`]).
///
/// # Errors
/// [`OpError`] naming what is wrong with the call, why no variant takes it, or what the driver refused.
pub fn enqueue(
    op: &dyn Op,
    options: &dyn Options,
    [inputs, outputs]: [Slots<'_>; 2],
    place: Place<'_>,
) -> Result<Arc<Plan>, OpError> {
    place.plans.key.set(op.spec(), options, [&inputs, &outputs]);
    let inputs_of_op = Inputs::new(op.spec().name, inputs);
    let found = place.plans.found(|| {
        let call = op.call(inputs, options)?;
        plan(call.problem(), inputs_of_op, &outputs, place.device)
    });
    let plan = Arc::clone(found?);
    let lent = plan.wanted().lent(place.memory)?;
    plan.over(&inputs_of_op, &outputs, Memory::from(&lent))?.enqueue(place.stream)?;
    Ok(plan)
}

/// Plans a problem, by the variant that selection takes, over tensors on a GPU.
fn plan(
    problem: &dyn Problem,
    inputs: Inputs<'_>,
    outputs: &Slots<'_>,
    device: &Device,
) -> Result<Plan, OpError> {
    let name = inputs.op();
    let named = |error| OpError::Device { op: name, error };
    // What is uploaded for one call would be launched again for another one's values.
    let on_host = inputs.slots().iter().find(|(_, _, tensor)| tensor.buffer().is_none());
    if let Some((_, spec, _)) = on_host {
        let what = format!("tensor `{}` lies in host memory", spec.name);
        return Err(named(DeviceError::Refused { what }));
    }
    let chosen = choose(name, problem, device, None)?;
    let (Ok(cuda), Some(table)) = (gpu(device), op(name)) else {
        let what = "only calls on a GPU are planned".to_owned();
        return Err(named(DeviceError::Refused { what }));
    };
    let kernel = format!("{name}.{}", chosen.name());
    let wanted = problem.outputs();
    let planner = Planner::new(cuda, &kernel, Pieces::Promised, inputs, wanted, outputs);
    let planned = planner.and_then(|mut planner| {
        table.plan(chosen.variant, problem, &mut planner)?;
        Ok(planner.into_plan())
    });
    planned.map_err(named)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_use_survive_and_the_others_are_bounded() {
        let mut kept = Generations::<u64>::default();
        let mut made = 0;
        for round in 0..1000 {
            // One key is looked up each time, the others once.
            for key in [7, 1000 + round] {
                let found = kept.find(&[key], 16, || {
                    made += 1;
                    Ok::<_, ()>(key)
                });
                assert_eq!(found, Ok(&key));
            }
            assert!(kept.young.values.len() <= 16 && kept.old.values.len() <= 16);
        }
        assert_eq!(made, 1001);
        assert_eq!(kept.find(&[5], 16, || Err("no")), Err("no"));
        assert_eq!(kept.find(&[5], 16, || Ok::<_, ()>(5)), Ok(&5), "a failure is not kept");
    }
}
