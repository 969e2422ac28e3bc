//! `firstlight convert`: renames a checkpoint's tensors to another layout.

use crate::Outcome;
use crate::cli::Convert;
use crate::destination;
use crate::hub;
use crate::output::Output;
use crate::transfer::Transfer;
use facts::{SCHEMA, byte_count};
use models::{Conversion, ConversionResult, KeyMap, TensorKey};
use report::count;
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) fn run(arguments: &Convert, output: &Output) -> anyhow::Result<Outcome> {
    arguments.output.as_deref().map(destination::folder).transpose()?;
    let conversion = Conversion::read(&hub::locate(&arguments.named)?, arguments.to.into())?;
    let map = conversion.map();
    let Some(folder) = &arguments.output else {
        output.either(&document(map), |_| every_pair(map))?;
        return Ok(Outcome::Good);
    };
    let begun = conversion.begin(folder, arguments.resume)?;
    if !output.json {
        output.text(&changed(map))?;
    }
    let done = Arc::new(AtomicU64::new(0));
    let showing = Transfer::watch("converting", begun.bytes(), Arc::clone(&done));
    let converted = begun.write(|_, bytes| {
        done.fetch_add(bytes, Ordering::Relaxed);
    })?;
    drop(showing);
    let ConversionResult { files, taken_up, bytes, as_published } = converted;
    let shown = folder.display().to_string();
    let mut ran = document(map);
    ran["folder"] = json!(shown);
    ran["files"] = json!(files);
    ran["taken_up"] = json!(taken_up);
    ran["bytes"] = json!(bytes);
    ran["as_published"] = json!(as_published);
    output.either(&ran, |_| {
        let mut out = format!("{} in {shown}, {}", count(files, "file"), byte_count(bytes));
        if taken_up > 0 {
            let _ = write!(out, "; {taken_up} of them already existed, verified by their hashes");
        }
        out.push_str(match as_published {
            Some(true) => "\nby their hashes, the files equal those that the model was converted from\n",
            Some(false) => "\nby their hashes, some files differ from those that the model was converted from\n",
            None => "\n",
        });
        out
    })?;
    Ok(Outcome::Good)
}

fn document(map: &KeyMap) -> serde_json::Value {
    let key = |key: &TensorKey| json!({ "name": key.name, "shape": key.shape });
    let pair = |pair: &models::TensorPair| json!({ "from": key(&pair.from), "to": key(&pair.to) });
    json!({
        "schema": SCHEMA,
        "to": map.to().name(),
        "tensors": map.pairs().iter().map(pair).collect::<Vec<_>>(),
        "zeros": map.zeros().iter().map(|zeros| key(&zeros.key)).collect::<Vec<_>>(),
    })
}

/// A line for each tensor.
fn every_pair(map: &KeyMap) -> String {
    let mut out = String::new();
    for pair in map.pairs() {
        let (from, to) = (&pair.from, &pair.to);
        // Writing to a String cannot fail.
        let _ = match (from.name == to.name, from.shape == to.shape) {
            (true, true) => writeln!(out, "{} {:?}", from.name, from.shape),
            (true, false) => writeln!(out, "{} {:?} -> {:?}", from.name, from.shape, to.shape),
            (false, _) => writeln!(out, "{} -> {} {:?}", from.name, to.name, to.shape),
        };
    }
    for zeros in map.zeros() {
        let _ = writeln!(out, "{} {:?} {}", zeros.key.name, zeros.key.shape, on_zeros(map));
    }
    out
}

/// The changes; layers with the same change share a line.
fn changed(map: &KeyMap) -> String {
    let mut lines: Vec<(String, usize)> = Vec::new();
    let mut add = |line: String| match lines.iter_mut().find(|(held, _)| *held == line) {
        Some((_, layers)) => *layers += 1,
        None => lines.push((line, 1)),
    };
    for pair in map.changed() {
        let [from, to] = [&pair.from, &pair.to]
            .map(|key| format!("{} {:?}", in_any_layer(&key.name), key.shape));
        add(format!("{from} -> {to}"));
    }
    for zeros in map.zeros() {
        let (name, shape) = (in_any_layer(&zeros.key.name), &zeros.key.shape);
        add(format!("{name} {shape:?} {}", on_zeros(map)));
    }
    let alike = map.pairs().len() - map.changed().count();
    let mut out = format!("{alike} tensors keep their name and shape; the others:\n");
    for (line, layers) in lines {
        let _ = writeln!(out, "  {line} in {}", count(layers, "layer"));
    }
    out
}

fn on_zeros(map: &KeyMap) -> &'static str {
    match map.to() {
        models::CheckpointLayout::FlaKda => "is added, all zeros",
        models::CheckpointLayout::Hf => "is left out, all zeros",
    }
}

/// A name with N instead of the layer's number, the first number in it.
fn in_any_layer(name: &str) -> String {
    let mut words: Vec<&str> = name.split('.').collect();
    if let Some(layer) = words.iter_mut().find(|word| word.parse::<usize>().is_ok()) {
        *layer = "N";
    }
    words.join(".")
}
