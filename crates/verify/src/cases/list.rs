mod recurrent;

pub(super) use recurrent::{Recurrence, Recurrent, Sequences};

use crate::{Case, Property, TensorRng, Tier};
use ops::{DType, OutputSpec, Settings, Tensor, TensorMap};

/// The storage types of the ops.
pub(super) const ALL: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
/// One type, for shapes that do not depend on the storage type.
pub(super) const F32: &[DType] = &[DType::F32];
/// The storage type of models.
pub(super) const BF16: &[DType] = &[DType::Bf16];
/// The type of the suites for GPUs without bf16.
pub(super) const F16: &[DType] = &[DType::F16];
/// The types of tensor cores.
pub(super) const HALVES: &[DType] = &[DType::Bf16, DType::F16];
/// Full and half precision.
pub(super) const F32_BF16: &[DType] = &[DType::F32, DType::Bf16];

/// The cases of one op in listed order.
pub(super) struct List {
    op: &'static str,
    cases: Vec<Case>,
}

impl List {
    pub(super) fn new(op: &'static str) -> Self {
        Self { op, cases: Vec::new() }
    }

    /// Adds one case per storage type. The generator is seeded by the case's name, so that a case's inputs do not
    /// depend on other cases.
    pub(super) fn add<C: Call>(&mut self, tier: Tier, name: &str, dtypes: &[DType], call: &C) {
        self.push(tier, name, dtypes, None, call);
    }

    /// [`List::add`] for a property of several runs.
    pub(super) fn property<C: Call>(
        &mut self,
        tier: Tier,
        name: &str,
        dtypes: &[DType],
        property: Property,
        call: &C,
    ) {
        self.push(tier, name, dtypes, Some(property), call);
    }

    fn push<C: Call>(
        &mut self,
        tier: Tier,
        name: &str,
        dtypes: &[DType],
        property: Option<Property>,
        call: &C,
    ) {
        for dtype in dtypes.iter().copied() {
            let (call, seed) = (call.clone(), format!("{} {name}", self.op));
            self.cases.push(Case {
                op: self.op,
                name: name.to_owned(),
                dtype,
                tier,
                property: property.clone(),
                build: Box::new(move || call.draw(&mut TensorRng::named(&seed), dtype)),
            });
        }
    }

    pub(super) fn done(self) -> Vec<Case> {
        self.cases
    }
}

/// A described call of an op: shapes and settings, without values.
pub(super) trait Call: Clone + Send + Sync + 'static {
    /// Generates the inputs.
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings);
}

/// A call of an op's gradient: the inputs of a call of the op, the outputs that the gradient reads, and random gradients of its outputs.
#[derive(Clone)]
pub(super) struct Backward<C> {
    /// The op.
    pub(super) op: &'static str,
    /// The call.
    pub(super) call: C,
}

impl<C: Call> Call for Backward<C> {
    fn draw(&self, draw: &mut TensorRng, dtype: DType) -> (TensorMap, Settings) {
        let (mut inputs, settings) = self.call.draw(draw, dtype);
        let op = |name: &str| ops::op(name).unwrap_or_else(|error| panic!("{error}"));
        let call = op(self.op).bind(&inputs, &settings);
        let call = call.unwrap_or_else(|error| panic!("{error}"));
        let outputs = call.outputs();
        let table = op(&format!("{}_backward", self.op)).spec().inputs;
        let is_read = |spec: &&OutputSpec| table.iter().any(|input| input.name == spec.name);
        let read: Vec<&OutputSpec> = outputs.iter().filter(is_read).collect();
        if !read.is_empty() {
            let reference = call.reference();
            let stored =
                |spec: &&OutputSpec| (spec.name.to_owned(), reference[spec.name].cast(spec.dtype));
            let stored: Vec<_> = read.iter().map(stored).collect();
            inputs.extend(stored);
        }
        for OutputSpec { name, shape, dtype } in outputs {
            // A caller that gives no state does not use the final one.
            if name != "final_state" || inputs.contains_key("initial_state") {
                inputs.insert(format!("d{name}"), draw.normals(&shape, dtype, 1.0));
            }
        }
        (inputs, settings)
    }
}

/// Offsets of packed sequences of these lengths: `[0, l0, l0 + l1, ..]`.
pub(super) fn offsets(lengths: impl IntoIterator<Item = usize>) -> Tensor {
    let mut offsets = vec![0i32];
    for length in lengths {
        offsets.push(offsets[offsets.len() - 1] + length as i32);
    }
    Tensor::new(&[offsets.len()], offsets)
}

/// A one-dimensional tensor of integers.
pub(super) fn integers(values: &[i32]) -> Tensor {
    Tensor::new(&[values.len()], values.to_vec())
}

/// Distinct slots of a pool in random order, -1 for every third sequence with `padding`.
pub(super) fn slots(
    draw: &mut TensorRng,
    sequences: usize,
    slots: usize,
    padding: bool,
) -> Vec<i32> {
    let mut free: Vec<i32> = (0..slots as i32).collect();
    let mut pick = |sequence| match padding && sequence % 3 == 2 {
        true => -1,
        false => free.swap_remove(draw.below(free.len())),
    };
    (0..sequences).map(&mut pick).collect()
}
