//! Token by token, one vector lane per channel. A block transposes its channels' states and rates once, so that nothing is summed
//! across lanes, and step sizes, gates and skips are vectors too.
#![allow(unsafe_code)] // Vector loads and stores through raw pointers into buffers of whole vectors.

use super::operands::{Block, Scan, finish};
use crate::aligned::Aligned;
use crate::floats::{narrow, widen};
use crate::simd::{Simd, math};
use crate::transpose::transpose;
use ops::Element;
use ops::selective_scan::SelectiveScanProblem;

/// With fewer tokens the transposes cost more than they save: 2 tokens at E = 8192, N = 16 take 1.5 times as long as one lane per
/// state.
const FEWEST_TOKENS: usize = 8;

/// The scheme, with its buffers of one thread.
#[derive(Default)]
pub(super) struct Channels {
    states: Aligned,
    rates: Aligned,
    b: Aligned,
    c: Aligned,
    /// A token's u, delta, z and y, then D and the bias, one value per channel.
    rows: [Aligned; 6],
}

impl Scan for Channels {
    /// No sequence is long enough.
    fn why_not(problem: &SelectiveScanProblem) -> Option<String> {
        let longest = problem.sequences.longest();
        (longest < FEWEST_TOKENS).then(|| {
            format!("needs a sequence of {FEWEST_TOKENS} tokens or more, the longest has {longest}")
        })
    }

    #[inline(always)]
    fn scan<S: Simd, E: Element>(&mut self, simd: S, block: Block<'_, E>) {
        let Self { states, rates, b, c, rows } = self;
        let operands = block.operands;
        let (n, width) = (operands.problem.state_dim, block.channels.len());
        let padded = width.next_multiple_of(S::LANES);
        let states = states.of_len(padded * n);
        let rates = rates.of_len(padded * n);
        let (b, c) = (b.of_len(n), c.of_len(n));
        // Padding after the last channel is computed but not stored.
        let [u, delta, z, y, d, bias] = rows.each_mut().map(|row| row.of_len(padded));
        for row in [&mut *u, delta, z, d, bias] {
            row.fill(0.0);
        }
        d[..width].copy_from_slice(&operands.d[block.channels.clone()]);
        bias[..width].copy_from_slice(&operands.bias[block.channels.clone()]);
        let of_block = block.channels.start * n..block.channels.end * n;
        to_lanes(simd, &operands.rates[of_block], n, rates);
        match operands.initial_state {
            Some(initial) => {
                to_lanes(simd, &initial[block.at..block.at + width * n], n, states);
            }
            None => states.fill(0.0),
        }
        for token in block.tokens.clone() {
            let row = block.row(token);
            widen(simd, &operands.u[row.clone()], &mut u[..width]);
            operands.delta.widen(simd, row.clone(), &mut delta[..width]);
            if let Some(all) = operands.z {
                widen(simd, &all[row], &mut z[..width]);
            }
            let b = operands.projection(simd, operands.b, (token, block.group), b);
            let c = operands.projection(simd, operands.c, (token, block.group), c);
            for first in (0..padded).step_by(S::LANES) {
                // SAFETY: every buffer has whole vectors up to `padded`, and b and c have n values.
                unsafe {
                    let at = |row: &[f32]| simd.load(row.as_ptr().add(first));
                    let own = at(u);
                    let dt = operands.step(simd, at(delta), at(bias));
                    let input = simd.mul(dt, own);
                    let (states, rates) =
                        (states.as_mut_ptr().add(first * n), rates.as_ptr().add(first * n));
                    let mut sum = simd.splat(0.0);
                    for n in 0..n {
                        let state = states.add(n * S::LANES);
                        let rate = simd.load(rates.add(n * S::LANES));
                        let h = simd.mul(math::exp(simd, simd.mul(dt, rate)), simd.load(state));
                        let h = simd.fma(input, simd.splat(*b.get_unchecked(n)), h);
                        simd.store(state, h);
                        sum = simd.fma(h, simd.splat(*c.get_unchecked(n)), sum);
                    }
                    let gate = operands.z.map(|_| at(z));
                    let made = finish(simd, sum, own, at(d), gate);
                    simd.store(y.as_mut_ptr().add(first), made);
                }
            }
            narrow(simd, &y[..width], block.output(token));
        }
        from_lanes(simd, states, n, block.state);
    }
}

/// Transposes rows `[channels, n]` to vectors of channels, `[vectors, n, LANES]`, padded with zeros after the last channel.
#[inline(always)]
fn to_lanes<S: Simd>(simd: S, from: &[f32], n: usize, to: &mut [f32]) {
    let size = S::LANES * n;
    for (from, to) in from.chunks(size.max(1)).zip(to.chunks_exact_mut(size.max(1))) {
        if from.len() == size {
            transpose(simd, from, S::LANES, n, to);
            continue;
        }
        to.fill(0.0);
        for (lane, row) in from.chunks_exact(n).enumerate() {
            row.iter().enumerate().for_each(|(at, value)| to[at * S::LANES + lane] = *value);
        }
    }
}

/// The inverse of [`to_lanes`].
#[inline(always)]
fn from_lanes<S: Simd>(simd: S, from: &[f32], n: usize, to: &mut [f32]) {
    let size = S::LANES * n;
    for (from, to) in from.chunks_exact(size.max(1)).zip(to.chunks_mut(size.max(1))) {
        if to.len() == size {
            transpose(simd, from, n, S::LANES, to);
            continue;
        }
        for (lane, row) in to.chunks_exact_mut(n).enumerate() {
            row.iter_mut().enumerate().for_each(|(at, value)| *value = from[at * S::LANES + lane]);
        }
    }
}
