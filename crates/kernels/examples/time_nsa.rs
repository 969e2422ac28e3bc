//! Rough times of nsa: `cargo run --release -p kernels --example time_nsa [case] [variant]`. The bench room measures properly;
//! this only shows whether a change to a kernel helped.
#![allow(clippy::print_stdout)] // An example for the terminal.

use device::Isa;
use facts::BackendKind;
use kernels::attention::AttentionOp;
use kernels::cpu::gemm::{Mat, MatMut, PackedB, Store, gemm_f32};
use kernels::{DType, Op, Settings, Tensor, TensorMap, nsa::NsaOp};
use std::time::Instant;

fn random(shape: &[usize], seed: &mut u64, dtype: DType) -> Tensor {
    let mut unit = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| unit() * 1.7).collect();
    Tensor::new(shape, values).cast(dtype)
}

/// Processor time of all threads so far, where the system tells: on a busy machine it says more than the clock.
fn processor_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    // utime and stime, in ticks of 10 ms.
    Some((fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?) / 100.0)
}

/// Best of a few runs, in seconds.
fn best(runs: usize, mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

fn gemm_gflops(isa: Isa) -> f64 {
    let n = 512;
    let (a, b) = (vec![1f32; n * n], vec![1f32; n * n]);
    let mut c = vec![0f32; n * n];
    let mut packed = PackedB::default();
    let seconds = best(5, || {
        let (a, b) = (Mat::new(&a, n, n, n), Mat::new(&b, n, n, n));
        gemm_f32(isa, 1.0, a, b, Store::Replace, MatMut::new(&mut c, n, n, n), &mut packed);
    });
    2.0 * (n * n * n) as f64 / seconds / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let only = std::env::args().nth(2).unwrap_or_default();
    let device = device::open(BackendKind::Cpu)?;
    let threads = device.capabilities().threads;
    for isa in &device.capabilities().isas {
        println!("gemm f32 512 {isa}: {:.0} GFLOP/s on one thread", gemm_gflops(*isa));
    }
    for (name, batch, tq, tk, heads, kv_heads, d, dv) in [
        ("prefill 2k G16", 1, 2048, 2048, 16, 1, 128, 128),
        ("prefill 8k G16", 1, 8192, 8192, 16, 1, 128, 128),
        ("prefill 8k G4", 1, 8192, 8192, 8, 2, 128, 128),
        ("prefill 8k G1", 1, 8192, 8192, 2, 2, 128, 128),
        ("prefill 8k G64", 1, 8192, 8192, 64, 1, 64, 64),
        ("prefill 32k G16", 1, 32768, 32768, 16, 1, 128, 128),
        ("decode 8k G16", 4, 1, 8192, 64, 4, 128, 128),
        ("decode 64k G16", 1, 1, 65536, 64, 4, 128, 128),
    ] {
        if !name.contains(&filter) {
            continue;
        }
        for dtype in [DType::F32, DType::Bf16] {
            let mut seed = 1;
            let mut tensors = TensorMap::new();
            for (name, shape) in [
                ("q", vec![batch, tq, heads, d]),
                ("k", vec![batch, tk, kv_heads, d]),
                ("v", vec![batch, tk, kv_heads, dv]),
                ("g_cmp", vec![batch, tq, heads]),
                ("g_slc", vec![batch, tq, heads]),
                ("g_swa", vec![batch, tq, heads]),
            ] {
                tensors.insert(name.into(), random(&shape, &mut seed, dtype));
            }
            if tk <= 8192 && tq > 1 {
                let dense = ["q", "k", "v"].map(|name| (name.to_owned(), tensors[name].clone()));
                let dense = TensorMap::from(dense);
                let call = AttentionOp.bind(&dense, &Settings::new().with("causal", true))?;
                let variant = call.select(&device, None)?.chosen;
                let mut execution = call.prepare(&device, variant)?;
                let before = processor_seconds();
                let seconds = best(1, || execution.launch().expect("the processor launches"));
                let busy =
                    processor_seconds().zip(before).map_or(f64::NAN, |(end, start)| end - start);
                println!(
                    "{name} {dtype} dense causal attention {variant}: {:.1} ms, {busy:.2} core-seconds",
                    seconds * 1e3,
                );
            }
            let call = NsaOp.bind(&tensors, &Settings::new())?;
            for (variant, _) in NsaOp.variants() {
                if variant.ends_with("portable")
                    || !variant.contains(&only)
                    || call.select(&device, Some(variant)).is_err()
                {
                    continue;
                }
                let mut execution = call.prepare(&device, variant)?;
                execution.launch()?;
                let runs = if tq > 1 { 2 } else { 10 };
                let before = processor_seconds();
                let seconds = best(runs, || execution.launch().expect("the processor launches"));
                let busy =
                    processor_seconds().zip(before).map_or(f64::NAN, |(end, start)| end - start);
                let busy = busy / runs as f64;
                let reads = execution.outputs()?["reads"].to_f64();
                let per_query: f64 = reads.iter().sum::<f64>() / (batch * tq * kv_heads) as f64;
                let dense: f64 = (0..tq).map(|i| (tk - tq + i + 1) as f64).sum::<f64>() / tq as f64;
                println!(
                    "{name} {dtype} {variant}: {:.1} ms, {busy:.2} core-seconds, {:.0} GFLOP/s on {threads} threads, {:.0} per core, {:.1} GB/s, reads {:.0} of {:.0} keys ({:.3})",
                    seconds * 1e3,
                    call.problem().flops() / seconds / 1e9,
                    call.problem().flops() / busy / 1e9,
                    call.problem().bytes() / seconds / 1e9,
                    per_query,
                    dense,
                    per_query / dense,
                );
            }
        }
    }
    Ok(())
}
