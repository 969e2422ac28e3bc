//! One row (a group of a token) at a time: its values stay in L1 between the sum of squares and the scaling.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers; blocks write disjoint rows of o.

use crate::aligned::Aligned;
use crate::fast_math;
use crate::floats::{narrow, widen};
use crate::simd::{Simd, SimdKernel, dispatch, math};
use crate::stream::{STREAM_BYTES, stream_copy};
use crate::vectors::{multiply, pad, padded, scale, sum_of_squares};
use device::{Device, Isa, SharedMut};
use half::{bf16, f16};
use ops::rmsnorm::{Activation, RmsNormProblem};
use ops::{DType, Element, Inputs, TensorMap, elements, elements_mut, floats};
use std::ops::Range;

/// Values of a block, which has at least one row: enough to amortize the launch.
const VALUES: usize = 32 * 1024;

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run(
    isa: Isa,
    kernel: &str,
    problem: &RmsNormProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
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
    /// `[rows, D]`.
    x: &'a [E],
    /// `[rows, D]`.
    gate: Option<&'a [E]>,
    /// `[1, padded D]` or `[G, padded D]`.
    weight: Option<Vec<f32>>,
    o: SharedMut<'a, O>,
    /// Whether o is large enough for non-temporal stores.
    stream: bool,
}

fn launch<E: Element, O: Element>(
    isa: Isa,
    kernel: &str,
    problem: &RmsNormProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let o = elements_mut::<O>(outputs.get_mut("o"));
    let operands = Operands::<E, O> {
        problem,
        x: elements(inputs.tensor("x")),
        gate: inputs.get("gate").map(elements),
        weight: inputs.get("weight").map(|weight| pad(&floats(weight), problem.channels)),
        stream: size_of_val(o) >= STREAM_BYTES,
        o: SharedMut::new(o),
    };
    let (rows, per_block) = (problem.rows(), (VALUES / problem.channels.max(1)).max(1));
    let grid = rows.div_ceil(per_block);
    device.launch_streaming(kernel, grid, Scratch::<O>::default, |scratch, block| {
        let rows = block * per_block..((block + 1) * per_block).min(rows);
        dispatch(isa, Block { operands: &operands, rows, scratch });
    });
}

/// Buffers of one thread, a row each.
struct Scratch<O> {
    x: Aligned,
    factors: Aligned,
    rounded: Vec<O>,
}

impl<O> Default for Scratch<O> {
    fn default() -> Self {
        Self { x: Aligned::default(), factors: Aligned::default(), rounded: Vec::new() }
    }
}

struct Block<'a, E, O> {
    operands: &'a Operands<'a, E, O>,
    rows: Range<usize>,
    scratch: &'a mut Scratch<O>,
}

impl<E: Element, O: Element> SimdKernel for Block<'_, E, O> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, rows, scratch } = self;
        let problem = operands.problem;
        let (channels, padded) = (problem.channels, padded(problem.channels));
        let Scratch { x, factors, rounded } = scratch;
        // Between a row's end and the buffer's, x is 0: it adds nothing to a sum, and factors there are finite.
        let (x, factors) = (x.of_len(padded), factors.of_len(padded));
        rounded.resize(channels, O::default());
        for row in rows {
            let at = row * channels..(row + 1) * channels;
            widen(simd, &operands.x[at.clone()], &mut x[..channels]);
            if let Some(gate) = operands.gate {
                widen(simd, &gate[at.clone()], &mut factors[..channels]);
                activate(simd, problem.gate, factors);
                if !problem.norm_before_gate {
                    multiply(simd, x, factors);
                }
            }
            let mean = sum_of_squares(simd, x) / channels as f32;
            scale(simd, x, 1.0 / (mean + problem.eps as f32).sqrt());
            if let Some(weight) = &operands.weight {
                let group = if problem.weight_per_group { row % problem.groups } else { 0 };
                multiply(simd, x, &weight[group * padded..(group + 1) * padded]);
            }
            if operands.gate.is_some() && problem.norm_before_gate {
                multiply(simd, x, factors);
            }
            // SAFETY: this block alone has this row of o.
            let o = unsafe { operands.o.slice(at) };
            if operands.stream {
                narrow(simd, &x[..channels], rounded);
                stream_copy(simd, rounded, o);
            } else {
                narrow(simd, &x[..channels], o);
            }
        }
    }
}

/// Applies the gate's activation in place. The slice is whole vectors.
#[inline(always)]
fn activate<S: Simd>(simd: S, gate: Option<Activation>, x: &mut [f32]) {
    let sigmoid = gate == Some(Activation::Sigmoid);
    for x in x.chunks_exact_mut(S::LANES) {
        // SAFETY: a chunk is a vector.
        unsafe {
            let v = simd.load(x.as_ptr());
            let v = if sigmoid { math::sigmoid(simd, v) } else { fast_math::silu(simd, v) };
            simd.store(x.as_mut_ptr(), v);
        }
    }
}
