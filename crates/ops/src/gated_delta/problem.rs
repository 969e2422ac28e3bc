//! The contract of `gated_delta`: tensors and settings, most of them shared with `kda`.

use super::GatedDeltaOptions;
use crate::kda::problem::shared::{
    A_LOG, ALLOW_NEG_EIGVAL, BETA, CU_SEQLENS, DFINAL_STATE, DO, GRADIENTS, INITIAL_STATE, K,
    L2NORM, OUTPUTS, Q, SCALE, STATE_INDICES, V,
};
use crate::kda::problem::{optional, required};
use crate::kda::{Decays, KdaOptions, KdaProblem, problem};
use crate::{Inputs, OpError, OpSpec};

pub(super) const SPEC: OpSpec = OpSpec {
    name: "gated_delta",
    summary: "gated delta rule: one decay per value head (Qwen3-Next's Gated DeltaNet)",
    inputs: &[
        Q,
        K,
        V,
        required("g", "[B, T, HV]", "log decay (<= 0), or gate logits when A_log is given"),
        BETA,
        A_LOG,
        optional("dt_bias", "[HV]", "added to the gate logits"),
        INITIAL_STATE,
        CU_SEQLENS,
        STATE_INDICES,
    ],
    outputs: OUTPUTS,
    settings: &[SCALE, L2NORM, ALLOW_NEG_EIGVAL],
};

/// The gradient's table. Pools of states, which are for inference, are not supported.
pub(super) const GRADIENT: OpSpec = OpSpec {
    name: "gated_delta_backward",
    summary: "gradients of gated_delta",
    inputs: &[
        Q,
        K,
        V,
        SPEC.inputs[3],
        BETA,
        A_LOG,
        SPEC.inputs[6],
        INITIAL_STATE,
        CU_SEQLENS,
        DO,
        DFINAL_STATE,
    ],
    outputs: GRADIENTS,
    settings: SPEC.settings,
};

pub(super) fn parse(
    inputs: Inputs<'_>,
    options: &GatedDeltaOptions,
) -> Result<KdaProblem, OpError> {
    let GatedDeltaOptions { scale, l2norm, allow_neg_eigval } = *options;
    let options = KdaOptions { scale, l2norm, allow_neg_eigval, ..KdaOptions::default() };
    problem::parse(inputs, &options, Decays::PerHead)
}
