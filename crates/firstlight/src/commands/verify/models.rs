//! Installed packages that run whole models, held against firstlight's own engine on the processor.

use ::verify::{ModelCase, Peers, judge_model};
use facts::{BackendKind, ParityRow};
use kernels::{DType, Tensor};
use models::{Batch, Capacity, Model, Storage, SynthOptions, Wanted, open, shape, synth};
use std::path::Path;

/// Reduced random models, one of each family that packages run, and what their configs say otherwise in bf16: where every
/// expert is chosen, rounding decides no choice, and what is left of an error is an error.
const SHAPES: &[(&str, &[(&str, u64)])] =
    &[("granite-hybrid-mini", &[]), ("kimi-linear-mini", &[("num_experts_per_token", 8)])];

/// Tokens of the prompt: more than a chunk of any scan, and no multiple of one.
const TOKENS: usize = 70;

/// Every model on every peer that runs models of its type.
pub(super) fn rows(peers: &mut Peers<'_>) -> anyhow::Result<Vec<ParityRow>> {
    let mut rows = Vec::new();
    for (name, in_bf16) in SHAPES {
        let folder = peers.session.folder().join(name);
        // On a GPU models are run in what they are stored in, elsewhere in float32.
        let (dtype, storage) = match peers.backend {
            BackendKind::Cuda => (DType::Bf16, Storage::Bf16),
            _ => (DType::F32, Storage::F32),
        };
        let config = match storage {
            Storage::F32 => shape(name)?,
            Storage::Bf16 => in_bf16
                .iter()
                .fold(shape(name)?, |config, (key, value)| config.with(key, (*value).into())),
        };
        synth(config.clone(), &folder, &SynthOptions::default())?;
        let (ids, logits) = expected(&folder)?;
        let case = ModelCase {
            name: &format!("{name}/t{TOKENS}"),
            model_type: config.model_type().unwrap_or_default(),
            folder: &folder,
            dtype,
            ids: &ids,
            logits: &logits,
            tolerance: storage.tolerance(),
        };
        rows.extend(judge_model(peers, &case));
    }
    Ok(rows)
}

/// A prompt, and the logits that the float32 engine gives after each of its tokens.
fn expected(folder: &Path) -> anyhow::Result<(Vec<i32>, Tensor)> {
    let model = Model::read(folder)?;
    let vocabulary = model.architecture.vocabulary;
    // All over the vocabulary, and none twice.
    let ids: Vec<u32> = (0..TOKENS).map(|at| ((at * 181 + 7) % vocabulary) as u32).collect();
    let device = device::open(BackendKind::Cpu)?;
    let mut engine = open(model, device, Storage::F32, Capacity { sequences: 1, tokens: TOKENS })?;
    let logits = engine.step(&Batch::new().with(0, &ids), Wanted::Every)?;
    let ids = ids.into_iter().map(|id| id as i32).collect();
    Ok((ids, Tensor::new(&[TOKENS, vocabulary], logits)))
}
