//! Sampling of one row: keys and weights of all tokens, top-k and top-p limits by bisection over the keys, then an exponential race
//! among the remaining tokens.
#![allow(unsafe_code)] // Blocks write their own rows of the results.

use super::exact::{UNIT, earliness, factor, key, philox, value, weight};
use crate::simd::{Simd, SimdKernel, dispatch};
use device::{Device, Isa, SharedMut};
use ops::sampling::{CONTROLS, IN_PROMPT, NONE, SamplingProblem};
use ops::{Inputs, TensorMap, elements, elements_mut};

/// Runs the variant whose kernel name is `kernel`: a row is a block.
pub(super) fn run(
    isa: Isa,
    kernel: &str,
    problem: &SamplingProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let top = problem.top_logprobs;
    let mut rows = vec![RowResult::default(); problem.rows];
    let shared = SharedMut::new(&mut rows);
    device.launch(kernel, problem.rows, Scratch::default, |scratch, at| {
        let row = Row::new(problem, inputs, at);
        // SAFETY: no other block accesses this row.
        let chosen = unsafe { &mut shared.slice(at..at + 1)[0] };
        dispatch(isa, RowSampler { row, scratch, top, chosen });
    });
    for (at, chosen) in rows.iter().enumerate() {
        elements_mut::<i32>(outputs.get_mut("token"))[at] = chosen.token;
        if top > 0 {
            let tops = at * top..(at + 1) * top;
            elements_mut::<f32>(outputs.get_mut("logprob"))[at] = chosen.logprob;
            elements_mut::<i32>(outputs.get_mut("top_tokens"))[tops.clone()]
                .copy_from_slice(&chosen.top_tokens);
            elements_mut::<f32>(outputs.get_mut("top_logprobs"))[tops]
                .copy_from_slice(&chosen.top_logprobs);
        }
    }
}

/// Results of a row.
#[derive(Debug, Clone, Default)]
struct RowResult {
    token: i32,
    logprob: f32,
    top_tokens: Vec<i32>,
    top_logprobs: Vec<f32>,
}

/// Inputs of one row.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    logits: &'a [f32],
    mask: Option<&'a [i32]>,
    counts: Option<&'a [i32]>,
    temperature: f32,
    top_p: f32,
    min_p: f32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    top_k: usize,
    seed: [u32; 2],
    draw: u32,
}

impl<'a> Row<'a> {
    fn new(problem: &SamplingProblem, inputs: Inputs<'a>, at: usize) -> Self {
        let (vocabulary, words) = (problem.vocabulary, problem.mask_words());
        let integers = |name| elements::<i32>(inputs.tensor(name));
        let controls = &elements::<f32>(inputs.tensor("controls"))[at * CONTROLS..][..CONTROLS];
        let slot = inputs.get("slots").map_or(at as i32, |slots| elements::<i32>(slots)[at]);
        // Slot -1 has no sequence.
        let counts = inputs.get("counts").zip(usize::try_from(slot).ok());
        let counts = counts
            .map(|(counts, slot)| &elements::<i32>(counts)[slot * vocabulary..][..vocabulary]);
        let seed = integers("seed");
        Self {
            logits: &elements::<f32>(inputs.tensor("logits"))[at * vocabulary..][..vocabulary],
            mask: inputs.get("mask").map(|mask| &elements::<i32>(mask)[at * words..][..words]),
            counts,
            temperature: controls[0],
            top_p: controls[1],
            min_p: controls[2],
            repetition: controls[3],
            presence: controls[4],
            frequency: controls[5],
            top_k: integers("top_k")[at].try_into().unwrap_or(0),
            seed: [seed[2 * at].cast_unsigned(), seed[2 * at + 1].cast_unsigned()],
            draw: integers("draw")[at].cast_unsigned(),
        }
    }

    /// A logit with its penalties.
    #[inline(always)]
    fn penalised(&self, mut x: f32, count: i32) -> f32 {
        let times = count & !IN_PROMPT;
        if count != 0 {
            x = if x > 0.0 { x / self.repetition } else { x * self.repetition };
        }
        if times > 0 {
            x -= self.frequency * times as f32;
            x -= self.presence;
        }
        x
    }
}

/// Buffers of a thread.
#[derive(Debug, Default)]
struct Scratch {
    /// The order key of each token's logit, 0 for masked tokens.
    keys: Vec<u32>,
    weights: Vec<u32>,
    /// The inverse arrival time of each token, see [`earliness`].
    times: Vec<f32>,
}

/// Tokens that may be sampled: those with a larger key, and those with this key up to token `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limit {
    key: u32,
    last: usize,
}

/// Sum of the weights of keys of at least `least`.
#[inline(always)]
fn sum(keys: &[u32], weights: &[u32], least: u32) -> u64 {
    // Weights need 64-bit sums; `count` adds chunks in 32 bits.
    let of = |(key, weight): (&u32, &u32)| if *key >= least { u64::from(*weight) } else { 0 };
    keys.iter().zip(weights).map(of).sum()
}

#[inline(always)]
fn count(keys: &[u32], least: u32) -> u64 {
    keys.chunks(1 << 16)
        .map(|keys| u64::from(keys.iter().map(|key| u32::from(*key >= least)).sum::<u32>()))
        .sum()
}

impl Scratch {
    /// Finds, by bisection, the smallest set of most likely tokens within `limit` whose weight, or count, reaches the target. All of
    /// `limit` must reach it.
    #[inline(always)]
    fn find_limit(&self, limit: Limit, target: u64, by_weight: bool) -> Limit {
        let (keys, weights) = (&self.keys[..], &self.weights[..]);
        let from = |least| if by_weight { sum(keys, weights, least) } else { count(keys, least) };
        // Keys of at least `low` reach the target, keys of at least `high` do not.
        let (mut low, mut high) = (u64::from(limit.key), 1 << 32);
        let mut above = 0;
        while high - low > 1 {
            let middle = low.midpoint(high);
            let reached = from(middle as u32);
            if reached >= target {
                low = middle;
            } else {
                (high, above) = (middle, reached);
            }
        }
        let key = low as u32;
        let last = if key == limit.key { limit.last } else { usize::MAX };
        let mut left = target - above;
        for (token, own) in keys.iter().enumerate() {
            if *own != key || token > last {
                continue;
            }
            left = left.saturating_sub(if by_weight { u64::from(weights[token]) } else { 1 });
            if left == 0 {
                return Limit { key, last: token };
            }
        }
        Limit { key, last }
    }

    /// The weight of all tokens within a limit.
    #[inline(always)]
    fn within(&self, limit: Limit) -> u64 {
        let above = limit.key.checked_add(1).map_or(0, |key| sum(&self.keys, &self.weights, key));
        let of = |(token, key): (usize, &u32)| {
            let own = *key == limit.key && token <= limit.last;
            if own { u64::from(self.weights[token]) } else { 0 }
        };
        above + self.keys.iter().enumerate().map(of).sum::<u64>()
    }
}

struct RowSampler<'a> {
    row: Row<'a>,
    scratch: &'a mut Scratch,
    top: usize,
    chosen: &'a mut RowResult,
}

impl SimdKernel for RowSampler<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { row, scratch, top, chosen } = self;
        chosen.token = choose(&row, scratch).map_or(NONE, |token| token as i32);
        if top > 0 {
            top_logprobs(&row, scratch, top, chosen);
        }
    }
}

/// Writes the keys of all tokens, 0 for masked ones, and returns the largest; `None` if a logit is NaN or +inf, or all are masked.
#[inline(always)]
fn write_keys(row: &Row<'_>, keys: &mut Vec<u32>) -> Option<u32> {
    let mut wrong = false;
    keys.clear();
    keys.resize(row.logits.len(), 0);
    let mut key_of = |x: f32| {
        wrong |= x.is_nan() || x == f32::INFINITY;
        if x > f32::NEG_INFINITY { key(x) } else { 0 }
    };
    match row.counts {
        Some(counts) => {
            for ((to, x), count) in keys.iter_mut().zip(row.logits).zip(counts) {
                *to = key_of(row.penalised(*x, *count));
            }
        }
        None => {
            for (to, x) in keys.iter_mut().zip(row.logits) {
                *to = key_of(*x);
            }
        }
    }
    for (word, keys) in row.mask.unwrap_or_default().iter().zip(keys.chunks_mut(32)) {
        for (bit, key) in keys.iter_mut().enumerate() {
            *key &= (word >> bit & 1).wrapping_neg().cast_unsigned();
        }
    }
    let largest = keys.iter().copied().max().unwrap_or(0);
    (!wrong && largest > 0).then_some(largest)
}

/// Samples the next token of a row.
#[inline(always)]
fn choose(row: &Row<'_>, scratch: &mut Scratch) -> Option<usize> {
    let largest = write_keys(row, &mut scratch.keys)?;
    if row.temperature <= 0.0 {
        return scratch.keys.iter().position(|key| *key == largest);
    }
    let (most, factor) = (value(largest), factor(row.temperature));
    scratch.weights.clear();
    scratch.weights.extend(scratch.keys.iter().map(|key| {
        let weight = weight((value(*key) - most) * factor);
        if *key == 0 { 0 } else { weight }
    }));
    let mut limit = Limit { key: 1, last: usize::MAX };
    let vocabulary = row.logits.len();
    if (1..vocabulary).contains(&row.top_k) && count(&scratch.keys, 1) >= row.top_k as u64 {
        limit = scratch.find_limit(limit, row.top_k as u64, false);
    }
    if row.top_p < 1.0 {
        let target = (f64::from(row.top_p) * scratch.within(limit) as f64).ceil() as u64;
        limit = scratch.find_limit(limit, target.max(1), true);
    }
    let least = ((row.min_p * UNIT) as u32).max(1);
    race(row, scratch, limit, least)
}

/// The token within the limit that arrives first.
#[inline(always)]
fn race(row: &Row<'_>, scratch: &mut Scratch, limit: Limit, least: u32) -> Option<usize> {
    let Scratch { keys, weights, times } = scratch;
    let is_in = |token: usize| {
        let key = keys[token];
        (key > limit.key || (key == limit.key && token <= limit.last)) && weights[token] >= least
    };
    times.clear();
    times.resize(keys.len().next_multiple_of(4), 0.0);
    for (four, times) in times.chunks_exact_mut(4).enumerate() {
        let tokens = 4 * four..(4 * four + 4).min(keys.len());
        if !tokens.clone().any(is_in) {
            continue;
        }
        let words = philox([four as u32, row.draw, 0, 0], row.seed);
        for token in tokens.filter(|token| is_in(*token)) {
            times[token % 4] = earliness(weights[token], words[token % 4]);
        }
    }
    let first = times.iter().copied().fold(0.0, f32::max);
    times.iter().position(|time| *time == first)
}

/// The most likely tokens by the input logits, without penalties and mask, and the log-probabilities of these and of the chosen
/// token.
#[inline(always)]
fn top_logprobs(row: &Row<'_>, scratch: &mut Scratch, top: usize, chosen: &mut RowResult) {
    let logits = row.logits;
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    let logprob = |x: f32| (f64::from(x) - f64::from(largest) - sum.ln()) as f32;
    scratch.keys.clear();
    scratch.keys.extend(logits.iter().map(|x| key(*x)));
    let limit = scratch.find_limit(Limit { key: 1, last: usize::MAX }, top as u64, false);
    let within = |(token, key): &(usize, &u32)| {
        **key > limit.key || (**key == limit.key && *token <= limit.last)
    };
    let best = scratch.keys.iter().enumerate().filter(within);
    let mut best: Vec<(u32, usize)> = best.map(|(token, key)| (*key, token)).collect();
    best.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    chosen.top_tokens = best.iter().map(|(_, token)| *token as i32).collect();
    chosen.top_logprobs = best.iter().map(|(_, token)| logprob(logits[*token])).collect();
    let own = usize::try_from(chosen.token).ok().map(|token| logprob(logits[token]));
    chosen.logprob = own.unwrap_or(f32::NEG_INFINITY);
}
