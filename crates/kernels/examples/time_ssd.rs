//! Rough times of ssd: decode against the copy bandwidth, chunks against the float64 recurrence. Medians of a few
//! runs; `firstlight bench` is the place for figures to keep.
#![allow(clippy::print_stdout)] // Printing them is what it is for.

use device::Device;
use facts::BackendKind;
use kernels::ssd::SsdOp;
use kernels::{DType, Op, Settings, Tensor, TensorMap};
use std::hint::black_box;
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

/// Bytes per second of a copy by all threads, read and written bytes both counted.
fn copy_bandwidth(device: &Device) -> f64 {
    let from = vec![1f32; 32 << 20];
    let mut to = vec![0f32; 32 << 20];
    let per_copy = seconds(5, || {
        rayon::scope(|scope| {
            let part = from.len() / device.capabilities().threads;
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                scope.spawn(move |_| to.copy_from_slice(black_box(from)));
            }
        });
    });
    2.0 * size_of_val(&from[..]) as f64 / per_copy
}

fn tensor(shape: &[usize], dtype: DType, seed: u32) -> Tensor {
    let mut x = seed;
    let values = (0..shape.iter().product()).map(|_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 8) as f32 / (1 << 23) as f32 - 1.0
    });
    let values: Vec<f32> = values.collect();
    match dtype {
        DType::F32 => Tensor::new(shape, values),
        _ => Tensor::new(shape, values).cast(dtype),
    }
}

struct Shape {
    b: usize,
    t: usize,
    h: usize,
    g: usize,
    p: usize,
    n: usize,
}

fn call(shape: &Shape, dtype: DType, state: bool) -> TensorMap {
    let &Shape { b, t, h, g, p, n } = shape;
    let mut tensors = TensorMap::new();
    let mut put = |name: &str, tensor: Tensor| drop(tensors.insert(name.to_owned(), tensor));
    put("x", tensor(&[b, t, h, p], dtype, 1));
    put("dt", tensor(&[b, t, h], dtype, 2));
    put("A", Tensor::new(&[h], vec![-0.5f32; h]));
    put("B", tensor(&[b, t, g, n], dtype, 3));
    put("C", tensor(&[b, t, g, n], dtype, 4));
    put("D", tensor(&[h], DType::F32, 5));
    put("z", tensor(&[b, t, h, p], dtype, 6));
    if state {
        put("initial_state", tensor(&[b, h, p, n], DType::F32, 7));
    }
    tensors
}

fn main() {
    let device = device::open(BackendKind::Cpu).unwrap_or_else(|error| panic!("{error}"));
    let copy = copy_bandwidth(&device);
    println!("threads {}, copy {:.1} GB/s", device.capabilities().threads, copy / 1e9);
    let filter = std::env::args().nth(1).unwrap_or_default();
    let shapes = [
        ("decode", Shape { b: 64, t: 1, h: 64, g: 1, p: 64, n: 128 }, true),
        ("decode", Shape { b: 1, t: 1, h: 64, g: 1, p: 64, n: 128 }, true),
        ("short", Shape { b: 1, t: 8, h: 64, g: 1, p: 64, n: 128 }, true),
        ("short", Shape { b: 1, t: 16, h: 64, g: 1, p: 64, n: 128 }, true),
        ("short", Shape { b: 1, t: 32, h: 64, g: 1, p: 64, n: 128 }, true),
        ("short", Shape { b: 1, t: 64, h: 64, g: 1, p: 64, n: 128 }, true),
        ("prefill", Shape { b: 1, t: 2048, h: 8, g: 1, p: 64, n: 128 }, false),
        ("prefill", Shape { b: 1, t: 2048, h: 16, g: 1, p: 64, n: 128 }, false),
        ("prefill", Shape { b: 1, t: 2048, h: 16, g: 16, p: 64, n: 128 }, false),
    ];
    for (name, shape, state) in shapes.iter().filter(|(name, ..)| name.contains(&filter)) {
        let Shape { b, t, h, g, p, n } = shape;
        println!("{name} B{b} T{t} H{h} G{g} P{p} N{n}");
        for dtype in [DType::F32, DType::Bf16] {
            let tensors = call(shape, dtype, *state);
            let call = match SsdOp.bind(&tensors, &Settings::new()) {
                Ok(call) => call,
                Err(error) => panic!("{error}"),
            };
            let (flops, bytes) = (call.problem().flops(), call.problem().bytes());
            if dtype == DType::F32 && *t > 1 {
                let time = seconds(1, || drop(black_box(call.reference())));
                println!("  f64 reference        {:9.3} ms", time * 1e3);
            }
            for (variant, _) in SsdOp.variants() {
                let Ok(mut execution) = call.prepare(&device, variant) else { continue };
                let time = seconds(7, || execution.launch().expect("the processor launches"));
                println!(
                    "  {dtype:4} {variant:20} {:9.3} ms {:7.1} GFLOP/s {:6.1} GB/s ({:.0} % of copy)",
                    time * 1e3,
                    flops / time / 1e9,
                    bytes / time / 1e9,
                    100.0 * bytes / time / copy,
                );
            }
        }
    }
}
