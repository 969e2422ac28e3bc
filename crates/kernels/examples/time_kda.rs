//! Rough times of `kda`: chunk form against the float64 recurrence, decode steps against memory copies.
//!
//! `cargo run --release -p kernels --example time_kda [variant]`. Prints the least of a few runs, since the question
//! is what the kernel can do and not what else the machine was doing.
#![allow(clippy::print_stdout)] // An example's output is its purpose.

use device::Device;
use facts::BackendKind;
use kernels::kda::KdaOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use std::time::Instant;

/// Deterministic values around zero; timing does not need a good distribution.
fn values(count: usize, scale: f64, shift: f64) -> Vec<f64> {
    let mut x = 1u64;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 40) as f64 / (1u64 << 24) as f64 - 0.5
    };
    (0..count).map(|_| scale * next() + shift).collect()
}

fn inputs([batch, tokens, heads, dim]: [usize; 4], dtype: DType) -> (TensorMap, Settings) {
    let mut tensors = TensorMap::new();
    let mut put = |name: &str, shape: &[usize], scale, shift, dtype| {
        let values = values(shape.iter().product(), scale, shift);
        tensors.insert(name.to_owned(), Tensor::new(shape, values).cast(dtype));
    };
    let rows = [batch, tokens, heads, dim];
    put("q", &rows, 2.0, 0.0, dtype);
    put("k", &rows, 2.0, 0.0, dtype);
    put("v", &rows, 2.0, 0.0, dtype);
    put("g", &rows, 2.0, -1.0, dtype);
    put("beta", &rows[..3], 0.9, 0.5, dtype);
    put("initial_state", &[batch, heads, dim, dim], 1.0, 0.0, DType::F32);
    (tensors, Settings::new().with("l2norm", true))
}

/// The least time of a few runs, in seconds.
fn least(runs: usize, mut run: impl FnMut()) -> f64 {
    let once = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(once).fold(f64::INFINITY, f64::min)
}

/// Bytes read and written per second by a copy much larger than the caches, on all threads.
fn copy_bandwidth(device: &Device, bytes: usize) -> f64 {
    let from = vec![1u8; bytes];
    let mut to = vec![0u8; bytes];
    let part = bytes / 64;
    let shared = device::SharedMut::new(&mut to);
    let time = least(7, || {
        #[allow(unsafe_code)] // Blocks copy disjoint parts.
        device.launch(
            "copy",
            64,
            || (),
            |(), block| {
                let range = block * part..(block + 1) * part;
                // SAFETY: each block has its own range.
                unsafe { shared.slice(range.clone()) }.copy_from_slice(&from[range]);
            },
        );
    });
    2.0 * bytes as f64 / time
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1);
    let cpu = device::open(BackendKind::Cpu)?;
    let threads = cpu.capabilities().threads;
    for dtype in [DType::F32, DType::Bf16] {
        let sizes = [1, 2048, 4, 128];
        let (tensors, settings) = inputs(sizes, dtype);
        let call = KdaOp.bind(&tensors, &settings)?;
        let reference = least(2, || drop(call.reference()));
        println!("{dtype} B1 T2048 H4 K128 V128: reference {:.1} ms", reference * 1e3);
        for (variant, _) in KdaOp.variants() {
            if only.as_deref().is_some_and(|only| only != variant) {
                continue;
            }
            for threads in [1, threads] {
                let device = cpu.with_threads(threads);
                let Ok(mut execution) = call.prepare(&device, variant) else { continue };
                let time = least(7, || execution.launch().expect("the processor launches"));
                println!(
                    "  {variant} on {threads}: {:.2} ms, {:.1} GFLOP/s, {:.1} x the reference",
                    time * 1e3,
                    call.problem().flops() / time / 1e9,
                    reference / time
                );
            }
        }
    }
    for batch in [1, 64] {
        let (tensors, settings) = inputs([batch, 1, 32, 128], DType::Bf16);
        let call = KdaOp.bind(&tensors, &settings)?;
        let states = 2 * 4 * batch * 32 * 128 * 128;
        for threads in [1, threads] {
            let device = cpu.with_threads(threads);
            let copy = copy_bandwidth(&device, states / 2);
            println!("decode B{batch} H32 K128 V128 on {threads}: copy {:.1} GB/s", copy / 1e9);
            for (variant, _) in KdaOp.variants() {
                if only.as_deref().is_some_and(|only| only != variant) {
                    continue;
                }
                let Ok(mut execution) = call.prepare(&device, variant) else { continue };
                let time = least(9, || execution.launch().expect("the processor launches"));
                let rate = states as f64 / time;
                let share = 100.0 * rate / copy;
                println!(
                    "  {variant}: {:.3} ms, {:.1} GB/s, {share:.0} % of the copy",
                    time * 1e3,
                    rate / 1e9
                );
            }
        }
    }
    Ok(())
}
