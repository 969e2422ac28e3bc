//! The gradient, a row at a time in float32. Means, and differences of terms that nearly cancel, are float64.
//!
//! Gradients of weights are summed over a block's rows, then over blocks in order. Blocks depend only on the problem, and so do the results.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint parts of the outputs.

use crate::aligned::Aligned;
use crate::floats::store;
use crate::simd::{Simd, SimdKernel, dispatch, math};
use crate::stored::{Stored, StoredMut};
use crate::vectors::{dots_wide, pad, padded};
use device::{Device, Isa, SharedMut};
use ops::rmsnorm::{Activation, RmsNormProblem};
use ops::{GradientProblem, Inputs, Tensor, TensorMap, floats};
use std::ops::Range;

/// Blocks at most, so that their sums of weight gradients are small, and values of a block at least.
const BLOCKS: usize = 128;
const VALUES: usize = 8 * 1024;

/// The tensors of one call.
struct Operands<'a> {
    problem: &'a RmsNormProblem,
    /// `[rows, D]`, as are all others without a shape here.
    x: Stored<'a>,
    gate: Option<Stored<'a>>,
    d_o: Stored<'a>,
    /// `[1, padded D]` or `[G, padded D]`; ones without a weight.
    weight: Vec<f32>,
    /// `[padded D]`.
    ones: Vec<f32>,
    dx: StoredMut<'a>,
    dgate: Option<StoredMut<'a>>,
    /// Each block's sum over its rows, `[blocks, 1 or G, D]`.
    dweight: SharedMut<'a, f64>,
    /// Elements of a block's sum; 0 without a weight.
    weights: usize,
}

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run(
    isa: Isa,
    kernel: &str,
    problem: &GradientProblem<RmsNormProblem>,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let problem = &problem.forward;
    let (rows, channels) = (problem.rows(), problem.channels);
    let per_block = rows.div_ceil(BLOCKS).max(VALUES / channels.max(1)).max(1);
    let grid = rows.div_ceil(per_block);
    let weights = inputs.get("weight").map_or(0, Tensor::len);
    let mut sums = vec![0f64; grid * weights];
    let ones = vec![1f32; padded(channels)];
    let (mut dx, mut dgate, mut dweight) = (None, None, None);
    for (name, tensor) in outputs.iter_mut() {
        match name.as_str() {
            "dx" => dx = Some(StoredMut::new(tensor)),
            "dgate" => dgate = Some(StoredMut::new(tensor)),
            _ => dweight = Some(tensor),
        }
    }
    let Some(dx) = dx else { return };
    let operands = Operands {
        problem,
        x: Stored::new(inputs.tensor("x")),
        gate: inputs.get("gate").map(Stored::new),
        d_o: Stored::new(inputs.tensor("do")),
        weight: match inputs.get("weight") {
            Some(weight) => pad(&floats(weight), channels),
            None => ones.clone(),
        },
        ones,
        dx,
        dgate,
        dweight: SharedMut::new(&mut sums),
        weights,
    };
    device.launch(kernel, grid, Scratch::default, |scratch, block| {
        let rows = block * per_block..((block + 1) * per_block).min(rows);
        dispatch(isa, Block { operands: &operands, block, rows, scratch });
    });
    if let Some(dweight) = dweight {
        let mut total = vec![0f64; weights];
        for sum in sums.chunks(weights.max(1)) {
            total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum);
        }
        store(&total, dweight);
    }
}

/// Buffers of one thread, a row each.
#[derive(Default)]
struct Scratch {
    x: Aligned,
    d_o: Aligned,
    act: Aligned,
    slope: Aligned,
    z: Aligned,
    da: Aligned,
    t: Aligned,
}

struct Block<'a> {
    operands: &'a Operands<'a>,
    block: usize,
    rows: Range<usize>,
    scratch: &'a mut Scratch,
}

impl SimdKernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, block, rows, scratch } = self;
        let problem = operands.problem;
        let (channels, padded) = (problem.channels, padded(problem.channels));
        let Scratch { x, d_o, act, slope, z, da, t } = scratch;
        // Between a row's end and the buffer's, x and do are 0: they add nothing to a sum.
        let [x, d_o, act, slope] = [x, d_o, act, slope].map(|buffer| buffer.of_len(padded));
        let [z, da, t] = [z, da, t].map(|buffer| buffer.of_len(padded));
        let norm_first = problem.norm_before_gate;
        // SAFETY: this block alone has its sums.
        let sums = unsafe {
            operands.dweight.slice(block * operands.weights..(block + 1) * operands.weights)
        };
        for row in rows {
            let start = row * channels;
            operands.x.read(S::ISA, start, &mut x[..channels]);
            operands.d_o.read(S::ISA, start, &mut d_o[..channels]);
            let mut factor = &operands.ones[..];
            if let Some(gate) = operands.gate {
                gate.read(S::ISA, start, &mut act[..channels]);
                activate(simd, problem.gate, act, slope);
                factor = act;
            }
            let group = if problem.weight_per_group { row % problem.groups } else { 0 };
            let weight = &operands.weight[group * padded..(group + 1) * padded];
            let ones = &operands.ones[..];
            let [before, after] = if norm_first { [ones, factor] } else { [factor, ones] };
            // z is normalized; da is the gradient of the result without the weight, t that of the normalized row.
            for at in (0..padded).step_by(S::LANES) {
                // SAFETY: all rows are `padded` long, which is whole vectors.
                unsafe {
                    let gradient = simd.mul(vector(simd, d_o, at), vector(simd, after, at));
                    let normalized = simd.mul(vector(simd, x, at), vector(simd, before, at));
                    simd.store(z.as_mut_ptr().add(at), normalized);
                    simd.store(da.as_mut_ptr().add(at), gradient);
                    simd.store(
                        t.as_mut_ptr().add(at),
                        simd.mul(gradient, vector(simd, weight, at)),
                    );
                }
            }
            let [squares, products] = dots_wide(z, t).map(|sum| sum / channels as f64);
            let r = 1.0 / (squares + problem.eps).sqrt();
            if let Some(sums) = sums.chunks_mut(channels).nth(group) {
                for ((sum, da), z) in sums.iter_mut().zip(&*da).zip(&*z) {
                    *sum += f64::from(*da) * (r * f64::from(*z));
                }
            }
            let projection = simd.splat_wide(-r * r * r * products);
            let (wide_r, r) = (simd.splat_wide(r), simd.splat(r as f32));
            for at in (0..padded).step_by(S::LANES) {
                // SAFETY: as above.
                unsafe {
                    let [wide_z, wide_t] = [&*z, t].map(|row| simd.load_wide(row.as_ptr().add(at)));
                    let part = simd.fma_wide(projection, wide_z, simd.splat_wide(0.0));
                    let dz = simd.narrow_wide(simd.fma_wide(wide_r, wide_t, part));
                    // The gradient of a gate after the norm is do n w; do act w is not divided by act, which may be 0.
                    let [a, b] = if norm_first {
                        let weight = simd.mul(r, vector(simd, weight, at));
                        [vector(simd, d_o, at), simd.mul(vector(simd, z, at), weight)]
                    } else {
                        [vector(simd, x, at), dz]
                    };
                    let of_gate = simd.mul(simd.mul(a, b), vector(simd, slope, at));
                    simd.store(da.as_mut_ptr().add(at), of_gate);
                    simd.store(t.as_mut_ptr().add(at), simd.mul(dz, vector(simd, before, at)));
                }
            }
            // SAFETY: this block alone has this row.
            unsafe {
                operands.dx.write(S::ISA, start, &t[..channels]);
                if let Some(dgate) = &operands.dgate {
                    dgate.write(S::ISA, start, &da[..channels]);
                }
            }
        }
    }
}

/// The vector of a row from `at` on.
///
/// # Safety
/// The row must have it.
#[inline(always)]
unsafe fn vector<S: Simd>(simd: S, row: &[f32], at: usize) -> S::V {
    // SAFETY: the caller's contract.
    unsafe { simd.load(row.as_ptr().add(at)) }
}

/// Replaces gates by their activation, and writes its derivative. The slices are whole vectors.
#[inline(always)]
fn activate<S: Simd>(simd: S, kind: Option<Activation>, gate: &mut [f32], slope: &mut [f32]) {
    // An activation is a sigmoid times g or 1; its derivative is the sigmoid times 1 + g (1 - sigmoid) or 1 - sigmoid.
    let [g_factor, one] = match kind {
        Some(Activation::Sigmoid) => [0.0, 1.0],
        _ => [1.0, 0.0],
    };
    let [g_factor, one] = [g_factor, one].map(|value| simd.splat(value));
    for (gate, slope) in gate.chunks_exact_mut(S::LANES).zip(slope.chunks_exact_mut(S::LANES)) {
        // SAFETY: chunks are vectors.
        unsafe {
            let g = simd.load(gate.as_ptr());
            let [sigmoid, complement] = math::sigmoids(simd, g);
            let factor = simd.fma(g_factor, g, one);
            simd.store(gate.as_mut_ptr(), simd.mul(sigmoid, factor));
            let factor = simd.fma(factor, complement, g_factor);
            simd.store(slope.as_mut_ptr(), simd.mul(sigmoid, factor));
        }
    }
}
