//! A call's tensors as the fast variants read them, and the steps that all of them share.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers, bounds checked first.

use crate::fast_math;
use crate::floats::{as_f32, widen};
use crate::gemm::Mat;
use crate::simd::map::{Map, map};
use crate::simd::{Simd, math};
use device::SharedMut;
use half::bf16;
use ops::ssd::SsdProblem;
use ops::{DType, Element, Inputs, TensorMap, elements, elements_mut, floats};
use std::borrow::Cow;
use std::ops::Range;

/// The tensors of one call.
pub(super) struct Operands<'a, E> {
    pub(super) problem: &'a SsdProblem,
    /// `[total, H, P]`.
    pub(super) x: &'a [E],
    /// `[total, G, N]`.
    pub(super) b: &'a [E],
    /// `[total, G, N]`.
    pub(super) c: &'a [E],
    /// `[total, H, P]`.
    pub(super) z: Option<&'a [E]>,
    /// `[H, P]`; empty without D.
    pub(super) d: Vec<f32>,
    /// `[slots, H, P, N]`.
    pub(super) initial_state: Option<Cow<'a, [f32]>>,
    /// `[H]`.
    pub(super) rate: Cow<'a, [f32]>,
    dt: Cow<'a, [f32]>,
    dt_bias: Vec<f32>,
}

impl<'a, E: Element> Operands<'a, E> {
    pub(super) fn read(problem: &'a SsdProblem, inputs: Inputs<'a>) -> Self {
        let d = inputs.get("D").map(|d| (d.shape().len(), floats(d)));
        Self {
            problem,
            x: elements(inputs.tensor("x")),
            b: elements(inputs.tensor("B")),
            c: elements(inputs.tensor("C")),
            z: inputs.get("z").map(elements),
            d: match d {
                None => Vec::new(),
                Some((2, d)) => d.into_owned(),
                Some((_, d)) => {
                    let mut spread = vec![0.0; problem.heads * problem.head_dim];
                    let heads = spread.chunks_exact_mut(problem.head_dim.max(1));
                    heads.zip(d.iter()).for_each(|(head, d)| head.fill(*d));
                    spread
                }
            },
            initial_state: inputs.get("initial_state").map(floats),
            rate: floats(inputs.tensor("A")),
            dt: floats(inputs.tensor("dt")),
            dt_bias: match inputs.get("dt_bias") {
                Some(bias) => floats(bias).into_owned(),
                None => vec![0.0; problem.heads],
            },
        }
    }

    /// Step sizes of one head over consecutive tokens: softplus(dt + dt_bias), then the limits.
    #[inline(always)]
    pub(super) fn steps<S: Simd>(
        &self,
        simd: S,
        head: usize,
        tokens: Range<usize>,
        out: &mut [f32],
    ) {
        let problem = self.problem;
        let out = &mut out[..tokens.len()];
        for (out, token) in out.iter_mut().zip(tokens) {
            *out = self.dt[token * problem.heads + head] + self.dt_bias[head];
        }
        let limits = (problem.dt_min as f32, problem.dt_max as f32);
        if problem.dt_softplus {
            map(simd, out, Softplus);
        }
        map(simd, out, Clamp(limits.0, limits.1));
    }

    /// Offset of one row of x, z and o: token, head and first column.
    pub(super) fn row(&self, token: usize, head: usize, column: usize) -> usize {
        (token * self.problem.heads + head) * self.problem.head_dim + column
    }

    /// Range of one token's row of B or C for a head.
    pub(super) fn projection(&self, token: usize, head: usize) -> Range<usize> {
        let n = self.problem.state_dim;
        let group = head / self.problem.heads_per_group();
        let start = (token * self.problem.groups + group) * n;
        start..start + n
    }

    /// Offset of one head's state in a slot.
    pub(super) fn state(&self, slot: usize, head: usize) -> usize {
        (slot * self.problem.heads + head) * self.problem.state_len()
    }

    /// Copies one head of the initial state to the final state, for a slot that no sequence uses.
    ///
    /// # Safety
    /// Nothing else may have this head of this slot.
    pub(super) unsafe fn copy_unused_slot(
        &self,
        slot: usize,
        head: usize,
        states: &SharedMut<'_, f32>,
    ) {
        let range = self.state(slot, head)..self.state(slot, head) + self.problem.state_len();
        // SAFETY: the caller's contract.
        let to = unsafe { states.slice(range.clone()) };
        match &self.initial_state {
            Some(initial) => to.copy_from_slice(&initial[range]),
            None => to.fill(0.0),
        }
    }
}

/// Calls `write` with a float32 buffer for all final states: the output itself, or a temporary that is rounded to a bfloat16 output.
pub(super) fn with_final_states(outputs: &mut TensorMap, write: impl FnOnce(&mut [f32])) {
    let states = outputs.get_mut("final_state");
    if states.as_ref().is_none_or(|states| states.dtype() == DType::F32) {
        return write(elements_mut(states));
    }
    let narrow = elements_mut::<bf16>(states);
    // NaN reveals values that `write` did not set.
    let mut wide = vec![f32::NAN; narrow.len()];
    write(&mut wide);
    bf16::narrow(&wide, narrow);
}

/// Rows of a tensor that a matrix product reads, one per token.
pub(super) struct Rows {
    start: usize,
    stride: usize,
    count: usize,
    width: usize,
}

impl Rows {
    /// A group's rows of B or C.
    pub(super) fn of_group(problem: &SsdProblem, tokens: Range<usize>, group: usize) -> Self {
        let (stride, width) = (problem.groups * problem.state_dim, problem.state_dim);
        let start = tokens.start * stride + group * width;
        Self { start, stride, count: tokens.len(), width }
    }

    /// Some columns of a head's rows of x or z.
    pub(super) fn of_head(
        problem: &SsdProblem,
        tokens: Range<usize>,
        head: usize,
        columns: Range<usize>,
    ) -> Self {
        let stride = problem.heads * problem.head_dim;
        let start = tokens.start * stride + head * problem.head_dim + columns.start;
        Self { start, stride, count: tokens.len(), width: columns.len() }
    }

    /// The rows as a float32 matrix: borrowed if they are float32, else widened into `wide`.
    #[inline(always)]
    pub(super) fn read<'a, S: Simd, E: Element>(
        &self,
        simd: S,
        from: &'a [E],
        wide: &'a mut Vec<f32>,
    ) -> Mat<'a> {
        let &Self { start, stride, count, width } = self;
        if count * width == 0 {
            return Mat::new(&[], count, width, width);
        }
        if let Some(from) = as_f32(from) {
            return Mat::new(&from[start..], count, width, stride);
        }
        wide.resize(count * width, 0.0);
        for (row, to) in wide.chunks_exact_mut(width).enumerate() {
            let at = start + row * stride;
            widen(simd, &from[at..at + width], to);
        }
        Mat::new(&*wide, count, width, width)
    }
}

#[derive(Clone, Copy)]
struct Softplus;

impl Map for Softplus {
    #[inline(always)]
    fn map<S: Simd>(self, simd: S, v: S::V) -> S::V {
        math::softplus(simd, v)
    }
}

#[derive(Clone, Copy)]
struct Clamp(f32, f32);

impl Map for Clamp {
    #[inline(always)]
    fn map<S: Simd>(self, simd: S, v: S::V) -> S::V {
        simd.min(simd.max(v, simd.splat(self.0)), simd.splat(self.1))
    }
}

/// Epilogue of the scan for one row of a head: `y + d x`, times `silu(z)`. `d` or `z` may be empty (absent).
///
/// # Panics
/// When a slice is shorter than `y` and not empty.
#[inline(always)]
pub(super) fn finish<S: Simd>(simd: S, y: &mut [f32], x: &[f32], d: &[f32], z: &[f32]) {
    let len = y.len();
    assert!((d.is_empty() || d.len() >= len && x.len() >= len) && (z.is_empty() || z.len() >= len));
    let mut at = 0;
    while at < len {
        let count = S::LANES.min(len - at);
        // SAFETY: `count` values from `at` on are inside every slice that is not empty.
        unsafe {
            let to = y.as_mut_ptr().add(at);
            let mut v = simd.load_first(to, count);
            if !d.is_empty() {
                let d = simd.load_first(d.as_ptr().add(at), count);
                v = simd.fma(d, simd.load_first(x.as_ptr().add(at), count), v);
            }
            if !z.is_empty() {
                v = simd.mul(v, fast_math::silu(simd, simd.load_first(z.as_ptr().add(at), count)));
            }
            simd.store_first(to, v, count);
        }
        at += count;
    }
}
