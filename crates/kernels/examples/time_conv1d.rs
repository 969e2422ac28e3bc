//! Rough times of conv1d against the copy bandwidth. Medians of a few runs; `firstlight bench` is the place for
//! figures to keep.
#![allow(clippy::print_stdout)] // Printing them is what it is for.

use device::Device;
use facts::BackendKind;
use kernels::conv1d::Conv1dOp;
use kernels::cpu::copy::copy_parallel;
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

/// Bytes per second of a copy by all threads, read and written bytes both counted.
fn copy_bandwidth(device: &Device) -> f64 {
    let from = vec![1f32; 32 << 20];
    let mut to = vec![0f32; 32 << 20];
    2.0 * size_of_val(&from[..]) as f64 / seconds(5, || copy_parallel(device, &from, &mut to))
}

fn main() {
    let device = device::open(BackendKind::Cpu).unwrap_or_else(|error| panic!("{error}"));
    let copy = copy_bandwidth(&device);
    println!("threads {}, copy {:.1} GB/s", device.capabilities().threads, copy / 1e9);
    let ramp = |shape: &[usize], dtype: DType| {
        let len: usize = shape.iter().product();
        Tensor::new(shape, (0..len).map(|i| (i % 37) as f32 / 37.0).collect::<Vec<_>>()).cast(dtype)
    };
    for (b, t, first, update) in [
        (1, 8192, false, false),
        (1, 8192, true, false),
        (256, 1, false, true),
        (1, 1, false, true),
    ] {
        let c = 4352;
        for dtype in [DType::F32, DType::Bf16] {
            for activation in ["none", "silu"] {
                let shape = if first { [b, c, t] } else { [b, t, c] };
                let mut tensors = TensorMap::new();
                tensors.insert("x".into(), ramp(&shape, dtype));
                tensors.insert("weight".into(), ramp(&[c, 4], dtype));
                tensors.insert("bias".into(), ramp(&[c], dtype));
                if update {
                    tensors.insert("initial_state".into(), ramp(&[b, c, 3], DType::F32));
                }
                let layout = if first { "channel_first" } else { "channel_last" };
                let settings =
                    Settings::new().with("activation", activation).with("layout", layout);
                let call = match Conv1dOp.bind(&tensors, &settings) {
                    Ok(call) => call,
                    Err(error) => panic!("{error}"),
                };
                println!("B{b} T{t} C{c} {dtype} {layout} {activation}");
                for (variant, _) in Conv1dOp.variants() {
                    let Ok(mut execution) = call.prepare(&device, variant) else { continue };
                    let time = seconds(7, || execution.launch().expect("the processor launches"));
                    let rate = call.problem().bytes() / time;
                    println!(
                        "  {variant:16} {:9.3} ms {:6.1} GB/s ({:.0} % of copy)",
                        time * 1e3,
                        rate / 1e9,
                        100.0 * rate / copy
                    );
                }
            }
        }
    }
}
