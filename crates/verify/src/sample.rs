//! Checks a large call on a sample of its outputs.
//!
//! A float64 reference of a benchmark's shape would take minutes. Heads and sequences are independent in every op, so
//! the variant runs on the whole inputs, and one random (sequence, head) part of its outputs is compared with the
//! reference of that part. Attention rows are independent too: there only the last query tokens are recomputed.

use crate::judge::{Judgement, against_only, implausible, run};
use crate::layout::{Axis, Layout, layout};
use crate::references::{KnownReferences, References};
use crate::{TensorRng, Verified};
use device::Device;
use facts::Status;
use ops::{Call, Op, Settings, Tensor, TensorMap};
use std::ops::Range;

/// Query tokens recomputed where rows are independent.
const QUERY_TOKENS: usize = 32;

/// One random part of a dense call: what to keep of each axis. A call whose parts depend on each other is its only part.
#[derive(Debug, Clone)]
pub struct Sample {
    layout: &'static Layout,
    batch: Range<usize>,
    heads: Range<usize>,
    shared: Range<usize>,
}

impl Sample {
    /// Selects a random sequence and group of heads of a dense call.
    ///
    /// # Errors
    /// One sentence, when the call has a form that is not split (packed, paged, slots) or the op's layout is unknown.
    pub fn draw(op: &str, inputs: &TensorMap, draw: &mut TensorRng) -> Result<Self, String> {
        let layout = layout(op)?;
        if layout.is_whole() {
            return Ok(Self { layout, batch: 0..0, heads: 0..0, shared: 0..0 });
        }
        for (name, tensor) in inputs {
            layout.axes(name, tensor)?;
        }
        let size =
            |(name, at): (&str, usize)| inputs.get(name).map_or(0, |tensor| tensor.shape()[at]);
        let (batch, heads, shared) =
            (size((layout.heads.0, 0)), size(layout.heads), size(layout.shared));
        if batch == 0 || heads == 0 || shared == 0 {
            return Err("the call is empty".to_owned());
        }
        // Channels of a convolution are cheap and many: a range of them. Otherwise all heads of one shared head.
        let (heads, shared) = if layout.heads == layout.shared {
            let count = heads.min(64);
            let start = draw.below(heads - count + 1);
            (start..start + count, start..start + count)
        } else if heads >= shared {
            let (pick, group) = (draw.below(shared), heads / shared);
            if layout.whole_groups {
                (pick * group..(pick + 1) * group, pick..pick + 1)
            } else {
                let head = pick * group + draw.below(group);
                (head..head + 1, pick..pick + 1)
            }
        } else {
            return Err(format!("{heads} heads over {shared} shared ones"));
        };
        let sequence = draw.below(batch);
        Ok(Self { layout, batch: sequence..sequence + 1, heads, shared })
    }

    fn cut(&self, tensors: &TensorMap) -> Result<TensorMap, String> {
        let layout = self.layout;
        if layout.is_whole() {
            return Ok(tensors.clone());
        }
        let keep = |axis, size: usize| match axis {
            Axis::Whole | Axis::Tokens => 0..size,
            Axis::Batch => self.batch.clone(),
            Axis::QueryTokens => size.saturating_sub(QUERY_TOKENS)..size,
            Axis::Head => self.heads.clone(),
            Axis::Shared => self.shared.clone(),
        };
        let cut = |(name, tensor): (&String, &Tensor)| {
            Ok((name.clone(), layout.cut(name, tensor, keep)?))
        };
        tensors.iter().map(cut).collect()
    }
}

/// The random part of a call on which kernels are compared before they are timed; selected once, with its reference
/// computed once for all kernels.
pub struct SampledCall<'a> {
    op: &'a dyn Op,
    inputs: &'a TensorMap,
    settings: &'a Settings,
    /// The part and its inputs, selected on first use; or why none can be selected.
    part: Option<Result<(Sample, TensorMap), String>>,
    seed: u64,
    known: KnownReferences,
}

impl<'a> SampledCall<'a> {
    /// The part of a call of `op` that a seed selects.
    pub fn of(
        op: &'a dyn Op,
        (inputs, settings): (&'a TensorMap, &'a Settings),
        seed: u64,
    ) -> Self {
        Self { op, inputs, settings, part: None, seed, known: KnownReferences::new() }
    }

    fn part(&mut self) -> Result<&(Sample, TensorMap), String> {
        let drawn = || {
            let sample =
                Sample::draw(self.op.spec().name, self.inputs, &mut TensorRng::new(self.seed))?;
            let inputs = sample.cut(self.inputs)?;
            Ok((sample, inputs))
        };
        self.part.get_or_insert_with(drawn).as_ref().map_err(Clone::clone)
    }

    /// Compares a random part of outputs of any origin with the reference of that part.
    pub(crate) fn judge(&mut self, outputs: &TensorMap, only: Option<&[&str]>) -> Judgement {
        self.judged(outputs, only).unwrap_or_else(|reason| Judgement::fail(reason, 0, 0.0))
    }

    fn judged(&mut self, outputs: &TensorMap, only: Option<&[&str]>) -> Result<Judgement, String> {
        let (op, settings, known) = (self.op, self.settings, std::mem::take(&mut self.known));
        let (sample, part_inputs) = self.part()?;
        let part_outputs = sample.cut(outputs)?;
        let part = op
            .bind(part_inputs, settings)
            .map_err(|error| format!("the sample does not bind: {error}"))?;
        let mut references = References::with_known(&part, known);
        let reference = references.for_outputs(&part_outputs);
        let known = references.into_known();
        let judgement = reference.map(|wanted| against_only(&part, &part_outputs, &wanted, only));
        drop(part);
        self.known = known;
        let judgement = judgement?;
        // Outside the sample nothing is compared, but unwritten elements are still detected.
        let nan = || outputs.iter().find_map(|(name, tensor)| Some((name, tensor.first_nan()?)));
        match judgement.status {
            Status::Pass => match nan() {
                Some((name, at)) => Err(format!("output `{name}` is NaN at element {at}")),
                None => Ok(judgement),
            },
            _ => Ok(judgement),
        }
    }
}

/// Runs `variant` on the whole call and compares a random part of its outputs with the reference of that part.
///
/// # Errors
/// The failed judgement with its reason.
pub(crate) fn admit<'a>(
    call: &'a Call<'a>,
    drawn: &mut SampledCall<'_>,
    device: &'a Device,
    variant: &str,
) -> Result<Verified<'a>, String> {
    // Refused before anything runs if the call cannot be split.
    drawn.part()?;
    let mut execution = call.prepare(device, variant).map_err(|error| error.to_string())?;
    let ran = run(execution.as_mut(), device);
    if let Some(judgement) = implausible(&ran, execution.kernel()) {
        return Err(judgement.reason);
    }
    let outputs = execution.outputs().map_err(|error| error.to_string())?;
    match drawn.judge(outputs, None) {
        Judgement { status: Status::Pass, agreement: Some(agreement), .. } => {
            Ok(Verified::new(execution, agreement))
        }
        judgement => Err(judgement.reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tier, cases, compare};

    #[test]
    fn reference_of_a_sampled_part_equals_that_part_of_the_reference() {
        // Calls of gradients are not split. One thread per op, since some references take a while.
        let split = |op: &&&dyn Op| !layout(op.spec().name).unwrap().is_whole();
        std::thread::scope(|scope| {
            for op in ops::OPS.iter().filter(split) {
                scope.spawn(|| check(*op));
            }
        });
    }

    /// Checks every dense quick case of an op.
    fn check(op: &dyn Op) {
        let mut sampled = 0;
        let quick = cases(op.spec().name).into_iter().filter(|case| case.tier == Tier::Quick);
        for case in quick {
            let (inputs, settings) = (case.build)();
            let Ok(_) = Sample::draw(case.op, &inputs, &mut TensorRng::new(0)) else { continue };
            let whole = op.bind(&inputs, &settings).unwrap().reference();
            sampled += 1;
            for seed in 0..3 {
                let sample = Sample::draw(case.op, &inputs, &mut TensorRng::new(seed)).unwrap();
                let part = sample.cut(&inputs).unwrap();
                let part = op.bind(&part, &settings).unwrap().reference();
                for (name, wanted) in sample.cut(&whole).unwrap() {
                    let agreement = compare(&part[&name], &wanted, 1).unwrap();
                    assert!(agreement.relative < 1e-12, "{case:?} {name} {sample:?} {agreement:?}");
                }
            }
        }
        assert!(sampled >= 8, "{sampled} cases of {} were sampled", op.spec().name);
    }

    #[test]
    fn reference_of_a_part_is_computed_once() {
        let case = cases("conv1d").into_iter().find(|case| case.name == "edge/plain").unwrap();
        let ((inputs, settings), op) = ((case.build)(), ops::op("conv1d").unwrap());
        let right = op.bind(&inputs, &settings).unwrap().reference();
        let mut drawn = SampledCall::of(op, (&inputs, &settings), 7);
        let mut wrong = right.clone();
        let o =
            Tensor::new(right["o"].shape(), right["o"].to_f64().iter().map(|x| 1.5 * x).collect());
        wrong.insert("o".to_owned(), o);
        for (outputs, expect) in
            [(&right, Status::Pass), (&wrong, Status::Fail), (&right, Status::Pass)]
        {
            let judgement = drawn.judge(outputs, None);
            assert_eq!(judgement.status, expect, "{}", judgement.reason);
            assert_eq!(drawn.known.len(), 1);
        }
    }

    #[test]
    fn packed_and_empty_calls_are_refused() {
        for (op, name, expect) in [
            (
                "attention",
                "edge/varlen-empty-sequence",
                "tensor `cu_seqlens` [6] has a layout that cannot be split",
            ),
            (
                "kda",
                "fla/decode-pool-b7",
                "tensor `state_indices` [7] has a layout that cannot be split",
            ),
            ("attention", "edge/no-keys", ""),
            ("ssd", "edge/no-batch", "the call is empty"),
        ] {
            let case = cases(op).into_iter().find(|case| case.name == name).unwrap();
            let drawn = Sample::draw(op, &(case.build)().0, &mut TensorRng::new(0));
            assert_eq!(drawn.err().unwrap_or_default(), expect, "{name}");
        }
    }
}
