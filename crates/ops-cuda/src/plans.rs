//! Plans cached by call signature: a repeated call is bound, selected and planned by one look-up.

use super::plan::{Plan, PlannedLaunches, Workspace, WorkspaceAllocator, WorkspaceSize};
use super::planner::{Pieces, Planner};
use super::{gpu, op};
use device::Device;
use device::cuda::{Buffer, DeviceError, Stream};
use ops::{CallTensors, Family, Inputs, Key, Op, OpError, Options, Problem, Slots, Typed, choose};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

/// Most plans of a generation. Each prompt length has a separate attention plan, so the cache has to be bounded.
const MOST: usize = 4096;

/// The plans of one device, and memory for one of them at a time, in stream order.
#[derive(Debug, Default)]
pub struct Plans {
    kept: Generations<Arc<Plan>>,
    key: Key,
    scratch: Option<Arc<Buffer>>,
    zeros: Option<Arc<Buffer>>,
    made: u64,
}

impl Plans {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of plans that were not found and had to be made.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// The plan of a call: cached from an equivalent one, or made by the variant that the op selects.
    ///
    /// # Errors
    /// [`OpError`] naming what is wrong with the call, why no variant takes it, or what the driver refused.
    pub fn of<C: Typed>(&mut self, call: &C, device: &Device) -> Result<&Arc<Plan>, OpError> {
        self.find(&call.given(), device)
    }

    fn find<F: Family>(
        &mut self,
        given: &CallTensors<'_, F>,
        device: &Device,
    ) -> Result<&Arc<Plan>, OpError> {
        self.key.set(F::SPEC, &given.options, [given.inputs.slots(), &given.outputs]);
        self.found(|| {
            let problem = F::parse(given.inputs, &given.options)?;
            plan(&problem, given.inputs, &given.outputs, device)
        })
    }

    /// The plan of the current key.
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

    /// Plans a call and enqueues its launches on a stream.
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
        let workspace = self.workspace(plan.workspace_size(), stream)?;
        plan.over(&given.inputs, &given.outputs, workspace)?.enqueue(stream)
    }

    /// Plans a call whose launches are kept with their memory, to be recorded in a graph. Transient tensors are not
    /// held: a step writes them before it reads them, in stream order, and so do other steps with the same memory. A
    /// caller that reads one after the step has to hold it.
    ///
    /// # Errors
    /// As [`Plans::of`].
    pub fn keep<C: Typed>(
        &mut self,
        call: &C,
        device: &Device,
        stream: &Stream,
    ) -> Result<PlannedLaunches, OpError> {
        let given = call.given();
        let plan = Arc::clone(self.find(&given, device)?);
        let workspace = self.workspace(plan.workspace_size(), stream)?;
        let now = plan.over(&given.inputs, &given.outputs, workspace)?.now();
        let tensors = given.inputs.slots().iter().chain(given.outputs.iter());
        let tensors = tensors.filter_map(|(_, _, tensor)| tensor.buffer());
        let passing = tensors.chain(workspace.scratch).filter(|buffer| !buffer.is_transient());
        let held = passing.chain(workspace.zeros).cloned().collect::<Vec<_>>();
        Ok(PlannedLaunches::keep(plan, now, held))
    }

    /// Memory for one plan at a time: launches run in stream order, so the next one may overwrite it.
    fn workspace(
        &mut self,
        size: WorkspaceSize,
        stream: &Stream,
    ) -> Result<Workspace<'_>, OpError> {
        let named = |error| OpError::Device { op: "plan", error };
        let short = |buffer: &Option<Arc<Buffer>>, wanted: usize| {
            wanted > 0 && buffer.as_ref().is_none_or(|buffer| buffer.bytes() < wanted)
        };
        if short(&self.scratch, size.scratch) {
            // The old buffer is freed first, so that its memory can be reused.
            self.scratch = None;
            self.scratch = Some(Arc::new(stream.allocate_transient(size.scratch).map_err(named)?));
        }
        if short(&self.zeros, size.zeros) {
            let zeros = stream.allocate(size.zeros).map_err(named)?;
            stream.fill32(&zeros, 0).map_err(named)?;
            self.zeros = Some(Arc::new(zeros));
        }
        Ok(Workspace { scratch: self.scratch.as_ref(), zeros: self.zeros.as_ref() })
    }
}

/// Values by key, in two generations: when the younger one is full, the older one is dropped except for values that
/// were used since.
#[derive(Debug)]
struct Generations<V> {
    young: Generation<V>,
    old: Generation<V>,
}

#[derive(Debug)]
struct Generation<V> {
    /// Indices into `values`: a failed look-up must not borrow the map.
    places: HashMap<Box<[u64]>, usize, BuildHasherDefault<WordHasher>>,
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
    /// The value of a key, made by `make` if it is absent; a generation has at most `most` values.
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

/// The device, stream, plan cache and memory of a call by operand addresses ([`enqueue`]).
pub struct CallTarget<'a> {
    /// The GPU.
    pub device: &'a Device,
    /// The plan cache of the GPU.
    pub plans: &'a mut Plans,
    /// The stream for the launches.
    pub stream: &'a Stream,
    /// Allocates memory if a plan needs any.
    pub memory: WorkspaceAllocator<'a>,
}

/// Enqueues the launches of a call on a stream of the GPU that has the call's tensors, and returns the plan, which
/// can be launched over equivalent tensors ([`Plan::at_addresses`]). Inputs and outputs are in the order of the op's
/// table.
///
/// # Errors
/// [`OpError`] naming what is wrong with the call, why no variant takes it, or what the driver refused.
pub fn enqueue(
    op: &dyn Op,
    options: &dyn Options,
    [inputs, outputs]: [Slots<'_>; 2],
    place: CallTarget<'_>,
) -> Result<Arc<Plan>, OpError> {
    place.plans.key.set(op.spec(), options, [&inputs, &outputs]);
    let inputs_of_op = Inputs::new(op.spec().name, inputs);
    let found = place.plans.found(|| {
        let call = op.call(inputs, options)?;
        plan(call.problem(), inputs_of_op, &outputs, place.device)
    });
    let plan = Arc::clone(found?);
    let buffers = plan.workspace_size().allocate(place.memory)?;
    plan.over(&inputs_of_op, &outputs, Workspace::from(&buffers))?.enqueue(place.stream)?;
    Ok(plan)
}

/// Plans a problem over tensors on a GPU, with the variant that selection takes.
fn plan(
    problem: &dyn Problem,
    inputs: Inputs<'_>,
    outputs: &Slots<'_>,
    device: &Device,
) -> Result<Plan, OpError> {
    let name = inputs.op();
    let named = |error| OpError::Device { op: name, error };
    // An uploaded host tensor would be reused with stale values by the next call.
    let on_host = inputs.slots().iter().find(|(_, _, tensor)| tensor.buffer().is_none());
    if let Some((_, spec, _)) = on_host {
        let what = format!("tensor `{}` is in host memory", spec.name);
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

/// A hash of 64-bit words: a look-up hashes about a hundred of them, and keys are not adversarial.
#[derive(Debug, Default)]
pub struct WordHasher(u64);

impl Hasher for WordHasher {
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
        // The hash table uses both upper and lower bits.
        self.0 ^ (self.0 >> 29)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_values_survive_and_unused_ones_are_bounded() {
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
