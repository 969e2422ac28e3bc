//! Rates of the matrix product of this crate, one thread and all threads: `cargo run --release --example time_gemm`.
#![allow(clippy::print_stdout)] // An example prints.

use device::Isa;
use half::bf16;
use kernels::cpu::gemm::{gemm_bf16_parallel, gemm_f32_parallel};
use std::time::Instant;

fn best(n: usize, mut run: impl FnMut()) -> f64 {
    run();
    let fastest = (0..5).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    });
    2.0 * (n as f64).powi(3) / fastest.fold(f64::MAX, f64::min) / 1e9
}

fn main() {
    let device = device::open(facts::BackendKind::Cpu).expect("the processor is always there");
    for n in [512, 1024, 2048] {
        let a: Vec<f32> = (0..n * n).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 500.0).collect();
        let half: Vec<bf16> = a.iter().map(|x| bf16::from_f32(*x)).collect();
        let mut c = vec![0f32; n * n];
        for threads in [1, device.capabilities().threads] {
            let device = device.with_threads(threads);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_here() && *isa != Isa::Avx512Bf16) {
                let rate = best(n, || gemm_f32_parallel(&device, isa, [n, n, n], &a, &a, &mut c));
                println!("n {n} threads {threads} f32 {isa}: {rate:.1} GFLOP/s");
            }
            if Isa::Avx512Bf16.is_here() {
                let rate = best(n, || gemm_bf16_parallel(&device, [n, n, n], &half, &half, &mut c));
                println!("n {n} threads {threads} bf16: {rate:.1} GFLOP/s");
            }
        }
    }
}
