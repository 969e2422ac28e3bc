//! `firstlight quantize`: a model's weights in fewer bits.

use crate::Outcome;
use crate::cli::Quantize;
use crate::destination;
use crate::hub;
use crate::output::Output;
use crate::stopping;
use crate::transfer::Transfer;
use facts::{SCHEMA, byte_count};
use models::{Checkpoint, QuantizedTensor, Watched};
use serde_json::json;
use std::fmt::Write as _;

pub(super) fn run(arguments: &Quantize, output: &Output) -> anyhow::Result<Outcome> {
    destination::folder(&arguments.output)?;
    let model = hub::locate(&arguments.named)?;
    let watched = Watched::default();
    stopping::on_signals(&watched.stop())?;
    let total = Checkpoint::open(&model)?.bytes();
    let showing = Transfer::watch("writing", total, watched.done());
    let quantized = models::quantize(&model, &arguments.output, arguments.to.into(), &watched)?;
    drop(showing);
    let folder = arguments.output.display().to_string();
    let mut document = quantized.document();
    document["schema"] = json!(SCHEMA);
    document["folder"] = json!(folder);
    output.either(&document, |_| {
        let mut out = String::new();
        for QuantizedTensor { name, relative_error } in &quantized.tensors {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{name:<64} relative error {relative_error:.2e}");
        }
        let [before, after] = quantized.bytes.map(byte_count);
        let count = quantized.tensors.len();
        let told = arguments.to.told();
        let _ = writeln!(out, "{count} tensors in {told} in {folder}: {before} became {after}");
        out
    })?;
    Ok(Outcome::Good)
}
