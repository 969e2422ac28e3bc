//! `firstlight logits`: writes a model's logits for given tokens, to compare them with another implementation.

use crate::backend::{self, OpenedDevice};
use crate::cli::Logits;
use crate::failure::Failure;
use crate::output::Output;
use crate::run_folder::write_atomically;
use crate::stages::ModelRanks;
use crate::{Outcome, destination, hub, loading, tensors};
use device::Device;
use facts::{CompactCollect, SCHEMA};
use models::{Batch, Capacity, LargestStep, LogitsSelection, Model};
use ops::{Tensor, TensorMap};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub(super) fn run(arguments: &Logits, output: &Output) -> anyhow::Result<Outcome> {
    let model_ranks = ModelRanks::of(arguments.split, arguments.stages, arguments.backend)?;
    let Some(model_ranks) = model_ranks else { return Ok(Outcome::Good) };
    let choice = backend::begin(arguments.backend);
    destination::file(&arguments.output)?;
    let folder = hub::locate(&arguments.named)?;
    destination::not_of(&files_in(&folder), &arguments.output)?;
    let model = Model::read(&folder)?.with_scan_states(arguments.states.held())?;
    let model = model_ranks.part(model)?;
    let (family, vocabulary) = (model.architecture.family, model.architecture.vocabulary);
    let tokens = arguments.ids.len();
    let capacity = Capacity { sequences: 1, tokens };
    let chunk = arguments.chunk.map_or(tokens, |chunk| chunk as usize).min(tokens);
    // Logits of a step, and those of all tokens, in memory and as in the file.
    let step = LargestStep { tokens: chunk, logits: chunk + tokens };
    let dtype = arguments.dtype.into();
    let fit = |device: &Device| {
        loading::fit(&model.architecture, device, dtype, (capacity, step)).map(|_| ())
    };
    let OpenedDevice { device, device_notice, .. } = choice.end(fit)?;
    let backend = device_notice.backend();
    let other_ranks = model_ranks.other_ranks(backend)?;
    let split = (other_ranks.as_ref(), &*folder);
    let mut engine = loading::open_on(split, model, device, dtype, (capacity, step))?.engine;
    let mut logits = Vec::with_capacity(tokens * vocabulary);
    for ids in arguments.ids.chunks(chunk) {
        logits.extend(engine.step(&Batch::new().with(0, ids), LogitsSelection::Every)?);
    }
    if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
        let what =
            format!("logit {} of token {} is {}", at % vocabulary, at / vocabulary, logits[at]);
        return Err(Failure::hinted(
            what,
            "the weights may be too large for the storage type; check the checkpoint",
        ));
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
        .compact_map();
    let file = arguments.output.display().to_string();
    let ran = json!({
        "schema": SCHEMA, "family": family, "backend": backend.as_str(), "device": device_notice,
        "tokens": tokens,
        "vocabulary": vocabulary, "launches": launches, "file": file,
    });
    output.either(&ran, |_| {
        let mut out = device_notice.text(output)
            + &format!("{family} on {backend}, {tokens} tokens; launches:\n");
        for (kernel, count) in &launches {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "  {count:>6}  {kernel}");
        }
        let _ = writeln!(out, "logits [{tokens}, {vocabulary}] f32\nwrote {file}");
        out
    })?;
    Ok(Outcome::Good)
}

/// The model's files, which results must not overwrite. A folder that cannot be listed fails when it is read.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
