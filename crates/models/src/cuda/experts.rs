use super::weights::{Weights, float8_factors, float8_groups, integers};
use crate::ModelError;
use crate::layers::{Experts, Score};
use crate::params::Projection;
use crate::program::Loader;
use kernels::linear::SCALED;
use kernels::moe::{self, MoeCall, MoeOptions};
use kernels::{DType, Tensor};

/// Routed experts.
pub(crate) struct CudaExperts {
    score: Score,
    correction: Option<Tensor>,
    per_token: usize,
    /// The first of those that this rank has, where it has not all.
    first: Option<usize>,
    /// Whether an expert has gates beside its ups.
    gated: bool,
    /// `[experts, 2 inner, hidden]`, or `[experts, inner, hidden]` without gates, and the way down `[experts, hidden, inner]`.
    matrices: [Tensor; 2],
    /// Of narrow matrices, `[experts, groups, rows]` each.
    scales: Option<[Tensor; 2]>,
    offsets: Option<[Tensor; 2]>,
    /// Columns that have a scale of their own.
    group: usize,
}

/// A matrix of every expert, as the op takes it.
struct Stacked {
    matrices: Tensor,
    scales: Option<Tensor>,
    offsets: Option<Tensor>,
    group: usize,
}

impl CudaExperts {
    pub(super) fn new(of: &Experts, weights: &Weights<'_, '_>) -> Result<Self, ModelError> {
        let gate_up: Vec<_> = of.experts.iter().map(|expert| &expert.gate_up).collect();
        let down: Vec<_> = of.experts.iter().map(|expert| &expert.down).collect();
        let both = [&gate_up, &down];
        let stacked = match Integral::of(weights, both) {
            Some(narrow) => both.map(|of| narrow.stack(weights, of)),
            None if is_float8(weights, both) => both.map(|of| float8(weights, of)),
            None => both.map(|of| wide(weights, of)),
        };
        let [up, down] = stacked;
        let (up, down) = (up?, down?);
        let group = if up.scales.as_ref().is_some_and(|scales| scales.shape()[1] > 1) {
            up.group
        } else {
            down.group
        };
        Ok(Self {
            score: of.score,
            correction: match of.score {
                Score::SoftmaxOfChosen => None,
                Score::Sigmoid { correction, .. } => Some(weights.vector(correction)?),
            },
            per_token: of.per_token,
            first: (of.experts.len() < of.router.outputs()).then_some(of.first),
            gated: of.experts.iter().all(|expert| expert.gated),
            matrices: [up.matrices, down.matrices],
            scales: up.scales.zip(down.scales).map(|(up, down)| [up, down]),
            offsets: up.offsets.zip(down.offsets).map(|(up, down)| [up, down]),
            group,
        })
    }

    /// The call of `residual + scale * experts(h)`, into `o`, which is not the residual: experts read that while they write.
    /// Without a residual `o` is in the type of h.
    pub(super) fn call<'a>(
        &'a self,
        [h, logits]: [&'a Tensor; 2],
        scale: f64,
        (residual, o): (Option<&'a Tensor>, &'a Tensor),
    ) -> MoeCall<'a> {
        let (score, sum_eps, weight_scale) = match self.score {
            Score::SoftmaxOfChosen => (moe::Score::SoftmaxOfChosen, moe::SUM_EPS, 1.0),
            Score::Sigmoid { renormalise, sum_eps, scale, .. } => {
                (moe::Score::Sigmoid { renormalise }, sum_eps, scale)
            }
        };
        MoeCall {
            x: h,
            logits,
            correction: self.correction.as_ref(),
            w_gate_up: &self.matrices[0],
            w_down: &self.matrices[1],
            scales: self.scales.as_ref().map(|[up, down]| [up, down]),
            offsets: self.offsets.as_ref().map(|[up, down]| [up, down]),
            residual,
            options: MoeOptions {
                top_k: Some(self.per_token),
                gated: self.gated,
                score,
                sum_eps,
                weight_scale,
                scale,
                w_group: self.group,
                experts_first: self.first,
            },
            o: Some(o),
        }
    }
}

/// A tensor for one matrix of every expert.
fn allocate(
    weights: &Weights<'_, '_>,
    of: &[&Projection],
    dtype: DType,
) -> Result<Tensor, ModelError> {
    let [rows, columns] = of.first().map_or([0; 2], |of| [of.outputs(), of.inputs]);
    weights.allocate(&[of.len(), rows, columns], dtype)
}

/// One expert's part of it.
fn own(all: &Tensor, expert: usize) -> Result<Tensor, ModelError> {
    all.rows(expert, 1).and_then(|own| own.shaped(&all.shape()[1..])).map_err(super::failed)
}

/// In bfloat16.
fn wide(weights: &Weights<'_, '_>, of: &[&Projection]) -> Result<Stacked, ModelError> {
    let matrices = allocate(weights, of, DType::Bf16)?;
    for (index, projection) in of.iter().enumerate() {
        weights.matrix_into(&projection.rows, projection.inputs, &own(&matrices, index)?)?;
    }
    Ok(Stacked { matrices, scales: None, offsets: None, group: SCALED })
}

/// Whether `moe` reads all of these in float8 as files hold them.
fn is_float8(weights: &Weights<'_, '_>, of: [&Vec<&Projection>; 2]) -> bool {
    of.into_iter().flatten().all(|of| {
        weights.scales(&of.rows).is_some_and(|scales| {
            let group = (float8_groups(&scales, of.inputs) > 1).then_some(SCALED);
            moe::reads_once(DType::E4m3, of.inputs, group)
        })
    })
}

/// In float8.
fn float8(weights: &Weights<'_, '_>, of: &[&Projection]) -> Result<Stacked, ModelError> {
    let scales: Vec<_> = of.iter().filter_map(|of| weights.scales(&of.rows)).collect();
    let columns = of.first().map_or(0, |of| of.inputs);
    let groups = scales.iter().map(|scales| float8_groups(scales, columns)).max().unwrap_or(1);
    let matrices = allocate(weights, of, DType::E4m3)?;
    let mut factors = Vec::new();
    for (index, (projection, scales)) in of.iter().zip(&scales).enumerate() {
        weights.float8_into(&projection.rows, columns, &own(&matrices, index)?)?;
        factors.extend(float8_factors(&projection.rows, scales, groups));
    }
    let scales = weights.give(Tensor::new(&[of.len(), groups, matrices.shape()[1]], factors))?;
    Ok(Stacked { matrices, scales: Some(scales), offsets: None, group: SCALED })
}

/// Experts whose matrices are all in integers of one form.
struct Integral {
    dtype: DType,
    group: usize,
    /// Whether any has a zero point that is not the middle.
    zeros: bool,
}

impl Integral {
    /// None where some are otherwise, or `moe` does not read them as files hold them.
    fn of(weights: &Weights<'_, '_>, of: [&Vec<&Projection>; 2]) -> Option<Self> {
        let (mut form, mut zeros) = (None, false);
        for of in of.into_iter().flatten() {
            for values in weights.alike(&of.rows)? {
                let integers = values.of;
                let group = (integers.groups() > 1).then_some(integers.group);
                let dtype = integers::type_of(integers);
                zeros |= integers.zeros;
                // Whole rows go with any groups.
                let (known, groups) = form.get_or_insert((dtype, group));
                let same = groups.is_none() || group.is_none() || *groups == group;
                if *known != dtype || !same || !moe::reads_once(dtype, of.inputs, group) {
                    return None;
                }
                *groups = groups.or(group);
            }
        }
        let (dtype, group) = form?;
        Some(Self { dtype, group: group.unwrap_or(SCALED), zeros })
    }

    fn stack(&self, weights: &Weights<'_, '_>, of: &[&Projection]) -> Result<Stacked, ModelError> {
        let matrices = allocate(weights, of, self.dtype)?;
        let (mut scales, mut offsets) = (Vec::new(), Vec::new());
        for (index, projection) in of.iter().enumerate() {
            let values = weights.alike(&projection.rows).unwrap_or_default();
            weights.integers_into(&projection.rows, &values, &own(&matrices, index)?)?;
            let of = integers::Factors::read(&projection.rows, &values)?;
            // Exactly where files hold scales in 16 bits; from others in float32 this is rounded once.
            let below = of.scales.iter().zip(&of.zeros).map(|(scale, zero)| scale * (zero + 8.0));
            offsets.extend(below);
            scales.extend(of.scales);
        }
        let rows = matrices.shape()[1];
        let shape = [of.len(), scales.len() / (of.len() * rows).max(1), rows];
        let offsets = self.zeros.then(|| weights.give(Tensor::new(&shape, offsets))).transpose()?;
        let scales = Some(weights.give(Tensor::new(&shape, scales))?);
        Ok(Stacked { matrices, scales, offsets, group: self.group })
    }
}
