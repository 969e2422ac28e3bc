//! One token of a value head, forwards and backwards, and what precedes and follows it: gates and norms.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers.

use super::buffers::Token;
use crate::kda::operands::{decay, dot};
use crate::simd::{Simd, math};
use crate::vectors::{dots_wide, scale};
use ops::kda::Gate;

/// Advances a state `[K, padded V]` by a token, and keeps what it decayed to: `S' = Diag(e^g) S`, `error = v - k^T S'`, `S = S' + beta k error^T`.
#[inline(always)]
pub(super) fn advance<S: Simd>(
    simd: S,
    token: &mut Token<'_>,
    state: &mut [f32],
    decayed: &mut [f32],
) {
    let columns = token.error.len();
    for channel in 0..state.len() / columns.max(1) {
        let row = channel * columns..(channel + 1) * columns;
        let (state, decayed) = (&state[row.clone()], &mut decayed[row]);
        let [whole, part] = [token.whole, token.part].map(|factor| simd.splat(factor[channel]));
        let minus_k = simd.splat(-token.k[channel]);
        for at in (0..columns).step_by(S::LANES) {
            // SAFETY: rows are `columns` long, which is whole vectors.
            unsafe {
                let error = token.error.as_mut_ptr().add(at);
                let s = simd.load(state.as_ptr().add(at));
                let s = simd.fma(part, s, simd.mul(whole, s));
                simd.store(decayed.as_mut_ptr().add(at), s);
                simd.store(error, simd.fma(minus_k, s, simd.load(error)));
            }
        }
    }
    for channel in 0..state.len() / columns.max(1) {
        let row = channel * columns..(channel + 1) * columns;
        let (state, decayed) = (&mut state[row.clone()], &decayed[row]);
        let write = simd.splat(token.beta * token.k[channel]);
        for at in (0..columns).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let error = simd.load(token.error.as_ptr().add(at));
                let s = simd.load(decayed.as_ptr().add(at));
                simd.store(state.as_mut_ptr().add(at), simd.fma(write, error, s));
            }
        }
    }
}

/// Destinations of the gradients of one token: those of the query and key are added, those of the log decay and value written.
pub(super) struct Gradients<'a> {
    /// `[padded K]`
    pub(super) dq: &'a mut [f32],
    pub(super) dk: &'a mut [f32],
    pub(super) dg: &'a mut [f32],
    /// `[padded V]`
    pub(super) dv: &'a mut [f32],
}

/// One token backwards, with the gradient of the state after it, which becomes that of the state before it. Returns the gradient of the write
/// strength.
#[inline(always)]
pub(super) fn go_back<S: Simd>(
    simd: S,
    token: &Token<'_>,
    decayed: &[f32],
    dstate: &mut [f32],
    Gradients { dq, dk, dg, dv }: Gradients<'_>,
    scale_of_q: f32,
) -> f32 {
    let Token { q, k, whole, part, d_o, error, beta } = token;
    let columns = d_o.len();
    // Here dv is the gradient of the write: dS^T k.
    dv.fill(0.0);
    for channel in 0..dstate.len() / columns.max(1) {
        let dstate = &mut dstate[channel * columns..][..columns];
        let (q, k) = (simd.splat(scale_of_q * q[channel]), simd.splat(k[channel]));
        for at in (0..columns).step_by(S::LANES) {
            // SAFETY: rows are `columns` long, which is whole vectors.
            unsafe {
                let (ds, dv) = (dstate.as_mut_ptr().add(at), dv.as_mut_ptr().add(at));
                let sum = simd.fma(q, simd.load(d_o.as_ptr().add(at)), simd.load(ds));
                simd.store(ds, sum);
                simd.store(dv, simd.fma(k, sum, simd.load(dv)));
            }
        }
    }
    let dbeta = dot(simd, dv, error);
    let own_output = beta * dot(simd, d_o, error);
    scale(simd, dv, *beta);
    for channel in 0..dstate.len() / columns.max(1) {
        let row = channel * columns..(channel + 1) * columns;
        let (decayed, dstate) = (&decayed[row.clone()], &mut dstate[row]);
        let (whole, part) = (simd.splat(whole[channel]), simd.splat(part[channel]));
        let minus_k = simd.splat(-k[channel]);
        let zero = simd.splat(0.0);
        let (mut of_output, mut of_write, mut of_read, mut of_decay) = (zero, zero, zero, zero);
        for at in (0..columns).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let s = simd.load(decayed.as_ptr().add(at));
                let ds = simd.load(dstate.as_ptr().add(at));
                let dv = simd.load(dv.as_ptr().add(at));
                of_output = simd.fma(s, simd.load(d_o.as_ptr().add(at)), of_output);
                of_write = simd.fma(ds, simd.load(error.as_ptr().add(at)), of_write);
                of_read = simd.fma(s, dv, of_read);
                let ds = simd.fma(minus_k, dv, ds);
                of_decay = simd.fma(s, ds, of_decay);
                let ds = simd.fma(part, ds, simd.mul(whole, ds));
                simd.store(dstate.as_mut_ptr().add(at), ds);
            }
        }
        dq[channel] += scale_of_q * (simd.reduce_add(of_output) + k[channel] * own_output);
        dk[channel] += beta * simd.reduce_add(of_write) - simd.reduce_add(of_read);
        dg[channel] = simd.reduce_add(of_decay);
    }
    dbeta
}

/// Replaces logits by log decays, and writes the derivatives of a log decay by its logit and by A_log. For a safe gate the second is already
/// that of the logit times the logit. Rows are whole vectors.
#[inline(always)]
pub(super) fn activate<S: Simd>(
    simd: S,
    gate: Gate,
    rate: f32,
    bias: &[f32],
    [logits, slope, of_rate]: [&mut [f32]; 3],
) {
    let (rate, minus_rate) = (simd.splat(rate), simd.splat(-rate));
    for at in (0..bias.len()).step_by(S::LANES) {
        // SAFETY: all rows are as long as `bias`, which is whole vectors.
        unsafe {
            let logits = logits.as_mut_ptr().add(at);
            let x = simd.add(simd.load(logits), simd.load(bias.as_ptr().add(at)));
            let (log_decay, by_logit, by_rate) = match gate {
                Gate::Safe { lower_bound } => {
                    let [sigmoid, complement] = math::sigmoids(simd, simd.mul(rate, x));
                    let log_decay = simd.mul(simd.splat(lower_bound as f32), sigmoid);
                    let by_logit = simd.mul(rate, simd.mul(log_decay, complement));
                    (log_decay, by_logit, simd.mul(by_logit, x))
                }
                _ => {
                    let log_decay = simd.mul(minus_rate, math::softplus(simd, x));
                    (log_decay, simd.mul(minus_rate, math::sigmoids(simd, x)[0]), log_decay)
                }
            };
            simd.store(logits, log_decay);
            simd.store(slope.as_mut_ptr().add(at), by_logit);
            simd.store(of_rate.as_mut_ptr().add(at), by_rate);
        }
    }
}

/// The gradient of a row `x` from that of the normalised row, in float64: in rows of few channels its two terms nearly cancel.
pub(super) fn through_norm(x: &[f32], gradient: &mut [f32]) {
    let [squares, products] = dots_wide(x, gradient);
    let r = 1.0 / (squares + 1e-6).sqrt();
    let along = r * r * r * products;
    for (to, x) in gradient.iter_mut().zip(x) {
        *to = (r * f64::from(*to) - along * f64::from(*x)) as f32;
    }
}

/// Splits decays: replaces log decays by a number to add to a factor of 0 or 1, which it writes. Both rows are whole vectors of one length.
#[inline(always)]
pub(super) fn decay_factors<S: Simd>(simd: S, part: &mut [f32], whole: &mut [f32]) {
    for at in (0..part.len()).step_by(S::LANES) {
        // SAFETY: both rows are whole vectors of one length.
        unsafe {
            let part = part.as_mut_ptr().add(at);
            let of_vector = decay(simd, simd.load(part));
            simd.store(whole.as_mut_ptr().add(at), of_vector.0);
            simd.store(part, of_vector.1);
        }
    }
}
