//! Token by token, one vector lane per state of a channel: states and rates are read without transposing. For decode steps, which read
//! each of them once.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers into rows of known length.

use super::operands::{Block, Scan, finish};
use crate::aligned::Aligned;
use crate::floats::{narrow, widen};
use crate::simd::{Simd, math};
use ops::Element;

/// The scheme, with its buffers of one thread.
#[derive(Default)]
pub(super) struct States {
    b: Aligned,
    c: Aligned,
    /// A token's u, delta, z and y, one value per channel.
    rows: [Aligned; 4],
}

impl Scan for States {
    #[inline(always)]
    fn scan<S: Simd, E: Element>(&mut self, simd: S, block: Block<'_, E>) {
        let Self { b, c, rows } = self;
        let operands = block.operands;
        let (n, width, channels) =
            (operands.problem.state_dim, block.channels.len(), block.channels.clone());
        let (b, c) = (b.of_len(n), c.of_len(n));
        let [u, delta, z, y] = rows.each_mut().map(|row| row.of_len(width));
        let (d, bias) = (&operands.d[channels.clone()], &operands.bias[channels.clone()]);
        let rates = &operands.rates[channels.start * n..channels.end * n];
        let before = operands.initial_state.map(|initial| &initial[block.at..][..width * n]);
        if before.is_none() {
            operands.begin(block.at, block.state);
        }
        let state = block.state.as_mut_ptr();
        for token in block.tokens.clone() {
            let row = block.row(token);
            widen(simd, &operands.u[row.clone()], u);
            operands.delta.widen(simd, row.clone(), delta);
            if let Some(all) = operands.z {
                widen(simd, &all[row], z);
            }
            let b = operands.projection(simd, operands.b, (token, block.group), b);
            let c = operands.projection(simd, operands.c, (token, block.group), c);
            let vectors = (0..width).step_by(S::LANES).map(|at| (at, S::LANES.min(width - at)));
            for (at, count) in vectors.clone() {
                // SAFETY: `count` values from `at` on are inside both.
                unsafe {
                    let of = delta.as_mut_ptr().add(at);
                    let bias = simd.load_first(bias.as_ptr().add(at), count);
                    let step = operands.step(simd, simd.load_first(of, count), bias);
                    simd.store_first(of, step, count);
                }
            }
            let from = match before {
                Some(before) if token == block.tokens.start => before.as_ptr(),
                _ => state.cast_const(),
            };
            for (channel, y) in y.iter_mut().enumerate() {
                let (dt, input) =
                    (simd.splat(delta[channel]), simd.splat(delta[channel] * u[channel]));
                let mut sum = simd.splat(0.0);
                for at in (0..n).step_by(S::LANES) {
                    let count = S::LANES.min(n - at);
                    let own = channel * n + at;
                    // SAFETY: `count` values of this channel's row from `at` on are inside states and rates, and of b and c.
                    unsafe {
                        let rate = simd.load_first(rates.as_ptr().add(own), count);
                        let decay = math::exp(simd, simd.mul(dt, rate));
                        let h = simd.mul(decay, simd.load_first(from.add(own), count));
                        let h = simd.fma(input, simd.load_first(b.as_ptr().add(at), count), h);
                        simd.store_first(state.add(own), h, count);
                        sum = simd.fma(h, simd.load_first(c.as_ptr().add(at), count), sum);
                    }
                }
                *y = simd.reduce_add(sum);
            }
            for (at, count) in vectors {
                // SAFETY: `count` values from `at` on are inside each.
                unsafe {
                    let of = |row: &[f32]| simd.load_first(row.as_ptr().add(at), count);
                    let gate = operands.z.map(|_| of(z));
                    let made = finish(simd, of(y), of(u), of(d), gate);
                    simd.store_first(y.as_mut_ptr().add(at), made, count);
                }
            }
            narrow(simd, y, block.output(token));
        }
    }
}
