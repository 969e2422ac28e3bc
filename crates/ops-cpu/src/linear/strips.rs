//! One strip of weight rows at a time: packed in pieces of the depth, multiplied with all rows of x, with a fused epilogue
//! (bias, activation, scale, residual, convolution) while its products are in cache.
#![allow(unsafe_code)] // Blocks write disjoint columns of the outputs.

mod factors;
mod products;
mod rows;

use super::convolution::Step;
use crate::fast_math;
use crate::floats::{narrow, widen};
use crate::gemm::{Mat, MatMut, Store};
use crate::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa, SharedMut};
use factors::Factors;
use half::{bf16, f16};
use ops::linear::LinearProblem;
use ops::{DType, E4m3, Element, Inputs, TensorMap, U4Pair, elements, elements_mut, floats};
use products::{Pairs, Products, Widened};

/// Columns of a strip: a few register tiles, so that a core has many strips and they balance; whole vectors.
const STRIP: usize = 64;
/// Depth that is packed at once: 64 columns of it, 128 KiB in float32, stay in the inner caches.
const DEPTH: usize = 512;

/// Runs the variant whose kernel name is `kernel`.
pub(super) fn run(
    isa: Isa,
    kernel: &str,
    problem: &LinearProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let call = Call { kernel, problem, inputs, device };
    let wide = problem.out != problem.dtype;
    if problem.scales.is_some() {
        // Dequantized weights are multiplied in float32 only: bfloat16 would round them.
        let products = Widened(isa);
        return match (problem.w_dtype, wide) {
            (DType::U4, false) => call.run::<bf16, U4Pair, bf16, _>(products, outputs),
            (DType::U4, true) => call.run::<bf16, U4Pair, f32, _>(products, outputs),
            (DType::I8, false) => call.run::<bf16, i8, bf16, _>(products, outputs),
            (DType::I8, true) => call.run::<bf16, i8, f32, _>(products, outputs),
            (_, false) => call.run::<bf16, E4m3, bf16, _>(products, outputs),
            (_, true) => call.run::<bf16, E4m3, f32, _>(products, outputs),
        };
    }
    match (problem.dtype, wide) {
        (DType::Bf16, false) if isa == Isa::Avx512Bf16 => {
            call.run::<bf16, bf16, bf16, _>(Pairs, outputs)
        }
        (DType::Bf16, true) if isa == Isa::Avx512Bf16 => {
            call.run::<bf16, bf16, f32, _>(Pairs, outputs)
        }
        (DType::Bf16, false) => call.run::<bf16, bf16, bf16, _>(Widened(isa), outputs),
        (DType::Bf16, true) => call.run::<bf16, bf16, f32, _>(Widened(isa), outputs),
        (DType::F16, false) => call.run::<f16, f16, f16, _>(Widened(isa), outputs),
        (DType::F16, true) => call.run::<f16, f16, f32, _>(Widened(isa), outputs),
        _ => call.run::<f32, f32, f32, _>(Widened(isa), outputs),
    }
}

/// One call, whatever its types.
struct Call<'a> {
    kernel: &'a str,
    problem: &'a LinearProblem,
    inputs: Inputs<'a>,
    device: &'a Device,
}

impl Call<'_> {
    /// With x rounded to E, weights stored as W and outputs as O.
    fn run<E: Element, W: Element, O: Element, P: Products>(
        &self,
        products: P,
        outputs: &mut TensorMap,
    ) {
        let Self { kernel, problem, inputs, device } = *self;
        let x = rows::rows::<E, P>(products, kernel, problem, inputs, device);
        let (w, columns) = (inputs.tensor("w"), problem.columns());
        // A strip reads whole vectors of the bias, so it is padded with zeros.
        let mut bias = inputs.get("bias").map(|bias| floats(bias).into_owned()).unwrap_or_default();
        bias.resize(problem.outputs + STRIP, 0.0);
        // The final state is not a range of columns.
        let mut states = TensorMap::new();
        states.extend(outputs.remove_entry("final_state"));
        let step = problem.convolution.as_ref().map(|of| Step::new(of, inputs, &mut states));
        let mut first = 0;
        let mut targets = Vec::new();
        // The map's order of names is that of the columns.
        for (output, width) in outputs.values_mut().zip(&problem.widths) {
            let values = SharedMut::new(elements_mut::<O>(Some(output)));
            targets.push(Target { first, width: *width, values });
            first += width;
        }
        let operands = Operands::<W, O, P> {
            products,
            problem,
            x: &x,
            w: elements(w),
            same: w.view(),
            factors: Factors::new(problem, inputs),
            bias,
            residual: inputs.get("residual").map(elements),
            step,
            targets,
        };
        let grid = if problem.tokens == 0 { 0 } else { columns.div_ceil(STRIP) };
        device.launch_streaming(kernel, grid, Scratch::<P>::default, |scratch, block| {
            dispatch(products.isa(), Strip { operands: &operands, block, scratch });
        });
        drop(operands);
        outputs.append(&mut states);
    }
}

/// An output and the columns that go there.
struct Target<'a, O> {
    first: usize,
    width: usize,
    /// `[T, width]`.
    values: SharedMut<'a, O>,
}

struct Operands<'a, W, O, P: Products> {
    products: P,
    problem: &'a LinearProblem,
    /// `[T, K]`.
    x: &'a [P::Value],
    /// `[N, K]`.
    w: &'a [W],
    /// The same as `P::Value`, if weights need no conversion.
    same: Option<&'a [P::Value]>,
    factors: Option<Factors<'a>>,
    /// `[N]`, padded by a strip.
    bias: Vec<f32>,
    /// `[T, M]`.
    residual: Option<&'a [f32]>,
    step: Option<Step<'a>>,
    targets: Vec<Target<'a, O>>,
}

/// Buffers of one thread.
struct Scratch<P: Products> {
    packed: P::Packed,
    /// `[STRIP, DEPTH]` weights as they are multiplied, and one row of them widened.
    values: Vec<P::Value>,
    row: Vec<f32>,
    /// `[T, STRIP]` products; of the gates and of the ups.
    products: [Vec<f32>; 2],
}

impl<P: Products> Default for Scratch<P> {
    fn default() -> Self {
        Self {
            packed: P::Packed::default(),
            values: Vec::new(),
            row: vec![0.0; DEPTH],
            products: [Vec::new(), Vec::new()],
        }
    }
}

struct Strip<'a, 'b, W, O, P: Products> {
    operands: &'a Operands<'b, W, O, P>,
    block: usize,
    scratch: &'a mut Scratch<P>,
}

impl<W: Element, O: Element, P: Products> SimdKernel for Strip<'_, '_, W, O, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { operands, block, scratch } = self;
        let columns = operands.problem.columns();
        let first = block * STRIP;
        let width = STRIP.min(columns - first);
        operands.multiply(simd, first, width, 0, scratch);
        if operands.problem.swiglu {
            operands.multiply(simd, columns + first, width, 1, scratch);
        }
        operands.finish(simd, first, width, &scratch.products);
    }
}

impl<W: Element, O: Element, P: Products> Operands<'_, W, O, P> {
    /// Products of all rows of x with `width` rows of the weights.
    #[inline(always)]
    fn multiply<S: Simd>(
        &self,
        simd: S,
        first: usize,
        width: usize,
        half: usize,
        scratch: &mut Scratch<P>,
    ) {
        let (tokens, inputs) = (self.problem.tokens, self.problem.inputs);
        let Scratch { packed, values, row, products } = scratch;
        products[half].resize(tokens * STRIP, 0.0);
        for start in (0..inputs).step_by(DEPTH) {
            let depth = DEPTH.min(inputs - start);
            let weights = match self.same {
                Some(w) => Mat::new(&w[first * inputs + start..], width, depth, inputs),
                None => {
                    values.resize(STRIP * DEPTH, P::Value::default());
                    for (output, values) in values.chunks_mut(depth).take(width).enumerate() {
                        let from = ((first + output) * inputs + start) / W::ELEMENTS;
                        let w = &self.w[from..from + depth / W::ELEMENTS];
                        widen(simd, w, &mut row[..depth]);
                        if let Some(factors) = &self.factors {
                            factors.apply(first + output, start, &mut row[..depth]);
                        }
                        narrow(simd, &row[..depth], values);
                    }
                    Mat::new(values, width, depth, depth)
                }
            };
            self.products.pack(weights.t(), packed);
            let store = if start == 0 { Store::Replace } else { Store::Add };
            let x = Mat::new(&self.x[start..], tokens, depth, inputs);
            let into = MatMut::new(&mut products[half], tokens, width, STRIP);
            self.products.multiply(x, packed, store, into);
        }
    }

    /// Applies the epilogue to the products.
    #[inline(always)]
    fn finish<S: Simd>(&self, simd: S, first: usize, width: usize, products: &[Vec<f32>; 2]) {
        let columns = self.problem.columns();
        let scale = simd.splat(self.problem.scale as f32);
        let bias = &self.bias[first..];
        let mut values = [0f32; STRIP];
        for token in 0..self.problem.tokens {
            let row = token * STRIP..(token + 1) * STRIP;
            let product = &products[0][row.clone()];
            let up = if self.problem.swiglu { Some(&products[1][row]) } else { None };
            for at in (0..STRIP).step_by(S::LANES) {
                // SAFETY: rows of products are whole vectors, and the bias is padded by a strip.
                unsafe {
                    let load = |from: &[f32]| simd.load(from[at..at + S::LANES].as_ptr());
                    let mut value = simd.add(load(product), load(bias));
                    if let Some(up) = up {
                        let up = simd.add(load(up), load(&bias[columns..]));
                        value = simd.mul(fast_math::silu(simd, value), up);
                    }
                    if self.problem.squared {
                        value = simd.mul(value, simd.max(value, simd.splat(0.0)));
                    }
                    let into = values[at..at + S::LANES].as_mut_ptr();
                    simd.store(into, simd.mul(value, scale));
                }
            }
            if let Some(residual) = self.residual {
                let residual = &residual[token * columns + first..][..width];
                values.iter_mut().zip(residual).for_each(|(value, add)| *value += add);
            }
            if let Some(step) = &self.step {
                step.apply(token, first, &mut values[..width]);
            }
            self.store(simd, token, first, &values[..width]);
        }
    }

    /// Stores neighbouring columns of a row where they go.
    #[inline(always)]
    fn store<S: Simd>(&self, simd: S, token: usize, first: usize, values: &[f32]) {
        for target in &self.targets {
            let from = first.max(target.first);
            let to = (first + values.len()).min(target.first + target.width);
            if from < to {
                let start = token * target.width + (from - target.first);
                // SAFETY: this block alone has these columns.
                let into = unsafe { target.values.slice(start..start + (to - from)) };
                narrow(simd, &values[from - first..to - first], into);
            }
        }
    }
}
