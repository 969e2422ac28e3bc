//! Measured ceilings of a GPU: device-to-device copy by the driver, and read rate and bf16 GEMM by cuBLASLt if it is installed.

use crate::gpu;
use device::Device;
use device::cuda::{Buffer, Cublas, Cuda, DeviceError};
use facts::{BackendKind, Ceilings, GemmCeilings};
use half::bf16;
use rayon::prelude::*;

/// Repeats work that returns its time in milliseconds, and returns the shortest one.
pub type Sampler<'a> =
    &'a dyn Fn(&mut dyn FnMut() -> Result<f64, DeviceError>) -> Result<f64, DeviceError>;

/// Bytes of each of the two copied buffers: many times any L2.
const COPY_BYTES: usize = 2 << 30;
/// M, N and K of the GEMM.
const GEMM: usize = 8192;

/// Measures the rates of copies (GB/s), of reads (GB/s) and of a bf16 GEMM (GFLOP/s).
///
/// # Errors
/// [`DeviceError`] when the device is not an NVIDIA GPU, or when the driver fails.
pub fn ceilings(device: &Device, fastest: Sampler<'_>) -> Result<Ceilings, DeviceError> {
    let cuda = gpu(device)?;
    let copy_gbps = copy(cuda, fastest)?;
    let (bf16, gemm_by) = gemm(cuda, fastest)?.unzip();
    Ok(Ceilings {
        backend: BackendKind::Cuda,
        copy_gbps,
        gemm_gflops: GemmCeilings { f32: None, bf16 },
        // Reading alone is at least as fast as reading and writing.
        read_gbps: read(cuda, fastest).map(|rate| rate.max(copy_gbps)),
        gemm_by,
        raised: Vec::new(),
    })
}

/// Milliseconds of the work that `work` enqueues on the stream.
fn timed(cuda: &Cuda, work: impl Fn() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
    let begin = cuda.stream().record()?;
    work()?;
    let end = cuda.stream().record()?;
    begin.millis_until(&end)
}

/// GB/s of a copy within device memory, bytes read plus written.
fn copy(cuda: &Cuda, fastest: Sampler<'_>) -> Result<f64, DeviceError> {
    let stream = cuda.stream();
    let (from, to) = (stream.allocate(COPY_BYTES)?, stream.allocate(COPY_BYTES)?);
    stream.fill32(&from, 0x3f9d_70a4)?;
    stream.fill32(&to, u32::MAX)?;
    let millis = fastest(&mut || timed(cuda, || stream.copy(&from, &to, COPY_BYTES)))?;
    let mut back = vec![0; COPY_BYTES];
    stream.read(&to, &mut back)?;
    let right = back.par_chunks(4).all(|word| word == 0x3f9d_70a4_u32.to_ne_bytes());
    assert!(right, "the copy ceiling copied wrongly");
    Ok(2.0 * COPY_BYTES as f64 / millis / 1e6)
}

/// M, N and K of a GEMM that mostly reads a matrix of 2 GiB.
const READ: [usize; 3] = [8, 1 << 17, 1 << 13];

/// GB/s read by a cuBLASLt GEMM of a few rows; `None` without the library, or if it fails.
fn read(cuda: &Cuda, fastest: Sampler<'_>) -> Option<f64> {
    let blas = Cublas::find(cuda, READ).ok().flatten()?;
    let [m, n, k] = READ;
    let stream = cuda.stream();
    let (a, b) = (stream.allocate(2 * m * k).ok()?, stream.allocate(2 * n * k).ok()?);
    let c = stream.allocate(2 * m * n).ok()?;
    // Each sum is k times 1 / k.
    stream.fill16(&a, bf16::from_f32(1.0 / k as f32).to_bits()).ok()?;
    stream.fill16(&b, bf16::ONE.to_bits()).ok()?;
    stream.fill16(&c, bf16::NAN.to_bits()).ok()?;
    let millis = fastest(&mut || timed(cuda, || blas.product(stream, [&a, &b, &c]))).ok()?;
    let mut bytes = vec![0; 2 * m * n];
    stream.read(&c, &mut bytes).ok()?;
    let one = bf16::ONE.to_ne_bytes();
    assert!(bytes.chunks(2).all(|value| value == one), "the read ceiling computed wrongly");
    Some((2 * n * k) as f64 / millis / 1e6)
}

/// GFLOP/s of a bf16 GEMM, and its library; `None` without the library.
fn gemm(cuda: &Cuda, fastest: Sampler<'_>) -> Result<Option<(f64, String)>, DeviceError> {
    let Some(blas) = Cublas::find(cuda, [GEMM; 3])? else { return Ok(None) };
    let stream = cuda.stream();
    // Random values: tensor cores draw less power on regular ones and run faster than on any real data.
    let random = |seed: u64| {
        let value = |i: usize| {
            let mut bits = (i as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bits = (bits ^ (bits >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            bf16::from_f32((bits >> 40) as f32 / (1 << 24) as f32 - 0.5)
        };
        (0..GEMM * GEMM).into_par_iter().map(value).collect::<Vec<bf16>>()
    };
    let (a, b) = (random(1), random(2 << 32));
    let upload = |values: &[bf16]| {
        let bytes: Vec<u8> = values.par_iter().flat_map_iter(|x| x.to_ne_bytes()).collect();
        stream.upload(&bytes)
    };
    let (a_there, b_there) = (upload(&a)?, upload(&b)?);
    let c_there = stream.allocate(2 * GEMM * GEMM)?;
    stream.fill16(&c_there, bf16::NAN.to_bits())?;
    let millis =
        fastest(&mut || timed(cuda, || blas.product(stream, [&a_there, &b_there, &c_there])))?;
    check(cuda, [&a, &b], &c_there)?;
    let rate = 2.0 * (GEMM as f64).powi(3) / millis / 1e6;
    Ok(Some((rate, format!("cuBLASLt, {}", blas.path().display()))))
}

/// A ceiling is a speed too: sampled elements of the product must be correct, otherwise there is no ceiling.
fn check(cuda: &Cuda, [a, b]: [&[bf16]; 2], product: &Buffer) -> Result<(), DeviceError> {
    let mut bytes = vec![0; 2 * GEMM * GEMM];
    cuda.stream().read(product, &mut bytes)?;
    for i in (0..GEMM).step_by(257) {
        for j in (0..GEMM).step_by(1021) {
            let row = |matrix: &[bf16], at: usize| matrix[at * GEMM..][..GEMM].to_vec();
            let terms = row(a, i).into_iter().zip(row(b, j)).map(|(a, b)| a.to_f64() * b.to_f64());
            let at = 2 * (i * GEMM + j);
            let got = bf16::from_ne_bytes([bytes[at], bytes[at + 1]]).to_f64();
            let want: f64 = terms.sum();
            // Sums are about 8: half a unit in the last place of bf16, plus the error of another summation order.
            let allowed = want.abs() / 256.0 + 1e-2;
            assert!(
                (want - got).abs() < allowed,
                "the matrix product ceiling is wrong at ({i}, {j}): {got}, expected {want}"
            );
        }
    }
    Ok(())
}
