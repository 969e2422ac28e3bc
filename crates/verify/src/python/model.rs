//! Compares an installed package that runs whole models with logits of firstlight's own engine.

use super::run::{CallMessage, run, tell};
use crate::compare::compare;
use crate::judge::{Judgement, within};
use crate::matrix::{blank, peer_row};
use crate::{Peers, Tolerance};
use facts::{BackendKind, ParityRow, Status};
use ops::{DType, OutputSpec, Settings, Tensor, TensorMap};
use std::path::Path;

/// The op name of models in a matrix.
pub const MODEL: &str = "model";

/// A model, a prompt and the expected logits.
#[derive(Debug, Clone, Copy)]
pub struct ModelCase<'a> {
    /// `granite-hybrid-mini/t70`.
    pub name: &'a str,
    /// `model_type` of its config, which determines the peers that run it.
    pub model_type: &'a str,
    /// Its folder, with config.json and safetensors files.
    pub folder: &'a Path,
    /// Storage type of weights and activations: f32 or bf16.
    pub dtype: DType,
    /// A prompt.
    pub ids: &'a [i32],
    /// Logits after each of its tokens, [tokens, vocabulary], of the same weights in float32 arithmetic.
    pub logits: &'a Tensor,
    /// Tolerated relative error of logits in this storage type.
    pub tolerance: f64,
}

/// Requests logits from every peer that runs models of this type; one row each.
pub fn judge_model(peers: &mut Peers<'_>, case: &ModelCase<'_>) -> Vec<ParityRow> {
    let Peers { session, peers, backend, .. } = peers;
    let backend = *backend;
    let row = |status, reason: String| ParityRow {
        tolerance: case.tolerance,
        ..blank(MODEL, case.name, backend, case.dtype, status, reason)
    };
    let ids = Tensor::new(&[case.ids.len()], case.ids.to_vec());
    let inputs = TensorMap::from([("ids".to_owned(), ids)]);
    let settings = Settings::new().with("folder", case.folder.display());
    let shape = case.logits.shape().to_vec();
    let outputs = [OutputSpec { name: "logits", shape, dtype: DType::F32 }];
    let told = CallMessage {
        op: MODEL,
        dtype: case.dtype,
        inputs: &inputs,
        settings: &settings,
        outputs: &outputs,
        backend,
    };
    let mut rows = Vec::new();
    for peer in peers.iter().filter(|peer| peer.runs_models(case.model_type)) {
        // Each peer loads the case: a model stays in its process only for its row.
        rows.push(match tell(session, &told) {
            Ok(()) => {
                let ran = run(session, peer, &outputs, backend, |outputs, _| agrees(outputs, case));
                // The fast paths are for GPUs: elsewhere their absence is not a fault.
                let ran = if backend == BackendKind::Cuda { ran.or_fallback() } else { ran };
                peer_row(peer, ran, &row)
            }
            Err(error) => ParityRow {
                variant: peer.name.clone(),
                peer: Some(peer.name.clone()),
                ..row(Status::Fail, error.to_string())
            },
        });
    }
    rows
}

fn agrees(outputs: &TensorMap, case: &ModelCase<'_>) -> Judgement {
    let compared = match outputs.get("logits") {
        Some(logits) => compare(logits, case.logits, 1),
        None => Err("is missing".to_owned()),
    };
    match compared {
        Ok(agreement) => {
            let judged = within(agreement, Tolerance::of(case.tolerance));
            let limit = format!("the limit of logits in {} compared with float32", case.dtype);
            let reason = match judged.status {
                Status::Pass => judged.reason,
                _ => format!("{}, {limit}", judged.reason),
            };
            Judgement { reason, ..judged }
        }
        Err(what) => Judgement::fail(format!("output `logits` {what}"), 0, 0.0),
    }
}
