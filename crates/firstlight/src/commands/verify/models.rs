//! Compares installed packages that run whole models with firstlight's engine on the processor.

use facts::{BackendKind, ParityRow};
use models::{Batch, Capacity, LogitsSelection, Model, Storage, SynthOptions, open, shape, synth};
use ops::{DType, Tensor};
use std::path::Path;
use verify::{ModelCase, Peers, judge_model};

/// Reduced random models, one of each family that packages run, with config overrides in bf16: if every expert is
/// chosen, rounding changes no routing decision, and remaining errors are real.
const SHAPES: &[(&str, &[(&str, u64)])] =
    &[("granite-hybrid-mini", &[]), ("kimi-linear-mini", &[("num_experts_per_token", 8)])];

/// Tokens of the prompt: more than a chunk of any scan, and not a multiple of one.
const TOKENS: usize = 70;

/// Every model on every peer that runs models of its type.
pub(super) fn rows(peers: &mut Peers<'_>) -> anyhow::Result<Vec<ParityRow>> {
    let mut rows = Vec::new();
    for (name, in_bf16) in SHAPES {
        let folder = peers.session.folder().join(name);
        // On a GPU, models run in their storage type, elsewhere in float32.
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

/// A prompt, and the float32 engine's logits after each of its tokens.
fn expected(folder: &Path) -> anyhow::Result<(Vec<i32>, Tensor)> {
    let model = Model::read(folder)?;
    let vocabulary = model.architecture.vocabulary;
    // Spread over the vocabulary, without duplicates.
    let ids: Vec<u32> = (0..TOKENS).map(|at| ((at * 181 + 7) % vocabulary) as u32).collect();
    let device = backends::open(BackendKind::Cpu)?;
    let mut engine = open(model, device, Storage::F32, Capacity { sequences: 1, tokens: TOKENS })?;
    let logits = engine.step(&Batch::new().with(0, &ids), LogitsSelection::Every)?;
    let ids = ids.into_iter().map(|id| id as i32).collect();
    Ok((ids, Tensor::new(&[TOKENS, vocabulary], logits)))
}
