use super::weights::Weights;
use crate::ModelError;
use crate::layers::{Experts, Score};
use crate::program::Loader;
use kernels::moe::{self, MoeCall, MoeOptions};
use kernels::{DType, Tensor};

/// Routed experts.
pub(crate) struct CudaExperts {
    score: Score,
    correction: Option<Tensor>,
    per_token: usize,
    /// The first of those that this rank has, where it has not all.
    first: Option<usize>,
    /// `[experts, 2 inner, hidden]`.
    gate_up: Tensor,
    /// `[experts, hidden, inner]`.
    down: Tensor,
}

impl CudaExperts {
    pub(super) fn new(of: &Experts, weights: &Weights<'_, '_>) -> Result<Self, ModelError> {
        let (hidden, inner) = (of.router.inputs, of.experts[0].down.inputs);
        let stacked = |rows: usize, width: usize| {
            weights.allocate(&[of.experts.len(), rows, width], DType::Bf16)
        };
        let (gate_up, down) = (stacked(2 * inner, hidden)?, stacked(hidden, inner)?);
        for (index, expert) in of.experts.iter().enumerate() {
            for (projection, all) in [(&expert.gate_up, &gate_up), (&expert.down, &down)] {
                let own = all.rows(index, 1).and_then(|own| own.shaped(&all.shape()[1..]));
                let own = own.map_err(super::failed)?;
                weights.matrix_into(&projection.rows, projection.inputs, &own)?;
            }
        }
        Ok(Self {
            score: of.score,
            correction: match of.score {
                Score::SoftmaxOfChosen => None,
                Score::Sigmoid { correction, .. } => Some(weights.vector(correction)?),
            },
            per_token: of.per_token,
            first: (of.experts.len() < of.router.outputs()).then_some(of.first),
            gate_up,
            down,
        })
    }

    /// The call of `residual + scale * experts(h)`, into `o`, which is not the residual: experts read that while they write.
    pub(super) fn call<'a>(
        &'a self,
        [h, logits]: [&'a Tensor; 2],
        scale: f64,
        [residual, o]: [&'a Tensor; 2],
    ) -> MoeCall<'a> {
        let (score, weight_scale) = match self.score {
            Score::SoftmaxOfChosen => (moe::Score::SoftmaxOfChosen, 1.0),
            Score::Sigmoid { renormalise, scale, .. } => {
                (moe::Score::Sigmoid { renormalise }, scale)
            }
        };
        MoeCall {
            x: h,
            logits,
            correction: self.correction.as_ref(),
            w_gate_up: &self.gate_up,
            w_down: &self.down,
            residual: Some(residual),
            options: MoeOptions {
                top_k: Some(self.per_token),
                score,
                weight_scale,
                scale,
                experts_first: self.first,
            },
            o: Some(o),
        }
    }
}
