//! Measures the machine's ceilings (roofline): memory copies, reads and dense GEMMs on all cores. A ceiling is the fastest of
//! its samples, because a disturbance that slows a sample down is not a limit of the machine; a kernel's time is its median.

use crate::timing::{repeat, sample};
use device::{CacheSizes, Device, DeviceError, HostBuffer, Isa};
use facts::{BackendKind, Ceilings, GemmCeilings};
use half::bf16;
use ops_cpu::copy::{copy_parallel, negate_parallel, read_parallel};
use ops_cpu::gemm::{
    Block, gemm_bf16_blocks, gemm_bf16_parallel, gemm_f32_blocks, gemm_f32_parallel,
};
use std::time::{Duration, Instant};

/// Minimum bytes of both buffers of a copy together; more on machines with large caches.
const COPY_BYTES: usize = 512 << 20;
/// Maximum number of copied buffer pairs.
const COPY_BUFFERS: u32 = 3;
/// M, N and K of the GEMM.
const GEMM: usize = 2048;
/// Products of cached blocks per thread and sample, which take several milliseconds.
const REPEATS: usize = 96;

/// Measures all ceilings. `budget` is the time for each, after warm-up.
///
/// # Errors
/// A GPU's error; never on the CPU.
pub fn ceilings(device: &Device, budget: Duration) -> Result<Ceilings, DeviceError> {
    if device.capabilities().backend == BackendKind::Cuda {
        return ops_cuda::ceilings(device, &|work| Ok(sample(budget, work)?.fastest()));
    }
    let gemm_gflops = gemm(device, budget);
    let (copy_gbps, read_gbps) = memory(device, budget);
    Ok(Ceilings {
        backend: BackendKind::Cpu,
        copy_gbps,
        gemm_gflops,
        read_gbps: Some(read_gbps),
        gemm_by: None,
        raised: Vec::new(),
    })
}

/// Bandwidths in 1e9 bytes per second. The first counts bytes read plus written when every core copies its share of a large
/// buffer or updates it in place, whichever is faster; the second counts bytes read. Several pairs of buffers are used,
/// because the system may or may not have huge pages for one, which double the speed; fewer if they take more than twice the budget.
fn memory(device: &Device, budget: Duration) -> (f64, f64) {
    let bytes = CacheSizes::of(device).exceeding(COPY_BYTES) / 2;
    let len = bytes / size_of::<f32>();
    let each = budget / (2 * COPY_BUFFERS);
    let (mut written, mut read) = (f64::INFINITY, f64::INFINITY);
    let start = Instant::now();
    for pair in 0..COPY_BUFFERS {
        if pair > 0 && start.elapsed() > 2 * budget {
            break;
        }
        // Allocated in the same way as tensors.
        let from = HostBuffer::filled(1f32, len);
        let mut to = HostBuffer::filled(0f32, len);
        let copies = repeat(each, || copy_parallel(device, &from, &mut to));
        assert!(to == from, "the copy ceiling copied wrongly");
        let in_place = repeat(each / 2, || negate_parallel(device, &mut to));
        assert!(to.iter().all(|value| value.abs() == 1.0), "the copy ceiling changed wrongly");
        written = written.min(copies.fastest()).min(in_place.fastest());
        let reads = repeat(each / 2, || {
            // Alternating, so that neither is cached. Sums of 2^24 ones and more do not grow; each share has at least
            // as many.
            let sums = [&from, &to].map(|buffer| read_parallel(device, buffer).abs());
            assert!(sums.iter().all(|sum| *sum >= 1e7), "the read ceiling read wrongly");
        });
        read = read.min(reads.fastest());
    }
    let both = 2.0 * bytes as f64 / 1e6;
    (both / written, both / read)
}

fn gemm(device: &Device, budget: Duration) -> GemmCeilings {
    let values: Vec<f32> =
        (0..GEMM * GEMM).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 512.0).collect();
    let flops = 2.0 * (GEMM as f64).powi(3);
    let mut product = vec![f32::NAN; GEMM * GEMM];
    let [rows, columns, depth] = Block::SIZES;
    let mut blocks = vec![f32::NAN; device.capabilities().threads * rows * columns];
    let block_flops = Block::flops() * (device.capabilities().threads * REPEATS) as f64;
    let (a, b) = (&values[..rows * depth], &values[..depth * columns]);
    let half_budget = budget / 2;
    let widest = device.capabilities().isas.iter().copied().find(|isa| *isa != Isa::Avx512Bf16);
    let f32_rate = widest.map(|isa| {
        let sizes = [GEMM, GEMM, GEMM];
        let samples = repeat(half_budget, || {
            gemm_f32_parallel(device, isa, sizes, &values, &values, &mut product)
        });
        check(&values, &product);
        let each =
            repeat(half_budget, || gemm_f32_blocks(device, isa, REPEATS, (a, b), &mut blocks));
        check_blocks(&values, &blocks);
        (flops / samples.fastest()).max(block_flops / each.fastest()) / 1e6
    });
    let bf16_rate = device.capabilities().isas.contains(&Isa::Avx512Bf16).then(|| {
        let half: Vec<bf16> = values.iter().map(|x| bf16::from_f32(*x)).collect();
        let rounded: Vec<f32> = half.iter().map(|x| x.to_f32()).collect();
        product.fill(f32::NAN);
        let sizes = [GEMM, GEMM, GEMM];
        let samples =
            repeat(half_budget, || gemm_bf16_parallel(device, sizes, &half, &half, &mut product));
        check(&rounded, &product);
        blocks.fill(f32::NAN);
        let (a, b) = (&half[..rows * depth], &half[..depth * columns]);
        let each = repeat(half_budget, || gemm_bf16_blocks(device, REPEATS, (a, b), &mut blocks));
        check_blocks(&rounded, &blocks);
        (flops / samples.fastest()).max(block_flops / each.fastest()) / 1e6
    });
    GemmCeilings { f32: f32_rate, bf16: bf16_rate }
}

/// [`check`] for the blocks of all threads, given the values that A and B start with.
fn check_blocks(values: &[f32], blocks: &[f32]) {
    let [rows, columns, depth] = Block::SIZES;
    for (thread, block) in blocks.chunks(rows * columns).enumerate() {
        for (i, j) in [(0, 0), (rows / 2, columns - 1), (rows - 1, columns / 3)] {
            let terms = (0..depth)
                .map(|k| f64::from(values[i * depth + k]) * f64::from(values[k * columns + j]));
            let (want, got) = (terms.sum::<f64>(), f64::from(block[i * columns + j]));
            assert!(
                (want - got).abs() < 1e-2,
                "the matrix product ceiling is wrong on thread {thread} at ({i}, {j}): {got}, expected {want}"
            );
        }
    }
}

/// Checks sampled elements of the product: as with kernels, only a correct result may set a ceiling.
fn check(values: &[f32], product: &[f32]) {
    for i in (0..GEMM).step_by(257) {
        for j in (0..GEMM).step_by(263) {
            let terms = (0..GEMM)
                .map(|k| f64::from(values[i * GEMM + k]) * f64::from(values[k * GEMM + j]));
            let (want, got) = (terms.sum::<f64>(), f64::from(product[i * GEMM + j]));
            assert!(
                (want - got).abs() < 1e-2,
                "the matrix product ceiling is wrong at ({i}, {j}): {got}, expected {want}"
            );
        }
    }
}
