//! Ceilings of a GPU: the driver's own copy, and the vendor's matrix product where the machine has it.

use crate::timing::sample;
use device::cuda::{Buffer, Cublas, Cuda, CudaError};
use facts::{BackendKind, Ceilings, GemmCeilings};
use half::bf16;
use rayon::prelude::*;
use std::time::Duration;

/// Bytes of each of the two copied buffers: many times any L2 cache.
const COPY_BYTES: usize = 2 << 30;
/// Rows and columns of the square product.
const GEMM: usize = 8192;

pub(super) fn ceilings(cuda: &Cuda, budget: Duration) -> Result<Ceilings, CudaError> {
    let copy_gbps = copy(cuda, budget)?;
    let (bf16, gemm_by) = gemm(cuda, budget)?.unzip();
    Ok(Ceilings {
        backend: BackendKind::Cuda,
        copy_gbps,
        gemm_gflops: GemmCeilings { f32: None, bf16 },
        // What reads and does not write is at least as fast as what does both.
        read_gbps: read(cuda, budget).map(|rate| rate.max(copy_gbps)),
        gemm_by,
        raised: Vec::new(),
    })
}

/// Milliseconds of what `work` gives to the stream.
fn timed(cuda: &Cuda, work: impl Fn() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    let begin = cuda.stream().record()?;
    work()?;
    let end = cuda.stream().record()?;
    begin.millis_until(&end)
}

/// Bytes read plus bytes written per second of a copy within the GPU's memory.
fn copy(cuda: &Cuda, budget: Duration) -> Result<f64, CudaError> {
    let stream = cuda.stream();
    let (from, to) = (stream.allocate(COPY_BYTES)?, stream.allocate(COPY_BYTES)?);
    stream.fill32(&from, 0x3f9d_70a4)?;
    stream.fill32(&to, u32::MAX)?;
    let samples = sample(budget, || timed(cuda, || stream.copy(&from, &to, COPY_BYTES)))?;
    let mut back = vec![0; COPY_BYTES];
    stream.read(&to, &mut back)?;
    let right = back.par_chunks(4).all(|word| word == 0x3f9d_70a4_u32.to_ne_bytes());
    assert!(right, "the copy ceiling copied wrongly");
    Ok(2.0 * COPY_BYTES as f64 / samples.fastest() / 1e6)
}

/// Rows of a product that reads a matrix of 2 GiB and does little else.
const READ: [usize; 3] = [8, 1 << 17, 1 << 13];

/// Bytes read per second by the vendor's product of a few rows; `None` where the machine has no such library, or it refuses.
fn read(cuda: &Cuda, budget: Duration) -> Option<f64> {
    let blas = Cublas::find(cuda, READ).ok().flatten()?;
    let [m, n, k] = READ;
    let stream = cuda.stream();
    let (a, b) = (stream.allocate(2 * m * k).ok()?, stream.allocate(2 * n * k).ok()?);
    let c = stream.allocate(2 * m * n).ok()?;
    // Each sum is k times 1 / k.
    stream.fill16(&a, bf16::from_f32(1.0 / k as f32).to_bits()).ok()?;
    stream.fill16(&b, bf16::ONE.to_bits()).ok()?;
    stream.fill16(&c, bf16::NAN.to_bits()).ok()?;
    let samples = sample(budget, || timed(cuda, || blas.product(stream, [&a, &b, &c]))).ok()?;
    let mut bytes = vec![0; 2 * m * n];
    stream.read(&c, &mut bytes).ok()?;
    let one = bf16::ONE.to_ne_bytes();
    assert!(bytes.chunks(2).all(|value| value == one), "the read ceiling computed wrongly");
    Some((2 * n * k) as f64 / samples.fastest() / 1e6)
}

/// 1e9 operations per second of a bf16 product, and whose; `None` where the machine has no such library.
fn gemm(cuda: &Cuda, budget: Duration) -> Result<Option<(f64, String)>, CudaError> {
    let Some(blas) = Cublas::find(cuda, [GEMM; 3])? else { return Ok(None) };
    let stream = cuda.stream();
    // Random values: the multipliers draw less power on regular ones, and run faster than on any real data.
    let drawn = |seed: u64| {
        let value = |i: usize| {
            let mut bits = (i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bits = (bits ^ (bits >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bf16::from_f32((bits >> 40) as f32 / (1 << 24) as f32 - 0.5)
        };
        (0..GEMM * GEMM).into_par_iter().map(value).collect::<Vec<bf16>>()
    };
    let (a, b) = (drawn(1), drawn(2 << 32));
    let upload = |values: &[bf16]| {
        let bytes: Vec<u8> = values.par_iter().flat_map_iter(|x| x.to_ne_bytes()).collect();
        stream.upload(&bytes)
    };
    let (a_there, b_there) = (upload(&a)?, upload(&b)?);
    let c_there = stream.allocate(2 * GEMM * GEMM)?;
    stream.fill16(&c_there, bf16::NAN.to_bits())?;
    let samples =
        sample(budget, || timed(cuda, || blas.product(stream, [&a_there, &b_there, &c_there])))?;
    check(cuda, [&a, &b], &c_there)?;
    let rate = 2.0 * (GEMM as f64).powi(3) / samples.fastest() / 1e6;
    Ok(Some((rate, format!("cuBLASLt, {}", blas.path().display()))))
}

/// A ceiling is a speed too: sampled elements of the product must be right, or there is no ceiling.
fn check(cuda: &Cuda, [a, b]: [&[bf16]; 2], product: &Buffer) -> Result<(), CudaError> {
    let mut bytes = vec![0; 2 * GEMM * GEMM];
    cuda.stream().read(product, &mut bytes)?;
    for i in (0..GEMM).step_by(257) {
        for j in (0..GEMM).step_by(1021) {
            let row = |matrix: &[bf16], at: usize| matrix[at * GEMM..][..GEMM].to_vec();
            let terms = row(a, i).into_iter().zip(row(b, j)).map(|(a, b)| a.to_f64() * b.to_f64());
            let at = 2 * (i * GEMM + j);
            let got = bf16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f64();
            let want: f64 = terms.sum();
            // Sums are about 8 in size: half a unit in the last place of bf16, and the order of the sums.
            let allowed = want.abs() / 256.0 + 1e-2;
            assert!(
                (want - got).abs() < allowed,
                "the matrix product ceiling is wrong at ({i}, {j}): {got}, wanted {want}"
            );
        }
    }
    Ok(())
}
