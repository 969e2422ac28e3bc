use super::weights::Weights;
use crate::ModelError;
use crate::layers::{Experts, GatedMlp, Score};
use crate::program::Loader;
use kernels::moe::{self, MoeCall, MoeOptions};
use kernels::{DType, Tensor};

/// Routed experts.
pub(crate) struct CudaExperts {
    score: Score,
    correction: Option<Tensor>,
    per_token: usize,
    /// Whether an expert has gates beside its ups.
    gated: bool,
    /// `[experts, 2 inner, hidden]`, or `[experts, inner, hidden]` without gates.
    gate_up: Tensor,
    /// `[experts, hidden, inner]`.
    down: Tensor,
}

impl CudaExperts {
    pub(super) fn new(of: &Experts, weights: &Weights<'_, '_>) -> Result<Self, ModelError> {
        let GatedMlp { gate_up, down, gated, .. } = &of.experts[0];
        let (ups, hidden, inner) = (gate_up.outputs(), gate_up.inputs, down.inputs);
        let stacked = |rows: usize, width: usize| {
            weights.allocate(&[of.experts.len(), rows, width], DType::Bf16)
        };
        let (gate_up, down) = (stacked(ups, hidden)?, stacked(hidden, inner)?);
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
            gated: *gated,
            gate_up,
            down,
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
            w_gate_up: &self.gate_up,
            w_down: &self.down,
            residual,
            options: MoeOptions {
                top_k: Some(self.per_token),
                gated: self.gated,
                score,
                sum_eps,
                weight_scale,
                scale,
            },
            o: Some(o),
        }
    }
}
