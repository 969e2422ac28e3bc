//! `firstlight quantize`: quantizes a model's weights.

use crate::Outcome;
use crate::cli::Quantize;
use crate::destination;
use crate::hub;
use crate::output::Output;
use crate::stopping;
use crate::transfer::Transfer;
use facts::{SCHEMA, byte_count};
use models::{Checkpoint, FileProgress, QuantizedTensor};
use report::{count, terminal};
use serde_json::json;

pub(super) fn run(arguments: &Quantize, output: &Output) -> anyhow::Result<Outcome> {
    destination::folder(&arguments.output)?;
    let model = hub::locate(&arguments.named)?;
    let watched = FileProgress::default();
    stopping::on_signals(&watched.stop())?;
    let total = Checkpoint::open(&model)?.bytes();
    let showing = Transfer::watch("writing", total, watched.done());
    let quantized = models::quantize(&model, &arguments.output, arguments.to.into(), &watched)?;
    drop(showing);
    let folder = arguments.output.display().to_string();
    let mut document = quantized.document();
    document["schema"] = json!(SCHEMA);
    document["folder"] = json!(folder);
    output.either(&document, |style| {
        let row = |(name, number, worst): (String, usize, f64)| {
            (name, format!("{number:>3}  error {worst:.2e}"))
        };
        let rows: Vec<_> = by_layer(&quantized.tensors).into_iter().map(row).collect();
        let rows: Vec<_> = rows.iter().map(|(name, rest)| (name.as_str(), rest.as_str())).collect();
        let out = terminal::listing(&rows, style);
        let [before, after] = quantized.bytes.map(byte_count);
        let tensors = count(quantized.tensors.len(), "tensor");
        let format = arguments.to.prose();
        let line = format!("{tensors} in {format} in {folder}: {before} became {after}");
        out + &terminal::paragraph(style, &line)
    })?;
    Ok(Outcome::Good)
}

/// The tensors of all layers under one name, `model.layers.*.mlp.down_proj.weight`, with their number and the largest
/// error. JSON has each.
fn by_layer(tensors: &[QuantizedTensor]) -> Vec<(String, usize, f64)> {
    let mut rows: Vec<(String, usize, f64)> = Vec::new();
    for QuantizedTensor { name, relative_error } in tensors {
        let part = |part: &str| match part.bytes().all(|byte| byte.is_ascii_digit()) {
            true => "*".to_owned(),
            false => part.to_owned(),
        };
        let name = name.split('.').map(part).collect::<Vec<_>>().join(".");
        match rows.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, count, worst)) => {
                *count += 1;
                *worst = worst.max(*relative_error);
            }
            None => rows.push((name, 1, *relative_error)),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_and_experts_are_one_row_with_the_largest_error() {
        let tensor =
            |name: &str, relative_error| QuantizedTensor { name: name.into(), relative_error };
        let tensors = [
            tensor("model.layers.0.mlp.w1.weight", 0.1),
            tensor("lm_head.weight", 0.4),
            tensor("model.layers.12.mlp.w1.weight", 0.3),
            tensor("model.layers.2.mlp.w1.weight", 0.2),
            tensor("model.layers.2.mlp.experts.7.w1.weight", 0.2),
        ];
        let expect = [
            ("model.layers.*.mlp.w1.weight", 3, 0.3),
            ("lm_head.weight", 1, 0.4),
            ("model.layers.*.mlp.experts.*.w1.weight", 1, 0.2),
        ];
        assert_eq!(
            by_layer(&tensors),
            expect.map(|(name, count, worst)| (name.into(), count, worst))
        );
    }
}
