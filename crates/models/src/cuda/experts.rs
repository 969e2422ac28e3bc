use super::mlp::CudaMlp;
use super::program::Program;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{Experts, Score};
use kernels::linear::{LinearCall, Out};
use kernels::moe::{self, MoeCall, MoeOptions};
use kernels::rmsnorm::{RmsNormCall, RmsNormOptions};
use kernels::{DType, OpError, Tensor};

/// Routed experts.
pub(super) struct CudaExperts {
    router: CudaProjection,
    score: Score,
    correction: Option<Tensor>,
    per_token: usize,
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
            router: weights.projection(&of.router)?,
            score: of.score,
            correction: match of.score {
                Score::SoftmaxOfChosen => None,
                Score::Sigmoid { correction, .. } => Some(weights.vector(correction)?),
            },
            per_token: of.per_token,
            gate_up,
            down,
        })
    }

    /// Plans `h = rms(x); x += r (experts(h) + mlp(h))`.
    pub(super) fn plan(
        &self,
        program: &mut Program<'_>,
        norm: &Tensor,
        mlp: Option<&CudaMlp>,
    ) -> Result<(), OpError> {
        let (tokens, hidden) = (program.pass.tokens, program.x.shape()[1]);
        let h = program.tensor(&[tokens, hidden], DType::Bf16)?;
        program.call(&RmsNormCall {
            x: &program.x.shaped(&[1, tokens, 1, hidden])?,
            gate: None,
            weight: Some(norm),
            options: RmsNormOptions {
                eps: program.eps,
                out: Some(DType::Bf16),
                ..RmsNormOptions::default()
            },
            o: Some(&h),
        })?;
        let logits = program.tensor(&[tokens, self.gate_up.shape()[0]], DType::F32)?;
        let call = LinearCall { out: Some(Out::F32), ..self.router.of(&h) };
        program.call(&call.into([&logits]))?;

        // The experts read the residual while they write what becomes it.
        let Some(to) = program.spare.take() else { return Ok(()) };
        let from = std::mem::replace(&mut program.x, to);
        let (score, weight_scale) = match self.score {
            Score::SoftmaxOfChosen => (moe::Score::SoftmaxOfChosen, 1.0),
            Score::Sigmoid { renormalise, scale, .. } => {
                (moe::Score::Sigmoid { renormalise }, scale)
            }
        };
        let (top_k, scale) = (Some(self.per_token), program.residual);
        program.call(&MoeCall {
            x: &h,
            logits: &logits,
            correction: self.correction.as_ref(),
            w_gate_up: &self.gate_up,
            w_down: &self.down,
            residual: Some(&from),
            options: MoeOptions { top_k, score, weight_scale, scale },
            o: Some(&program.x),
        })?;
        program.spare = Some(from);
        match mlp {
            Some(mlp) => mlp.plan_of(program, &h, None),
            None => Ok(()),
        }
    }
}
