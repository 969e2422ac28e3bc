//! `firstlight synth`: writes a random model of a real or reduced shape, or of a config.

use crate::Outcome;
use crate::cli::Synth;
use crate::destination;
use crate::failure::Failure;
use crate::output::Output;
use crate::stopping;
use crate::transfer::Transfer;
use facts::SCHEMA;
use models::{FileProgress, SHAPES, SynthOptions, shape, synth_watched};
use report::terminal::{self, Style};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

pub(super) fn run(arguments: &Synth, output: &Output) -> anyhow::Result<Outcome> {
    let (Some(name), Some(folder)) = (&arguments.name, &arguments.output) else {
        let shapes: Vec<_> = SHAPES
            .iter()
            .map(|shape| json!({ "name": shape.name, "about": shape.about }))
            .collect();
        output.either(&json!({ "schema": SCHEMA, "shapes": shapes }), list)?;
        return Ok(Outcome::Good);
    };
    destination::folder(folder)?;
    remove_leftover(folder, output)?;
    let options =
        SynthOptions { seed: arguments.seed, layers: arguments.layers, ..SynthOptions::default() };
    let named = Path::new(name);
    let config = match named.is_file() {
        true => models::parse_config(named, &models::read_text(named)?)?,
        false => shape(name)?,
    };
    let config = match arguments.weights {
        Some(weights) => weights.of(config)?,
        None => config,
    };
    let watched = FileProgress::default();
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

/// Removes the only file of a folder if it is the partial file of a killed `synth`. A running `synth` writes to it all
/// the time.
fn remove_leftover(folder: &Path, output: &Output) -> anyhow::Result<()> {
    let leftover = folder.join(PARTIAL);
    let Ok(entries) = folder.read_dir() else { return Ok(()) };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    if names != [PARTIAL] {
        return Ok(());
    }
    let modified = leftover.metadata().and_then(|file| file.modified());
    let idle = modified.ok().and_then(|modified| modified.elapsed().ok());
    if idle.is_some_and(|idle| idle < IDLE) {
        let seconds = IDLE.as_secs();
        let what = format!(
            "{} was written to within {seconds} seconds: another synth may be at work",
            leftover.display()
        );
        let hint = format!("run the command again after {seconds} seconds, or name another folder");
        return Err(Failure::hinted(what, hint));
    }
    std::fs::remove_file(&leftover)?;
    let removed = leftover.display();
    output.notice(|_| format!("removed {removed}, which an interrupted synth left\n"));
    Ok(())
}

/// The weights while they are written.
const PARTIAL: &str = "model.part";

/// A file that is being written changes within this time.
const IDLE: Duration = Duration::from_secs(2);

fn list(style: Style) -> String {
    let rows: Vec<_> = SHAPES.iter().map(|shape| (shape.name, shape.about)).collect();
    terminal::listing(&rows, style)
}
