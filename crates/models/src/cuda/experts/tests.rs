//! The stored weights and the launches of experts, on the stand-in for the CUDA driver, which has memory but computes
//! nothing.
#![cfg(target_os = "linux")]

use super::*;
use crate::cuda::machine;
use crate::params::Projection;
use crate::verify::{counts, since};
use crate::{
    Batch, Capacity, Config, LogitsSelection, Model, Pages, QuantizedFormat, Storage, open, shape,
};
use device::cuda::{Cuda, Stream};
use facts::BackendKind;
use ops::DType;
use serde_json::{Value, json};

/// Four-bit weights with zero points.
fn with_zeros(config: Config) -> Config {
    let weights = json!({ "num_bits": 4, "type": "int", "symmetric": false, "strategy": "group",
        "group_size": 128 });
    let group = json!({ "targets": ["re:.*(block_sparse_moe|shared_mlp)..*put_linear"],
        "weights": weights });
    let quantised = json!({ "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": { "group_0": group }, "ignore": [] });
    config.with("quantization_config", quantised)
}

/// Routed and shared experts in MXFP4.
fn in_mxfp4(config: Config) -> Config {
    let weights = json!({ "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32 });
    let group = json!({ "targets": ["re:.*(block_sparse_moe|shared_mlp)..*put_linear"],
        "weights": weights });
    let quantised = json!({ "quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized",
        "config_groups": { "group_0": group }, "ignore": [] });
    config.with("quantization_config", quantised)
}

fn with(name: &str, keys: &[(&str, usize)]) -> Config {
    let config = shape(name).unwrap();
    keys.iter().fold(config, |config, (key, size)| config.with(key, Value::from(*size)))
}

/// Granite's experts with two groups of 128 per row, and shared experts of twice their width.
fn wide() -> Config {
    let keys = [("hidden_size", 256), ("intermediate_size", 256), ("mamba_d_head", 64)];
    with("granite-moe-mini", &[&keys[..], &[("shared_intermediate_size", 512)]].concat())
}

#[test]
fn shared_experts_are_stored_after_routed_ones() {
    machine::launched("cuda::experts::tests::shared_experts_are_stored_after_routed_ones", || {
        let nemotron = |inner| {
            let keys = [("moe_shared_expert_intermediate_size", inner)];
            with("nemotron-mini", &keys)
        };
        for (config, pieces) in [
            (wide(), 2),
            (QuantizedFormat::Fp8.of(wide()).unwrap(), 2),
            (QuantizedFormat::Int8.of(wide()).unwrap(), 2),
            (QuantizedFormat::Int4.of(wide()).unwrap(), 2),
            (with_zeros(wide()), 2),
            (in_mxfp4(wide()), 2),
            (with("kimi-linear-mini", &[]), 1),
            (nemotron(80), 2),
            (nemotron(48), 0),
            // A shared expert with a gate, as long as a routed one.
            (with("qwen3-next-mini", &[("shared_expert_intermediate_size", 32)]), 0),
            (with("granite-moe-mini", &[("shared_intermediate_size", 48)]), 0),
            // Only routed experts in float8.
            (
                QuantizedFormat::Fp8
                    .of(wide())
                    .unwrap()
                    .with("quantization_config", experts_alone()),
                0,
            ),
        ] {
            loaded(&config, pieces);
        }
        let narrow = with("granite-moe-mini", &[("shared_intermediate_size", 64)]);
        let other = with("granite-moe-mini", &[("shared_intermediate_size", 96 + 16)]);
        let [[one, many], [one_apart, many_apart]] = [narrow, other].map(|of| launches(&of));
        // In four layers: two launches fewer for one token, and two more for many, whose shared experts are two
        // pieces.
        assert_eq!([one + 8, many], [one_apart, many_apart + 8]);
    });
}

fn experts_alone() -> Value {
    let weights = json!({ "num_bits": 8, "type": "float", "strategy": "channel" });
    let group = json!({ "targets": ["re:.*block_sparse_moe.*put_linear"], "weights": weights });
    json!({ "quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": { "group_0": group }, "ignore": [] })
}

/// Launches of projections for one token, and for a hundred.
fn launches(config: &Config) -> [u64; 2] {
    let device = backends::open(BackendKind::Cuda).unwrap();
    let capacity = Capacity { sequences: 1, tokens: 200 };
    let model = Model::random(config, 1).unwrap();
    let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
    [1, 100].map(|tokens| {
        let before = counts(&*engine);
        engine.step(&Batch::new().with(0, &vec![1; tokens]), LogitsSelection::Last).unwrap();
        let ran = since(&before, counts(&*engine)).into_iter();
        ran.filter(|(kernel, _)| kernel.starts_with("linear.")).map(|(_, count)| count).sum()
    })
}

/// Loads the first layer that has experts and compares every matrix with the checkpoint.
fn loaded(config: &Config, pieces: usize) {
    let Model { architecture, checkpoint, .. } = Model::random(config, 1).unwrap();
    let layer = architecture.layers.iter().find(|layer| layer.experts.is_some()).unwrap();
    let (of, shared) = (layer.experts.as_ref().unwrap(), layer.mlp.as_ref().unwrap());
    let device = backends::open(BackendKind::Cuda).unwrap();
    let cuda = Cuda::of(&device).unwrap();
    let (stream, pages) = (cuda.stream(), Pages::new(1, 64));
    let (made, all) = cuda
        .uploading(|uploads| {
            let weights = Weights::new((&architecture, &checkpoint), &pages, stream, uploads)?;
            CudaExperts::new(of, Some(shared), &weights)
        })
        .unwrap();
    assert_eq!((all, made.left_out(1).len(), made.left_out(65).len()), (pieces > 0, 0, pieces));
    let read = |of: &Projection| -> Vec<f64> {
        let part = |rows: &crate::params::RowRange| {
            let param = architecture.params.get(rows.param);
            let (first, len) = (rows.first * of.inputs, rows.count * of.inputs);
            checkpoint.param(param).unwrap().read::<f32>(first, len).unwrap()
        };
        of.rows.iter().flat_map(part).map(f64::from).collect()
    };
    let (inner, hidden) = (of.experts[0].down.inputs, of.experts[0].gate_up.inputs);
    let mut want: Vec<[Vec<f64>; 2]> =
        of.experts.iter().map(|of| [read(&of.gate_up), read(&of.down)]).collect();
    let (ups, down) = (read(&shared.gate_up), read(&shared.down));
    for piece in 0..pieces {
        let starts = if shared.gated { vec![0, pieces * inner] } else { vec![0] };
        let rows = starts.iter().flat_map(|start| {
            let first = start + piece * inner;
            &ups[first * hidden..(first + inner) * hidden]
        });
        let columns = down.chunks(pieces * inner).flat_map(|row| &row[piece * inner..][..inner]);
        want.push([rows.copied().collect(), columns.copied().collect()]);
    }
    for (side, stacked) in made.all.iter().enumerate() {
        assert_eq!(stacked.matrices.shape()[0], want.len());
        let host = |tensor: &Tensor, at: usize| {
            tensor.rows(at, 1).unwrap().to_host(stream).unwrap().to_f64()
        };
        let every = |tensor: &Option<Tensor>, at| tensor.as_ref().map(|all| host(all, at));
        for (at, want) in want.iter().enumerate() {
            let scales_and_zeros = [every(&stacked.scales, at), every(&stacked.offsets, at)];
            let four = stacked.matrices.dtype() == DType::U4;
            let below = |scale: f64| if four { 8.0 * scale } else { 0.0 };
            let rows = stacked.matrices.shape()[1];
            hold(&host(&stacked.matrices, at), rows, scales_and_zeros, below, &want[side]);
        }
    }
    for (piece, want) in made.left_out(65).iter().zip(&want[of.experts.len()..]) {
        for (projection, want) in piece.iter().zip(want) {
            as_projected(projection, stream, want);
        }
    }
}

/// Compares a projection's weights with the expected ones.
fn as_projected(projection: &CudaProjection, stream: &Stream, want: &[f64]) {
    let none = Tensor::new(&[1, 1], vec![0f32]);
    let call = projection.of(&none);
    let host = |tensor: &Tensor| tensor.to_host(stream).unwrap().to_f64();
    let (w, scale) = (host(call.w), call.w_scale.map(host));
    let zero = call.w_zero.map(host);
    let below = zero.zip(scale.as_ref()).map(|(zero, scale)| {
        zero.iter().zip(scale).map(|(zero, scale)| zero * scale).collect::<Vec<_>>()
    });
    let middle = if call.w.dtype() == DType::U4 { 8.0 } else { 0.0 };
    hold(&w, call.w.shape()[0], [scale, below], |scale| middle * scale, want);
}

/// Compares dequantized rows, given scales `[groups, rows]` and zero points or offsets, with the expected ones.
fn hold(
    numbers: &[f64],
    rows: usize,
    [scales, offsets]: [Option<Vec<f64>>; 2],
    below: impl Fn(f64) -> f64,
    want: &[f64],
) {
    assert_eq!(numbers.len(), want.len());
    let columns = numbers.len() / rows;
    let groups = scales.as_ref().map_or(1, |scales| scales.len() / rows);
    for (at, (number, want)) in numbers.iter().zip(want).enumerate() {
        let place = at % columns / columns.div_ceil(groups) * rows + at / columns;
        let scale = scales.as_ref().map_or(1.0, |scales| scales[place]);
        let below = offsets.as_ref().map_or_else(|| below(scale), |offsets| offsets[place]);
        let found = number * scale - below;
        assert!((found - want).abs() < 1e-6, "row {} column {}", at / columns, at % columns);
    }
}
