//! Host time of a prompt's chunk on a GPU: what binding, choosing, planning and launching take, on a stand-in for the driver
//! that computes nothing. Processor time of the thread, so that a busy machine does not disturb it.
//!
//! ```text
//! cc -shared -fPIC -D_GNU_SOURCE -o DIR/libcuda.so.1 crates/verify/tests/stand_in/cuda.c
//! FAKE_CUDA_COMPUTE=90 FAKE_CUDA_NO_COPIES=1 LD_LIBRARY_PATH=DIR FIRSTLIGHT_NVRTC=DIR/libcuda.so.1 FIRSTLIGHT_CACHE=DIR \
//!     cargo run --release -p models --example time_planning -- granite-4.0-h-micro 512 1000
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program to be read by a developer.

use facts::BackendKind;
use models::{Batch, Capacity, LogitsSelection, Model, Storage, open, shape};

/// Microseconds that this thread has run.
fn micros() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e3
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let name = arguments.first().map_or("granite-hybrid-mini", String::as_str);
    let number =
        |at: usize, default| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let (tokens, repeats) = (number(1, 512), number(2, 50));
    let model = Model::random(&shape(name).unwrap(), 1).unwrap();
    let device = backends::open(BackendKind::Cuda).unwrap();
    let capacity = Capacity { sequences: 2, tokens: 4 * tokens };
    let mut engine = open(model, device, Storage::Bf16, capacity).unwrap();
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 7 % 512).collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..repeats {
        for times in &mut times {
            let batch = Batch::new().with(0, &ids);
            let start = micros();
            engine.step(&batch, LogitsSelection::Last).unwrap();
            times.push(micros() - start);
        }
        engine.reset(0);
    }
    for (what, times) in ["first chunk", "second chunk"].into_iter().zip(&times) {
        // Some systems count a thread's time in ticks, so one chunk's time is the mean of many.
        let (first, rest) = times.split_first().unwrap();
        let mean = rest.iter().sum::<f64>() / rest.len() as f64;
        println!(
            "{name}, {tokens} tokens, {what}: {first:.0} us at first, then {mean:.0} on average"
        );
    }
}
