//! Rough times of selective_scan: each variant over prompts and decode steps. Medians of a few runs; `firstlight bench` is the place for
//! figures to keep.
#![allow(clippy::print_stdout)] // Printing them is what it is for.

use facts::BackendKind;
use kernels::selective_scan::SelectiveScanOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use std::time::Instant;

fn seconds(runs: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Values between `low` and `high`.
fn tensor(shape: &[usize], dtype: DType, [low, high]: [f32; 2], seed: u32) -> Tensor {
    let mut x = seed;
    let values = (0..shape.iter().product()).map(|_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        low + (high - low) * (x >> 8) as f32 / (1 << 24) as f32
    });
    Tensor::new(shape, values.collect::<Vec<f32>>()).cast(dtype)
}

fn call([b, t, e, n]: [usize; 4], dtype: DType) -> TensorMap {
    let (unit, f32) = ([-1.0, 1.0], DType::F32);
    let named = [
        ("u", tensor(&[b, t, e], dtype, unit, 1)),
        ("delta", tensor(&[b, t, e], f32, [-4.0, 1.0], 2)),
        ("A", tensor(&[e, n], f32, [-16.0, -0.5], 3)),
        ("B", tensor(&[b, t, 1, n], dtype, unit, 4)),
        ("C", tensor(&[b, t, 1, n], dtype, unit, 5)),
        ("D", tensor(&[e], f32, unit, 6)),
        ("z", tensor(&[b, t, e], dtype, unit, 7)),
        ("initial_state", tensor(&[b, e, n], f32, unit, 8)),
    ];
    named.map(|(name, tensor)| (name.to_owned(), tensor)).into()
}

fn main() {
    let device = device::open(BackendKind::Cpu).unwrap_or_else(|error| panic!("{error}"));
    println!("threads {}", device.capabilities().threads);
    for shape in [
        [1, 1, 1536, 16],
        [1, 1, 8192, 16],
        [64, 1, 8192, 16],
        [1, 2, 8192, 16],
        [1, 512, 8192, 16],
        [1, 512, 1536, 64],
    ] {
        for dtype in [DType::F32, DType::Bf16] {
            let tensors = call(shape, dtype);
            let call = match SelectiveScanOp.bind(&tensors, &Settings::new()) {
                Ok(call) => call,
                Err(error) => panic!("{error}"),
            };
            let (flops, bytes) = (call.problem().flops(), call.problem().bytes());
            for (variant, _) in SelectiveScanOp.variants() {
                let Ok(mut execution) = call.prepare(&device, variant) else { continue };
                let time = seconds(9, || execution.launch().expect("the processor launches"));
                println!(
                    "{shape:?} {dtype:4} {variant:18} {:9.3} ms {:7.1} GFLOP/s {:6.1} GB/s",
                    time * 1e3,
                    flops / time / 1e9,
                    bytes / time / 1e9,
                );
            }
        }
    }
}
