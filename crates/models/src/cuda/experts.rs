use super::call::OpCall;
use super::mlp::CudaMlp;
use super::program::Program;
use super::tensor::GpuTensor;
use super::weights::{CudaProjection, Weights};
use crate::ModelError;
use crate::layers::{Experts, Score};
use kernels::linear::LinearOp;
use kernels::moe::MoeOp;
use kernels::rmsnorm::RmsNormOp;
use kernels::{DType, OpError};

/// Routed experts.
pub(super) struct CudaExperts {
    router: CudaProjection,
    score: Score,
    correction: Option<GpuTensor>,
    per_token: usize,
    /// `[experts, 2 inner, hidden]`.
    gate_up: GpuTensor,
    /// `[experts, hidden, inner]`.
    down: GpuTensor,
}

impl CudaExperts {
    pub(super) fn new(of: &Experts, weights: &Weights<'_>) -> Result<Self, ModelError> {
        let (hidden, inner) = (of.router.inputs, of.experts[0].down.inputs);
        let stacked = |rows: usize, width: usize| {
            weights.allocate(&[of.experts.len(), rows, width], DType::Bf16)
        };
        let (gate_up, down) = (stacked(2 * inner, hidden)?, stacked(hidden, inner)?);
        for (index, expert) in of.experts.iter().enumerate() {
            for (projection, all) in [(&expert.gate_up, &gate_up), (&expert.down, &down)] {
                let own = all.rows(index, 1).map_err(super::failed)?.shaped(&all.shape[1..]);
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
        norm: &GpuTensor,
        mlp: Option<&CudaMlp>,
    ) -> Result<(), OpError> {
        let (tokens, hidden) = (program.pass.tokens, program.x.shape[1]);
        let h = program.tensor(&[tokens, hidden], DType::Bf16)?;
        let rows = [1, tokens, 1, hidden];
        OpCall::new(&RmsNormOp)
            .input("x", &program.x.shaped(&rows))
            .input("weight", norm)
            .set("eps", program.eps)
            .set("out", "bf16")
            .output("o", &h)
            .plan(program)?;
        let logits = program.tensor(&[tokens, self.gate_up.shape[0]], DType::F32)?;
        let call = OpCall::new(&LinearOp).input("x", &h).set("out", "f32");
        self.router.plan(call, program, &[("o", &logits)])?;

        // The experts read the residual while they write what becomes it.
        let Some(to) = program.spare.take() else { return Ok(()) };
        let from = std::mem::replace(&mut program.x, to.clone());
        let call = OpCall::new(&MoeOp)
            .input("x", &h)
            .input("logits", &logits)
            .maybe("correction", self.correction.as_ref())
            .input("w_gate_up", &self.gate_up)
            .input("w_down", &self.down)
            .input("residual", &from)
            .set("top_k", self.per_token)
            .set("scale", program.residual)
            .output("o", &to);
        let call = match self.score {
            Score::SoftmaxOfChosen => call.set("score", "softmax_of_chosen"),
            Score::Sigmoid { renormalise, scale, .. } => call
                .set("score", "sigmoid")
                .set("renormalise", renormalise)
                .set("weight_scale", scale),
        };
        call.plan(program)?;
        program.spare = Some(from);
        match mlp {
            Some(mlp) => mlp.plan_of(OpCall::new(&LinearOp).input("x", &h), program),
            None => Ok(()),
        }
    }
}
