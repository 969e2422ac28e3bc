#[cfg(test)]
mod tests;

use super::failed;
use super::stacked::{Matrix, Scheme, Stacked, UpDownMatrices};
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{ClampedExperts, Experts, GatedMlp, RouterScore};
use crate::program::Loader;
use ops::moe::{self, Clamp, MoeCall, MoeOptions};
use ops::{OpError, Tensor};

/// Number of tokens up to which shared experts run in the same launch as the routed ones. Such a launch is bound by
/// reading weights, and a separate one would add latency. For more tokens dense GEMM kernels are faster.
const TOGETHER: usize = 64;

/// Routed experts.
pub(crate) struct CudaExperts {
    score: moe::Score,
    /// Epsilon of the sum of a token's sigmoids, and the scale of the routing weights.
    sum_eps: f64,
    weight_scale: f64,
    correction: Option<Tensor>,
    per_token: usize,
    /// This rank's first expert; `None` if it has all.
    first: Option<usize>,
    /// Whether an expert has a gate projection in addition to its up projection.
    gated: bool,
    /// Group size: columns that share a scale.
    group: usize,
    /// Up projections `[experts, 2 inner, hidden]`, or `[experts, inner, hidden]` without gates, and down projections
    /// `[experts, hidden, inner]`.
    all: [Stacked; 2],
    /// Shared experts, if they are stored as the last of the experts.
    always: Option<SharedExperts>,
    /// Biases of gate and up `[experts, 2 inner]` and of the output `[experts, hidden]`, with the clamp.
    clamped: Option<([Tensor; 2], Clamp)>,
}

/// Shared experts cut into pieces of a routed expert's size.
struct SharedExperts {
    /// The routed experts.
    chosen: [Stacked; 2],
    /// Up and down projection of each piece, views into the stacked tensors.
    pieces: Vec<[CudaProjection; 2]>,
}

impl CudaExperts {
    /// Loads experts, with the shared experts stacked after them if possible; also returns whether they are.
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
        let always =
            (count > 0).then(|| SharedExperts::new(&all, count)).transpose().map_err(failed)?;
        let clamped = of.clamped.map(|ClampedExperts { gate_up_bias, down_bias, limit, alpha }| {
            let bias = |id, of: &Stacked| weights.vectors(&[id], &of.matrices.shape()[..2]);
            let biases = [bias(gate_up_bias, &all[0])?, bias(down_bias, &all[1])?];
            Ok::<_, ModelError>((biases, Clamp { limit, alpha }))
        });
        let (score, sum_eps, weight_scale, correction) = match of.score {
            RouterScore::SoftmaxOfChosen => (moe::Score::SoftmaxOfChosen, moe::SUM_EPS, 1.0, None),
            RouterScore::SoftmaxOfAll => (moe::Score::SoftmaxOfAll, moe::SUM_EPS, 1.0, None),
            RouterScore::ScaledSoftmax { .. } => {
                return Err(ModelError::fault("GPUs have no router with scales of experts"));
            }
            RouterScore::Sigmoid { correction, renormalise, sum_eps, scale, .. } => {
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

    /// Up and down projections that a call over `tokens` tokens does not include; the caller adds their sum.
    pub(super) fn left_out(&self, tokens: usize) -> &[[CudaProjection; 2]] {
        let pieces = self.always.as_ref().map_or(&[][..], |always| &always.pieces);
        if tokens > TOGETHER { pieces } else { &[] }
    }

    /// Whether an expert has a gate projection.
    pub(super) fn is_gated(&self) -> bool {
        self.gated
    }

    /// The call that computes `residual + scale * experts(h)` into `o`. `o` is not the residual, which experts read
    /// while they write. Without a residual `o` has the type of h.
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

impl SharedExperts {
    /// The last `count` of the stacked experts.
    fn new(all: &[Stacked; 2], count: usize) -> Result<Self, OpError> {
        let [up, down] = all;
        let piece = |from_end: usize| Ok([up.last(from_end)?, down.last(from_end)?]);
        let pieces = (1..=count).rev().map(piece).collect::<Result<_, OpError>>()?;
        Ok(Self { chosen: [up.without(count)?, down.without(count)?], pieces })
    }
}

/// Shared experts as additional experts; `None` if their shape or type does not allow it.
fn pieces(
    of: &Experts,
    shared: &GatedMlp,
    weights: &Weights<'_, '_>,
) -> Result<Option<UpDownMatrices>, ModelError> {
    let taken =
        |count: &usize| ops_cuda::moe::takes(of.experts.len() + count, of.per_token + count);
    let Some(count) = of.experts_in(shared).filter(taken) else { return Ok(None) };
    let inner = shared.down.inputs / count;
    let channels = |piece: usize| piece * inner..(piece + 1) * inner;
    let up = |piece| Matrix::whole(&shared.ups(channels(piece)), weights);
    let down = |piece| Matrix::part(&shared.down, channels(piece), weights);
    let up = (0..count).map(up).collect::<Result<_, _>>()?;
    let down = (0..count).map(down).collect::<Result<_, _>>()?;
    Ok(Some([up, down]))
}
