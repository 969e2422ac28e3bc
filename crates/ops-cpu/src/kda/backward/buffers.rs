//! The memory of a block: rows of the tokens of a chunk, and states.

use super::CHUNK;
use crate::aligned::Aligned;
use crate::vectors::padded;
use ops::kda::KdaProblem;

/// Memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    of_call: [Aligned; 9],
    of_chunk: [Aligned; 8],
    beta: [[f32; 2]; CHUNK],
}

impl Scratch {
    /// The buffers for a sequence. Not inlined: resizing takes more code than the arithmetic.
    #[inline(never)]
    pub(super) fn buffers(&mut self, problem: &KdaProblem, tokens: usize) -> Buffers<'_> {
        let [width, columns] = [problem.key_dim, problem.value_dim].map(padded);
        let gates = padded(problem.gate_dim());
        let size = problem.key_dim * columns;
        let [starts, state, decayed, dstate, dq, dk, dg, x, dv] = &mut self.of_call;
        let [q, k, whole, part, slope, of_rate, d_o, error] = &mut self.of_chunk;
        Buffers {
            starts: starts.of_len(tokens.div_ceil(CHUNK) * size),
            state: state.of_len(size),
            decayed: decayed.of_len(CHUNK * size),
            dstate: dstate.of_len(size),
            dq: dq.of_len(tokens * width),
            dk: dk.of_len(tokens * width),
            dg: dg.of_len(width),
            x: x.of_len(width),
            dv: dv.of_len(columns),
            chunk: Chunk {
                q: q.of_len(CHUNK * width),
                k: k.of_len(CHUNK * width),
                whole: whole.of_len(CHUNK * width),
                part: part.of_len(CHUNK * width),
                slope: slope.of_len(CHUNK * gates),
                of_rate: of_rate.of_len(CHUNK * gates),
                d_o: d_o.of_len(CHUNK * columns),
                error: error.of_len(CHUNK * columns),
                beta: &mut self.beta,
            },
        }
    }
}

/// The buffers of a block.
pub(super) struct Buffers<'a> {
    pub(super) chunk: Chunk<'a>,
    /// The state before each chunk, `[chunks, K, padded V]`.
    pub(super) starts: &'a mut [f32],
    /// The state after a token, `[K, padded V]`.
    pub(super) state: &'a mut [f32],
    /// The decayed state of each token of a chunk, `[CHUNK, K, padded V]`.
    pub(super) decayed: &'a mut [f32],
    /// The gradient of the state, `[K, padded V]`.
    pub(super) dstate: &'a mut [f32],
    /// Gradients of the normalised queries and keys, `[tokens, padded K]`.
    pub(super) dq: &'a mut [f32],
    pub(super) dk: &'a mut [f32],
    /// `[padded K]`
    pub(super) dg: &'a mut [f32],
    pub(super) x: &'a mut [f32],
    /// `[padded V]`
    pub(super) dv: &'a mut [f32],
}

/// The tokens of a chunk of one value head.
pub(super) struct Chunk<'a> {
    /// Normalised, `[tokens, padded K]`.
    pub(super) q: &'a mut [f32],
    pub(super) k: &'a mut [f32],
    /// The decay, as a factor of 0 or 1 and a number to add to it, `[tokens, padded K]`.
    pub(super) whole: &'a mut [f32],
    pub(super) part: &'a mut [f32],
    /// Derivatives of the log decay with respect to the logit and to A_log, `[tokens, padded gates]`.
    pub(super) slope: &'a mut [f32],
    pub(super) of_rate: &'a mut [f32],
    /// `[tokens, padded V]`
    pub(super) d_o: &'a mut [f32],
    /// The value, then the value minus k^T S of the decayed state S, `[tokens, padded V]`.
    pub(super) error: &'a mut [f32],
    /// Write strength beta and its derivative with respect to the logit.
    pub(super) beta: &'a mut [[f32; 2]; CHUNK],
}

/// One token of a [`Chunk`].
pub(super) struct Token<'a> {
    /// `[padded K]`
    pub(super) q: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) whole: &'a [f32],
    pub(super) part: &'a [f32],
    /// `[padded V]`
    pub(super) d_o: &'a [f32],
    pub(super) error: &'a mut [f32],
    pub(super) beta: f32,
}

impl Chunk<'_> {
    #[inline(always)]
    pub(super) fn token(&mut self, index: usize, width: usize, columns: usize) -> Token<'_> {
        let (row, own) =
            (index * width..(index + 1) * width, index * columns..(index + 1) * columns);
        Token {
            q: &self.q[row.clone()],
            k: &self.k[row.clone()],
            whole: &self.whole[row.clone()],
            part: &self.part[row],
            d_o: &self.d_o[own.clone()],
            error: &mut self.error[own],
            beta: self.beta[index][0],
        }
    }
}
