//! A call's tensors as the fast variants read them: rows widened to f32, normalised, and gates turned into decays.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers, bounds checked first.

use crate::simd::map::{Map, Scale, map};
use crate::simd::{Simd, math};
use crate::stream::prefetch;
use half::bf16;
use ops::kda::{Beta, Gate, KdaProblem};
use ops::{DType, Element, Inputs, Tensor, elements, floats};
use std::borrow::Cow;
use std::ops::Range;

/// A tensor in the storage type of the values or in another one its contract allows.
enum Stored<'a, E> {
    Narrow(&'a [E]),
    F32(&'a [f32]),
}

impl<'a, E: Element> Stored<'a, E> {
    fn read(tensor: &'a Tensor) -> Self {
        match tensor.view::<f32>() {
            Some(values) => Self::F32(values),
            None => Self::Narrow(elements(tensor)),
        }
    }

    #[inline(always)]
    fn widen<S: Simd>(&self, simd: S, start: usize, to: &mut [f32]) {
        match self {
            Self::Narrow(values) => widen(simd, &values[start..start + to.len()], to),
            Self::F32(values) => widen(simd, &values[start..start + to.len()], to),
        }
    }
}

/// The tensors of one call.
pub(super) struct Operands<'a, E> {
    pub(super) problem: &'a KdaProblem,
    q: &'a [E],
    k: &'a [E],
    v: &'a [E],
    g: Stored<'a, E>,
    beta: Cow<'a, [f32]>,
    /// exp(A_log), `[HV]`; empty without it.
    rate: Vec<f32>,
    /// `[HV, K]`, or `[HV]`; empty without it.
    bias: Cow<'a, [f32]>,
    initial_state: Option<Stored<'a, bf16>>,
}

impl<'a, E: Element> Operands<'a, E> {
    /// Rows of a token: query, key, gate, value.
    pub(super) const INPUT_ROWS: usize = 4;

    pub(super) fn read(problem: &'a KdaProblem, inputs: Inputs<'a>) -> Self {
        let rate = inputs.get("A_log").map(Tensor::to_f64).unwrap_or_default();
        Self {
            problem,
            q: elements(inputs.tensor("q")),
            k: elements(inputs.tensor("k")),
            v: elements(inputs.tensor("v")),
            g: Stored::read(inputs.tensor("g")),
            beta: floats(inputs.tensor("beta")),
            rate: rate.iter().map(|a_log| a_log.exp() as f32).collect(),
            bias: inputs.get("dt_bias").map(floats).unwrap_or_default(),
            initial_state: inputs.get("initial_state").map(Stored::read),
        }
    }

    /// One token's key for a value head, `[K]`.
    #[inline(always)]
    pub(super) fn key<S: Simd>(&self, simd: S, token: usize, head: usize, to: &mut [f32]) {
        self.shared_row(simd, self.k, token, head, 1.0, to);
    }

    /// One token's query for a value head, times the scale, `[K]`.
    #[inline(always)]
    pub(super) fn query<S: Simd>(&self, simd: S, token: usize, head: usize, to: &mut [f32]) {
        self.shared_row(simd, self.q, token, head, self.problem.scale as f32, to);
    }

    #[inline(always)]
    fn shared_row<S: Simd>(
        &self,
        simd: S,
        from: &[E],
        token: usize,
        head: usize,
        scale: f32,
        to: &mut [f32],
    ) {
        let problem = self.problem;
        let start = (token * problem.heads + problem.head_of(head)) * problem.key_dim;
        widen(simd, &from[start..start + problem.key_dim], to);
        let mut factor = scale;
        if problem.l2norm {
            factor /= (dot(simd, to, to) + 1e-6).sqrt();
        }
        if factor != 1.0 {
            map(simd, to, Scale(factor));
        }
    }

    /// Some columns of one token's value.
    #[inline(always)]
    pub(super) fn value<S: Simd>(
        &self,
        simd: S,
        token: usize,
        head: usize,
        column: usize,
        to: &mut [f32],
    ) {
        let start = (token * self.problem.value_heads + head) * self.problem.value_dim + column;
        widen(simd, &self.v[start..start + to.len()], to);
    }

    /// One token's log decay for each key channel, `[K]`.
    #[inline(always)]
    pub(super) fn log_decay<S: Simd>(&self, simd: S, token: usize, head: usize, to: &mut [f32]) {
        let problem = self.problem;
        let gates = problem.gate_dim();
        let (own, rest) = to.split_at_mut(gates);
        self.g.widen(simd, (token * problem.value_heads + head) * gates, own);
        if problem.gate != Gate::LogDecay {
            self.gate(simd, head, own);
        }
        // One decay for all channels.
        if !rest.is_empty() {
            rest.fill(own[0]);
        }
    }

    /// Converts a head's gate logits to log decays.
    #[inline(always)]
    fn gate<S: Simd>(&self, simd: S, head: usize, logits: &mut [f32]) {
        if !self.bias.is_empty() {
            let bias = &self.bias[head * logits.len()..][..logits.len()];
            for (x, bias) in logits.iter_mut().zip(bias) {
                *x += bias;
            }
        }
        let rate = self.rate[head];
        match self.problem.gate {
            Gate::LogDecay => {}
            Gate::Plain => map(simd, logits, PlainGate { minus_rate: -rate }),
            Gate::Safe { lower_bound } => {
                map(simd, logits, SafeGate { rate, lower_bound: lower_bound as f32 });
            }
        }
    }

    /// Prefetches one of the [`Self::INPUT_ROWS`] rows of a token: with many heads the stride is too large for the
    /// hardware prefetcher.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: usize, token: usize, head: usize, values: Range<usize>) {
        let problem = self.problem;
        let own = token * problem.value_heads + head;
        let shared = (token * problem.heads + problem.head_of(head)) * problem.key_dim;
        let shared = shared..shared + problem.key_dim;
        let gate = own * problem.gate_dim()..(own + 1) * problem.gate_dim();
        match (row, &self.g) {
            (0, _) => prefetch(&self.q[shared]),
            (1, _) => prefetch(&self.k[shared]),
            (2, Stored::Narrow(g)) => prefetch(&g[gate]),
            (2, Stored::F32(g)) => prefetch(&g[gate]),
            _ => prefetch(&self.v[own * problem.value_dim..][values]),
        }
    }

    /// One token's write strength.
    #[inline(always)]
    pub(super) fn beta(&self, token: usize, head: usize) -> f32 {
        let x = self.beta[token * self.problem.value_heads + head];
        match self.problem.beta {
            Beta::AsGiven => x,
            Beta::Sigmoid { factor } => factor as f32 / (1.0 + (-x).exp()),
        }
    }

    /// Offset of a row of one head's state, in `initial_state` and `final_state`.
    pub(super) fn state_row(&self, slot: usize, head: usize, channel: usize) -> usize {
        ((slot * self.problem.value_heads + head) * self.problem.key_dim + channel)
            * self.problem.value_dim
    }

    /// Consecutive elements of the initial state from `start` on; zeros when there is none.
    #[inline(always)]
    pub(super) fn initial_state<S: Simd>(&self, simd: S, start: usize, to: &mut [f32]) {
        match &self.initial_state {
            Some(state) => state.widen(simd, start, to),
            None => to.fill(0.0),
        }
    }

    /// The initial state, where it can be read without a copy.
    pub(super) fn initial_state_f32(&self) -> Option<&'a [f32]> {
        match self.initial_state {
            Some(Stored::F32(state)) => Some(state),
            _ => None,
        }
    }

    /// Offset of a row of `o`: token, head and first column.
    pub(super) fn output(&self, token: usize, head: usize, column: usize) -> usize {
        (token * self.problem.value_heads + head) * self.problem.value_dim + column
    }
}

/// Widens a row: bfloat16 by vectors, where `half` compiled for the baseline converts one element at a time, and f32
/// without the `memcpy` call of a copy of unknown length.
#[inline(always)]
pub(super) fn widen<S: Simd, E: Element>(simd: S, from: &[E], to: &mut [f32]) {
    if E::DTYPE == DType::F16 {
        return E::widen(from, to);
    }
    assert_eq!(from.len(), to.len(), "lengths of a conversion");
    let whole = from.len() / S::LANES * S::LANES;
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: E is bfloat16 or f32; `LANES` values from `at` on are inside both slices.
        unsafe {
            let from = from.as_ptr().add(at);
            let narrow = E::DTYPE == DType::Bf16;
            let v = if narrow { simd.load_bf16(from.cast()) } else { simd.load(from.cast()) };
            simd.store(to.as_mut_ptr().add(at), v);
        }
    }
    E::widen(&from[whole..], &mut to[whole..]);
}

/// `minus_rate * softplus(x)`.
#[derive(Clone, Copy)]
struct PlainGate {
    minus_rate: f32,
}

impl Map for PlainGate {
    #[inline(always)]
    fn map<S: Simd>(self, simd: S, x: S::V) -> S::V {
        simd.mul(simd.splat(self.minus_rate), math::softplus(simd, x))
    }
}

/// `lower_bound * sigmoid(rate * x)`.
#[derive(Clone, Copy)]
struct SafeGate {
    rate: f32,
    lower_bound: f32,
}

impl Map for SafeGate {
    #[inline(always)]
    fn map<S: Simd>(self, simd: S, x: S::V) -> S::V {
        let x = simd.mul(simd.splat(self.rate), x);
        simd.mul(simd.splat(self.lower_bound), math::sigmoid(simd, x))
    }
}

/// Sum of products.
#[inline(always)]
pub(super) fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "lengths of a dot product");
    let whole = a.len() / S::LANES * S::LANES;
    let mut sum = simd.splat(0.0);
    for at in (0..whole).step_by(S::LANES) {
        // SAFETY: `LANES` values from `at` on are inside both slices.
        sum =
            unsafe { simd.fma(simd.load(a.as_ptr().add(at)), simd.load(b.as_ptr().add(at)), sum) };
    }
    let rest = a.len() - whole;
    if rest > 0 {
        // SAFETY: `rest` values are left in both.
        sum = unsafe {
            let a = simd.load_first(a.as_ptr().add(whole), rest);
            simd.fma(a, simd.load_first(b.as_ptr().add(whole), rest), sum)
        };
    }
    simd.reduce_add(sum)
}

/// `e^g` as `(whole, part)` with `whole` 1 near 1 and else 0. The f32 rounding error of a factor just below 1 is the same
/// at every token and accumulates over thousands of tokens of a slow gate; `1 + part` avoids this.
#[inline(always)]
pub(super) fn decay<S: Simd>(simd: S, g: S::V) -> (S::V, S::V) {
    // e^g - 1 = g + g^2 p(g) with the polynomial of `math::exp` (Cephes expf), valid for |g| <= ln2 / 2.
    let mut p = simd.splat(1.987_569_1e-4);
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = simd.fma(p, g, simd.splat(c));
    }
    let minus_one = simd.fma(simd.mul(g, g), p, g);
    let limit = simd.splat(-0.346);
    let whole = simd.select_gt(g, limit, simd.splat(1.0), simd.splat(0.0));
    // Positive g beyond the polynomial takes the plain exponential as well.
    let small = simd.select_gt(simd.splat(0.346), g, whole, simd.splat(0.0));
    let part = simd.select_gt(small, simd.splat(0.5), minus_one, math::exp(simd, g));
    (small, part)
}
