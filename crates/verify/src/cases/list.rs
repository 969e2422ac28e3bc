mod recurrent;

pub(super) use recurrent::{Recurrence, Recurrent, Sequences};

use crate::{Case, Draw, Property, Tier};
use kernels::{DType, Settings, Tensor, TensorMap};

/// The storage types of the ops.
pub(super) const ALL: &[DType] = &[DType::F32, DType::Bf16, DType::F16];
/// One type, for shapes whose point is not the storage.
pub(super) const F32: &[DType] = &[DType::F32];
/// The type that models are stored in.
pub(super) const BF16: &[DType] = &[DType::Bf16];
/// The type of the suites whose GPUs predate bf16.
pub(super) const F16: &[DType] = &[DType::F16];
/// The types of matrix units.
pub(super) const HALVES: &[DType] = &[DType::Bf16, DType::F16];
/// Full and half precision.
pub(super) const F32_BF16: &[DType] = &[DType::F32, DType::Bf16];

/// The cases of one op, as they are listed.
pub(super) struct List {
    op: &'static str,
    cases: Vec<Case>,
}

impl List {
    pub(super) fn new(op: &'static str) -> Self {
        Self { op, cases: Vec::new() }
    }

    /// One case a storage type. `build` draws from a generator seeded by the case's name, so that a case's inputs do
    /// not depend on what else is listed.
    pub(super) fn add<C: Call>(&mut self, tier: Tier, name: &str, dtypes: &[DType], call: &C) {
        self.push(tier, name, dtypes, None, call);
    }

    /// The same for a property of several runs.
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
                build: Box::new(move || call.draw(&mut Draw::named(&seed), dtype)),
            });
        }
    }

    pub(super) fn done(self) -> Vec<Case> {
        self.cases
    }
}

/// A described call of an op: shapes and settings, no values yet.
pub(super) trait Call: Clone + Send + Sync + 'static {
    /// Draws the inputs.
    fn draw(&self, draw: &mut Draw, dtype: DType) -> (TensorMap, Settings);
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

/// Distinct slots of a pool in random order, -1 for every third sequence when there is `padding`.
pub(super) fn slots(draw: &mut Draw, sequences: usize, slots: usize, padding: bool) -> Vec<i32> {
    let mut free: Vec<i32> = (0..slots as i32).collect();
    let mut pick = |sequence| match padding && sequence % 3 == 2 {
        true => -1,
        false => free.swap_remove(draw.below(free.len())),
    };
    (0..sequences).map(&mut pick).collect()
}
