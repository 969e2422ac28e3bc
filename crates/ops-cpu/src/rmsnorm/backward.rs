//! The gradient, a row at a time. Means, and differences of terms that nearly cancel, are float64.
//!
//! Gradients of weights are summed over a block's rows, then over blocks in order. Blocks depend only on the problem, and so do the results.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint parts of the outputs.

use crate::aligned::Aligned;
use crate::floats::{narrow, store, widen};
use crate::simd::{Simd, SimdKernel, dispatch, math};
use crate::vectors::{dot_wide, multiply, pad, padded};
use device::{Device, Isa, SharedMut};
use half::{bf16, f16};
use ops::rmsnorm::{Activation, RmsNormProblem};
use ops::{DType, Element, GradientProblem, Inputs, TensorMap, elements, elements_mut, floats};
use std::ops::Range;

/// Blocks at most, so that their sums of weight gradients are small, and values of a block at least.
const BLOCKS: usize = 128;
const VALUES: usize = 8 * 1024;

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
    let launch = match (problem.x_dtype, problem.out) {
        (DType::Bf16, _) => launch::<bf16, bf16>,
        (DType::F16, _) => launch::<f16, f16>,
        (_, DType::Bf16) => launch::<f32, bf16>,
        (_, DType::F16) => launch::<f32, f16>,
        _ => launch::<f32, f32>,
    };
    launch(isa, kernel, problem, inputs, device, outputs);
}

/// The tensors of one call: x and gate of `E`, o of `O`.
struct Operands<'a, E, O> {
    problem: &'a RmsNormProblem,
    /// `[rows, D]`, as are all others without a shape here.
    x: &'a [E],
    gate: Option<&'a [E]>,
    d_o: &'a [O],
    /// `[1, padded D]` or `[G, padded D]`.
    weight: Option<Vec<f32>>,
    dx: SharedMut<'a, E>,
    dgate: Option<SharedMut<'a, E>>,
    /// Each block's sum over its rows, `[blocks, 1 or G, D]`.
    dweight: SharedMut<'a, f64>,
    /// Elements of a block's sum.
    weights: usize,
}

fn launch<E: Element, O: Element>(
    isa: Isa,
    kernel: &str,
    problem: &RmsNormProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let (rows, channels) = (problem.rows(), problem.channels);
    let per_block = rows.div_ceil(BLOCKS).max(VALUES / channels.max(1)).max(1);
    let grid = rows.div_ceil(per_block);
    let weights = inputs.get("weight").map_or(0, ops::Tensor::len);
    let mut sums = vec![0f64; grid * weights];
    let [mut dx, mut dgate] = ["dx", "dgate"].map(|name| outputs.remove(name));
    let operands = Operands::<E, O> {
        problem,
        x: elements(inputs.tensor("x")),
        gate: inputs.get("gate").map(elements),
        d_o: elements(inputs.tensor("do")),
        weight: inputs.get("weight").map(|weight| pad(&floats(weight), channels)),
        dx: SharedMut::new(elements_mut(dx.as_mut())),
        dgate: dgate.as_mut().map(|dgate| SharedMut::new(elements_mut(Some(dgate)))),
        dweight: SharedMut::new(&mut sums),
        weights,
    };
    device.launch(kernel, grid, Scratch::default, |scratch, block| {
        let rows = block * per_block..((block + 1) * per_block).min(rows);
        dispatch(isa, Block { operands: &operands, block, rows, scratch });
    });
    if let Some(dweight) = outputs.get_mut("dweight") {
        let mut total = vec![0f64; weights];
        for sum in sums.chunks(weights.max(1)) {
            total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum);
        }
        store(&total, dweight);
    }
    let both = [("dx", dx), ("dgate", dgate)];
    outputs.extend(both.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor?))));
}

/// Buffers of one thread, a row each.
#[derive(Default)]
struct Scratch {
    x: Aligned,
    act: Aligned,
    slope: Aligned,
    z: Aligned,
    da: Aligned,
    t: Aligned,
}

struct Block<'a, E, O> {
    operands: &'a Operands<'a, E, O>,
    block: usize,
    rows: Range<usize>,
    scratch: &'a mut Scratch,
}

impl<E: Element, O: Element> SimdKernel for Block<'_, E, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, block, rows, scratch } = self;
        let problem = operands.problem;
        let (channels, padded) = (problem.channels, padded(problem.channels));
        let Scratch { x, act, slope, z, da, t } = scratch;
        // Between a row's end and the buffer's, x and da are 0: they add nothing to a sum.
        let [x, act, slope] = [x, act, slope].map(|buffer| buffer.of_len(padded));
        let [z, da, t] = [z, da, t].map(|buffer| buffer.of_len(padded));
        let after = problem.norm_before_gate;
        // SAFETY: this block alone has its sums.
        let sums = unsafe {
            operands.dweight.slice(block * operands.weights..(block + 1) * operands.weights)
        };
        for row in rows {
            let at = row * channels..(row + 1) * channels;
            widen(simd, &operands.x[at.clone()], &mut x[..channels]);
            widen(simd, &operands.d_o[at.clone()], &mut da[..channels]);
            z.copy_from_slice(x);
            if let Some(gate) = operands.gate {
                widen(simd, &gate[at.clone()], &mut act[..channels]);
                activate(simd, problem.gate, act, slope);
                multiply(simd, if after { &mut *da } else { &mut *z }, act);
            }
            // t is the gradient of the normalised row.
            t.copy_from_slice(da);
            let group = if problem.weight_per_group { row % problem.groups } else { 0 };
            if let Some(weight) = &operands.weight {
                multiply(simd, t, &weight[group * padded..(group + 1) * padded]);
            }
            let mean_square = dot_wide(z, z) / channels as f64;
            let r = 1.0 / (mean_square + problem.eps).sqrt();
            let projection = r * r * r * (dot_wide(z, t) / channels as f64);
            if let Some(sums) = sums.chunks_mut(channels).nth(group) {
                for ((sum, da), z) in sums.iter_mut().zip(&*da).zip(&*z) {
                    *sum += f64::from(*da) * (r * f64::from(*z));
                }
            }
            // The gradient of the gate without its slope: of a gate after the norm it is do n w, where t is do act w; act may be 0.
            if after && let Some(gate) = &operands.dgate {
                widen(simd, &operands.d_o[at.clone()], &mut da[..channels]);
                multiply(simd, da, slope);
                multiply(simd, da, z);
                if let Some(weight) = &operands.weight {
                    multiply(simd, da, &weight[group * padded..(group + 1) * padded]);
                }
                da.iter_mut().for_each(|da| *da = (r * f64::from(*da)) as f32);
                // SAFETY: this block alone has this row.
                narrow(simd, &da[..channels], unsafe { gate.slice(at.clone()) });
            }
            for (t, z) in t.iter_mut().zip(&*z) {
                *t = (r * f64::from(*t) - projection * f64::from(*z)) as f32;
            }
            if !after && let Some(gate) = &operands.dgate {
                multiply(simd, slope, x);
                multiply(simd, slope, t);
                // SAFETY: this block alone has this row.
                narrow(simd, &slope[..channels], unsafe { gate.slice(at.clone()) });
                multiply(simd, t, act);
            }
            // SAFETY: this block alone has this row.
            narrow(simd, &t[..channels], unsafe { operands.dx.slice(at) });
        }
    }
}

/// Replaces gates by their activation, and writes its derivative. The slices are whole vectors.
#[inline(always)]
fn activate<S: Simd>(simd: S, kind: Option<Activation>, gate: &mut [f32], slope: &mut [f32]) {
    let (one, zero) = (simd.splat(1.0), simd.splat(0.0));
    for (gate, slope) in gate.chunks_exact_mut(S::LANES).zip(slope.chunks_exact_mut(S::LANES)) {
        // SAFETY: chunks are vectors.
        unsafe {
            let g = simd.load(gate.as_ptr());
            let sigmoid = math::sigmoid(simd, g);
            // Not 1 - sigmoid, which is 0 for large gates.
            let complement = math::sigmoid(simd, simd.sub(zero, g));
            let [act, factor] = match kind {
                Some(Activation::Sigmoid) => [sigmoid, complement],
                _ => [simd.mul(g, sigmoid), simd.fma(g, complement, one)],
            };
            simd.store(gate.as_mut_ptr(), act);
            simd.store(slope.as_mut_ptr(), simd.mul(sigmoid, factor));
        }
    }
}
