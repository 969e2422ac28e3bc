//! `firstlight synth`: a random model of a real or reduced shape.

use crate::Outcome;
use crate::cli::Synth;
use crate::destination;
use crate::output::Output;
use crate::stopping;
use crate::transfer::Transfer;
use facts::SCHEMA;
use models::{SHAPES, SynthOptions, Watched, shape, synth_watched};
use serde_json::json;
use std::fmt::Write as _;

pub(super) fn run(arguments: &Synth, output: &Output) -> anyhow::Result<Outcome> {
    let (Some(name), Some(folder)) = (&arguments.name, &arguments.output) else {
        let shapes: Vec<_> = SHAPES
            .iter()
            .map(|shape| json!({ "name": shape.name, "about": shape.about }))
            .collect();
        output.either(&json!({ "schema": SCHEMA, "shapes": shapes }), |_| list())?;
        return Ok(Outcome::Good);
    };
    destination::folder(folder)?;
    let options =
        SynthOptions { seed: arguments.seed, layers: arguments.layers, ..SynthOptions::default() };
    let config = shape(name)?;
    let config = match arguments.weights {
        Some(weights) => weights.of(config)?,
        None => config,
    };
    let watched = Watched::default();
    stopping::on_signals(&watched.stop())?;
    let total = models::synth_bytes(&config, &options)?;
    let showing = Transfer::watch("writing", total, watched.done());
    let parameters = synth_watched(config, folder, &options, &watched)?;
    drop(showing);
    let folder = folder.display().to_string();
    let wrote =
        json!({ "schema": SCHEMA, "shape": name, "parameters": parameters, "folder": folder });
    output.either(&wrote, |_| format!("{parameters} parameters of random {name} in {folder}\n"))?;
    Ok(Outcome::Good)
}

fn list() -> String {
    let widest = SHAPES.iter().map(|shape| shape.name.len()).max().unwrap_or_default();
    SHAPES.iter().fold(String::new(), |mut out, shape| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:<widest$}  {}", shape.name, shape.about);
        out
    })
}
