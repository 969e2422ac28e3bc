#[cfg(test)]
mod tests;

use super::failed;
use super::stacked::{Both, Matrix, Scheme, Stacked};
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{Clamped, Experts, GatedMlp, Score};
use crate::program::Loader;
use kernels::moe::{self, Clamp, MoeCall, MoeOptions};
use kernels::{OpError, Tensor};

/// Tokens up to which what every token passes is multiplied with the experts that they choose: so few read their weights and wait, and
/// launches of its own would wait once more. For more, kernels of dense products are faster.
const TOGETHER: usize = 64;

/// Routed experts.
pub(crate) struct CudaExperts {
    score: moe::Score,
    /// Added to the sum of a token's sigmoids, and what weights are times.
    sum_eps: f64,
    weight_scale: f64,
    correction: Option<Tensor>,
    per_token: usize,
    /// The first of those that this rank has, where it has not all.
    first: Option<usize>,
    /// Whether an expert has gates beside its ups.
    gated: bool,
    /// Columns that have a scale of their own.
    group: usize,
    /// `[experts, 2 inner, hidden]`, or `[experts, inner, hidden]` without gates, and the way down `[experts, hidden, inner]`.
    all: [Stacked; 2],
    /// Where every token takes the last of them.
    always: Option<Always>,
    /// Biases of gates and ups `[experts, 2 inner]` and of results `[experts, hidden]`, and what goes with them.
    clamped: Option<([Tensor; 2], Clamp)>,
}

/// What stands beside the experts that a token chooses, cut into pieces of their size: experts that every token takes.
struct Always {
    /// The other experts.
    chosen: [Stacked; 2],
    /// Each piece on the way up and down, where it lies.
    pieces: Vec<[CudaProjection; 2]>,
}

impl CudaExperts {
    /// Loads experts, and what stands beside them as more of them if it can be that; whether it is.
    pub(super) fn new(
        of: &Experts,
        shared: Option<&GatedMlp>,
        weights: &Weights<'_, '_>,
    ) -> Result<(Self, bool), ModelError> {
        let whole = |one: fn(&GatedMlp) -> &_| -> Result<Vec<_>, _> {
            of.experts.iter().map(|of| Matrix::whole(one(of), weights)).collect()
        };
        let (mut up, mut down) = (whole(|of| &of.gate_up)?, whole(|of| &of.down)?);
        let scheme = Scheme::of(weights, [&up, &down]);
        let pieces = shared.map(|shared| pieces(of, shared, weights)).transpose()?.flatten();
        let pieces = pieces.filter(|[up, down]| scheme.is_of(weights, [up, down]));
        let [more_up, more_down] = pieces.unwrap_or_default();
        let count = more_up.len();
        up.extend(more_up);
        down.extend(more_down);
        let all = [
            Stacked::new(scheme, (&up, false), count, weights)?,
            Stacked::new(scheme, (&down, true), count, weights)?,
        ];
        let always = (count > 0).then(|| Always::new(&all, count)).transpose().map_err(failed)?;
        let clamped = of.clamped.map(|Clamped { gate_up_bias, down_bias, limit, alpha }| {
            let bias = |id, of: &Stacked| weights.vectors(&[id], &of.matrices.shape()[..2]);
            let biases = [bias(gate_up_bias, &all[0])?, bias(down_bias, &all[1])?];
            Ok::<_, ModelError>((biases, Clamp { limit, alpha }))
        });
        let (score, sum_eps, weight_scale, correction) = match of.score {
            Score::SoftmaxOfChosen => (moe::Score::SoftmaxOfChosen, moe::SUM_EPS, 1.0, None),
            Score::SoftmaxOfAll => (moe::Score::SoftmaxOfAll, moe::SUM_EPS, 1.0, None),
            Score::Sigmoid { correction, renormalise, sum_eps, scale } => {
                (moe::Score::Sigmoid { renormalise }, sum_eps, scale, Some(correction))
            }
        };
        let made = Self {
            score,
            sum_eps,
            weight_scale,
            correction: correction.map(|of| weights.vector(of)).transpose()?,
            per_token: of.per_token,
            first: (of.experts.len() < of.router.outputs()).then_some(of.first),
            gated: of.experts.iter().all(|expert| expert.gated),
            group: scheme.group(),
            all,
            always,
            clamped: clamped.transpose()?,
        };
        Ok((made, count > 0))
    }

    /// What a call over so many tokens leaves out: projections up and down, in pieces whose sum is to be added.
    pub(super) fn left_out(&self, tokens: usize) -> &[[CudaProjection; 2]] {
        let pieces = self.always.as_ref().map_or(&[][..], |always| &always.pieces);
        if tokens > TOGETHER { pieces } else { &[] }
    }

    /// Whether an expert has gates beside its ups.
    pub(super) fn is_gated(&self) -> bool {
        self.gated
    }

    /// The call of `residual + scale * experts(h)`, into `o`, which is not the residual: experts read that while they write.
    /// Without a residual `o` is in the type of h.
    pub(super) fn call<'a>(
        &'a self,
        [h, logits]: [&'a Tensor; 2],
        scale: f64,
        (residual, o): (Option<&'a Tensor>, &'a Tensor),
    ) -> MoeCall<'a> {
        let ([up, down], always) = match &self.always {
            Some(always) if h.shape()[0] > TOGETHER => (&always.chosen, 0),
            always => (&self.all, always.as_ref().map_or(0, |always| always.pieces.len())),
        };
        let both = |of: [&'a Option<Tensor>; 2]| {
            let [up, down] = of.map(Option::as_ref);
            up.zip(down).map(|(up, down)| [up, down])
        };
        MoeCall {
            x: h,
            logits,
            correction: self.correction.as_ref(),
            w_gate_up: &up.matrices,
            w_down: &down.matrices,
            scales: both([&up.scales, &down.scales]),
            offsets: both([&up.offsets, &down.offsets]),
            biases: self.clamped.as_ref().map(|([up, down], _)| [up, down]),
            residual,
            options: MoeOptions {
                top_k: Some(self.per_token),
                gated: self.gated,
                clamp: self.clamped.as_ref().map(|(_, clamp)| *clamp),
                score: self.score,
                sum_eps: self.sum_eps,
                weight_scale: self.weight_scale,
                scale,
                w_group: self.group,
                experts_first: self.first,
                always,
            },
            o: Some(o),
        }
    }
}

impl Always {
    /// Of so many of the last.
    fn new(all: &[Stacked; 2], count: usize) -> Result<Self, OpError> {
        let [up, down] = all;
        let piece = |from_end: usize| Ok([up.last(from_end)?, down.last(from_end)?]);
        let pieces = (1..=count).rev().map(piece).collect::<Result<_, OpError>>()?;
        Ok(Self { chosen: [up.without(count)?, down.without(count)?], pieces })
    }
}

/// What stands beside experts as more of them; none where it cannot be that.
fn pieces(
    of: &Experts,
    shared: &GatedMlp,
    weights: &Weights<'_, '_>,
) -> Result<Option<Both>, ModelError> {
    let taken = |count: &usize| moe::takes(of.experts.len() + count, of.per_token + count);
    let Some(count) = of.experts_in(shared).filter(taken) else { return Ok(None) };
    let inner = shared.down.inputs / count;
    let channels = |piece: usize| piece * inner..(piece + 1) * inner;
    let up = |piece| Matrix::whole(&shared.ups(channels(piece)), weights);
    let down = |piece| Matrix::part(&shared.down, channels(piece), weights);
    let up = (0..count).map(up).collect::<Result<_, _>>()?;
    let down = (0..count).map(down).collect::<Result<_, _>>()?;
    Ok(Some([up, down]))
}
