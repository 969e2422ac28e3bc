//! `firstlight logits`: a model's logits for given tokens, to be compared with another implementation's.

use crate::Outcome;
use crate::cli::Logits;
use crate::failure::Failure;
use crate::hub;
use crate::loading;
use crate::output::Output;
use crate::run_folder::write_atomically;
use crate::tensors;
use facts::SCHEMA;
use kernels::{Tensor, TensorMap};
use models::{Batch, Capacity, LargestStep, Model, Wanted};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;

pub(super) fn run(arguments: &Logits, output: &Output) -> anyhow::Result<Outcome> {
    let device = device::open(arguments.backend.into())?;
    let backend = device.capabilities().backend;
    let model = Model::read(&hub::locate(&arguments.named)?)?;
    let (family, vocabulary) = (model.architecture.family, model.architecture.vocabulary);
    let tokens = arguments.ids.len();
    let capacity = Capacity { sequences: 1, tokens };
    let chunk = arguments.chunk.map_or(tokens, |chunk| chunk as usize).min(tokens);
    // A step's logits, then those of all tokens, as they are and as the file has them.
    let step = LargestStep { tokens: chunk, logits: chunk + tokens };
    let mut engine = loading::open(model, device, arguments.dtype.into(), capacity, step)?.engine;
    let mut logits = Vec::with_capacity(tokens * vocabulary);
    for ids in arguments.ids.chunks(chunk) {
        logits.extend(engine.step(&Batch::new().with(0, ids), Wanted::Every)?);
    }
    if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
        let what =
            format!("logit {} of token {} is {}", at % vocabulary, at / vocabulary, logits[at]);
        return Err(Failure::hinted(what, "weights this large overflow; look at the checkpoint"));
    }
    let logits =
        TensorMap::from([("logits".to_owned(), Tensor::new(&[tokens, vocabulary], logits))]);
    write_atomically(&arguments.output, &tensors::to_bytes(&logits)?)?;
    let launches: BTreeMap<String, u64> = engine
        .device()
        .launches()
        .snapshot()
        .into_iter()
        .map(|(kernel, record)| (kernel, record.count))
        .collect();
    let file = arguments.output.display().to_string();
    let ran = json!({
        "schema": SCHEMA, "family": family, "backend": backend.as_str(), "tokens": tokens,
        "vocabulary": vocabulary, "launches": launches, "file": file,
    });
    output.either(&ran, |_| {
        let mut out = format!("{family} on {backend}, {tokens} tokens; launches:\n");
        for (kernel, count) in &launches {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {count:>6}  {kernel}");
        }
        let _ = writeln!(out, "logits [{tokens}, {vocabulary}] f32\nwrote {file}");
        out
    })?;
    Ok(Outcome::Good)
}
