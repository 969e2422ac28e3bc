//! Checking a large call on a sample of it.
//!
//! A float64 reference of a benchmark's shape would take minutes. Heads and sequences do not mix in any op, so the
//! variant runs on the whole inputs and one drawn (sequence, head) part of its outputs is held against the reference
//! of that part alone. Attention rows do not mix either: there only the last tokens of the queries are recomputed.

use crate::judge::{Judgement, against_only, run, unbelievable};
use crate::layout::{Axis, Layout, layout};
use crate::references::{Known, References};
use crate::{Draw, Verified};
use device::Device;
use facts::Status;
use kernels::{Call, Op, Settings, Tensor, TensorMap};
use std::ops::Range;

/// Query tokens recomputed where rows do not mix.
const QUERY_TOKENS: usize = 32;

/// One drawn part of a dense call: what to keep of each axis.
#[derive(Debug, Clone)]
pub struct Sample {
    layout: &'static Layout,
    batch: Range<usize>,
    heads: Range<usize>,
    shared: Range<usize>,
}

impl Sample {
    /// Draws a sequence and a group of heads of a dense call.
    ///
    /// # Errors
    /// One sentence, when the call has a form that is not cut (packed, paged, slots) or no layout is known for the op.
    pub fn draw(op: &str, inputs: &TensorMap, draw: &mut Draw) -> Result<Self, String> {
        let layout = layout(op)?;
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
        // Channels of a convolution are cheap and many: a strip of them. Otherwise all heads around one shared head.
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

/// The drawn part of a call that kernels are held against before they are timed: cut once, and its reference computed once,
/// however many kernels there are.
pub struct Drawn<'a> {
    op: &'a dyn Op,
    inputs: &'a TensorMap,
    settings: &'a Settings,
    /// What was drawn and its inputs, once somebody asked; or why nothing can be drawn.
    part: Option<Result<(Sample, TensorMap), String>>,
    seed: u64,
    known: Known,
}

impl<'a> Drawn<'a> {
    /// The part of a call of `op` that the seed draws.
    pub fn of(
        op: &'a dyn Op,
        (inputs, settings): (&'a TensorMap, &'a Settings),
        seed: u64,
    ) -> Self {
        Self { op, inputs, settings, part: None, seed, known: Known::new() }
    }

    fn part(&mut self) -> Result<&(Sample, TensorMap), String> {
        let drawn = || {
            let sample = Sample::draw(self.op.spec().name, self.inputs, &mut Draw::new(self.seed))?;
            let inputs = sample.cut(self.inputs)?;
            Ok((sample, inputs))
        };
        self.part.get_or_insert_with(drawn).as_ref().map_err(Clone::clone)
    }

    /// Holds a drawn part of outputs, wherever they come from, against the reference of that part.
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
        let mut references = References::knowing(part.as_ref(), known);
        let reference = references.given(&part_outputs);
        let known = references.into_known();
        let judgement =
            reference.map(|wanted| against_only(part.as_ref(), &part_outputs, &wanted, only));
        drop(part);
        self.known = known;
        let judgement = judgement?;
        // Outside the sample nothing is compared, but nothing may be unwritten either.
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

/// Runs `variant` on the whole call and holds a drawn part of its outputs against the reference of that part.
///
/// # Errors
/// The failed judgement, when it may not be believed; its reason says why.
pub(crate) fn admit<'a>(
    call: &'a dyn Call,
    drawn: &mut Drawn<'_>,
    device: &'a Device,
    variant: &str,
) -> Result<Verified<'a>, String> {
    // Refused before anything runs, when it is not cut.
    drawn.part()?;
    let mut execution = call.prepare(device, variant).map_err(|error| error.to_string())?;
    let ran = run(execution.as_mut(), device);
    if let Some(judgement) = unbelievable(&ran, execution.kernel()) {
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
    fn the_reference_of_a_drawn_part_is_that_part_of_the_reference() {
        // A thread an op, since some references take a while.
        std::thread::scope(|scope| {
            for op in kernels::OPS {
                scope.spawn(|| check(*op));
            }
        });
    }

    /// Holds it for every dense quick case of an op.
    fn check(op: &dyn Op) {
        let mut sampled = 0;
        let quick = cases(op.spec().name).into_iter().filter(|case| case.tier == Tier::Quick);
        for case in quick {
            let (inputs, settings) = (case.build)();
            let Ok(_) = Sample::draw(case.op, &inputs, &mut Draw::new(0)) else { continue };
            let whole = op.bind(&inputs, &settings).unwrap().reference();
            sampled += 1;
            for seed in 0..3 {
                let sample = Sample::draw(case.op, &inputs, &mut Draw::new(seed)).unwrap();
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
    fn a_part_has_one_reference_however_many_are_held_against_it() {
        let case = cases("conv1d").into_iter().find(|case| case.name == "edge/plain").unwrap();
        let ((inputs, settings), op) = ((case.build)(), kernels::op("conv1d").unwrap());
        let right = op.bind(&inputs, &settings).unwrap().reference();
        let mut drawn = Drawn::of(op, (&inputs, &settings), 7);
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
    fn forms_that_are_not_cut_are_refused() {
        for (op, name, expect) in [
            (
                "attention",
                "edge/varlen-empty-sequence",
                "tensor `cu_seqlens` [6] is of a form that is not cut",
            ),
            (
                "kda",
                "fla/decode-pool-b7",
                "tensor `state_indices` [7] is of a form that is not cut",
            ),
            ("attention", "edge/no-keys", ""),
            ("ssd", "edge/no-batch", "the call is empty"),
        ] {
            let case = cases(op).into_iter().find(|case| case.name == name).unwrap();
            let drawn = Sample::draw(op, &(case.build)().0, &mut Draw::new(0));
            assert_eq!(drawn.err().unwrap_or_default(), expect, "{name}");
        }
    }
}
