//! The op in float64, from the formulas, by sorting. A choice is discrete and weights are rounded, so a kernel's token is accepted
//! if no other one is better by more than the rounding error; everything else is exact.

use super::{CONTROLS, IN_PROMPT, SamplingProblem};
use crate::{Inputs, Tensor, TensorMap};

/// Relative error bound of a float32 weight: that of `e^z` with z down to -22.
const ROUNDING: f64 = 2e-5;
/// Absolute error bound of a weight, relative to the largest one: weights are multiples of 2^-30 of it.
const GRAIN: f64 = 1.0 / (1u64 << 30) as f64;

/// The inputs of one row.
struct Row {
    /// Allowed tokens with their penalised logits, largest first; empty if no token can be chosen.
    order: Vec<(usize, f64)>,
    /// Logits as given.
    logits: Vec<f64>,
    temperature: f64,
    top_p: f64,
    min_p: f64,
    top_k: usize,
    /// Whether penalties changed a logit; equal logits may then differ by rounding.
    penalised: bool,
    seed: [u32; 2],
    draw: u32,
}

/// The inputs of all rows.
struct Rows<'a> {
    problem: &'a SamplingProblem,
    logits: Vec<f64>,
    controls: Vec<f64>,
    top_k: &'a [i32],
    seed: &'a [i32],
    draw: &'a [i32],
    mask: Option<&'a [i32]>,
    counts: Option<&'a [i32]>,
    slots: Option<&'a [i32]>,
}

impl<'a> Rows<'a> {
    fn new(problem: &'a SamplingProblem, inputs: Inputs<'a>) -> Self {
        let integers = |name| inputs.get(name).and_then(Tensor::view::<i32>);
        let required = |name| integers(name).unwrap_or_default();
        Self {
            problem,
            logits: inputs.tensor("logits").to_f64(),
            controls: inputs.tensor("controls").to_f64(),
            top_k: required("top_k"),
            seed: required("seed"),
            draw: required("draw"),
            mask: integers("mask"),
            counts: integers("counts"),
            slots: integers("slots"),
        }
    }

    /// The row of `counts`: occurrences of each token.
    fn counts(&self, at: usize) -> Vec<i32> {
        let vocabulary = self.problem.vocabulary;
        let slot = self.slots.map_or(at as i32, |slots| slots[at]);
        match (self.counts, usize::try_from(slot)) {
            (Some(counts), Ok(slot)) => counts[slot * vocabulary..][..vocabulary].to_vec(),
            _ => vec![0; vocabulary],
        }
    }

    fn allows(&self, at: usize, token: usize) -> bool {
        let words = self.problem.mask_words();
        self.mask.is_none_or(|mask| mask[at * words + token / 32] >> (token % 32) & 1 == 1)
    }
}

impl Row {
    fn new(rows: &Rows<'_>, at: usize) -> Self {
        let vocabulary = rows.problem.vocabulary;
        let logits = rows.logits[at * vocabulary..][..vocabulary].to_vec();
        let [temperature, top_p, min_p, repetition, presence, frequency] =
            rows.controls[at * CONTROLS..][..CONTROLS]
        else {
            unreachable!("the shape was checked")
        };
        let counts = rows.counts(at);
        let mut order = Vec::new();
        for (token, logit) in logits.iter().enumerate() {
            let (mut y, seen) = (*logit, counts[token] != 0);
            let times = f64::from(counts[token] & !IN_PROMPT);
            if seen {
                y = if y > 0.0 { y / repetition } else { y * repetition };
            }
            if times > 0.0 {
                y -= frequency * times + presence;
            }
            if rows.allows(at, token) && y > f64::NEG_INFINITY {
                // -0 is 0.
                order.push((token, y + 0.0));
            }
        }
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if logits.iter().any(|x| x.is_nan() || *x == f64::INFINITY) {
            order.clear();
        }
        Self {
            order,
            logits,
            temperature,
            top_p,
            min_p,
            top_k: rows.top_k[at].try_into().unwrap_or(0),
            penalised: counts.iter().any(|count| *count != 0),
            seed: [0, 1].map(|word| rows.seed[2 * at + word].cast_unsigned()),
            draw: rows.draw[at].cast_unsigned(),
        }
    }

    /// Weights in the order of choice, the first of them 1.
    fn weights(&self) -> Vec<f64> {
        let most = self.order.first().map_or(0.0, |(_, y)| *y);
        self.order.iter().map(|(_, y)| ((y - most) / self.temperature).exp()).collect()
    }

    /// Number of first tokens that top-k, top-p and min-p keep: the least and the most that rounding allows.
    fn kept(&self, weights: &[f64]) -> [usize; 2] {
        let mut most = self.order.len();
        if self.top_k > 0 {
            most = most.min(self.top_k);
        }
        let all: f64 = weights[..most].iter().sum();
        let slack = ROUNDING * all + GRAIN * most as f64;
        let [mut surely, mut maybe] = [most; 2];
        if self.top_p < 1.0 {
            let mut before = 0.0;
            [surely, maybe] = [0, 0];
            for weight in &weights[..most] {
                // The token that reaches top-p is the last one kept.
                surely += usize::from(before < self.top_p * all - slack);
                maybe += usize::from(before <= self.top_p * all + slack);
                before += weight;
            }
        }
        let least = |slack: f64| {
            weights.iter().take_while(|weight| **weight >= self.min_p * (1.0 + slack)).count()
        };
        [surely.min(least(2.0 * ROUNDING)).max(1), maybe.min(least(-2.0 * ROUNDING)).max(1)]
    }

    /// The acceptable tokens, the best one first.
    fn right(&self) -> Vec<usize> {
        let Some((_, most)) = self.order.first() else { return Vec::new() };
        let near = if self.penalised { 1e-6 * most.abs().max(1.0) } else { 0.0 };
        let tied = |y: f64, than: f64| y >= than - near;
        if self.temperature <= 0.0 {
            let mut right: Vec<usize> = self
                .order
                .iter()
                .take_while(|(_, y)| tied(*y, *most))
                .map(|(token, _)| *token)
                .collect();
            if !self.penalised {
                right.truncate(1);
            }
            return right;
        }
        let weights = self.weights();
        let [surely, mut maybe] = self.kept(&weights);
        if self.penalised && self.top_k == maybe {
            let edge = self.order[maybe - 1].1;
            maybe += self.order[maybe..].iter().take_while(|(_, y)| tied(*y, edge)).count();
        }
        // Scores weight / exponential; a token is acceptable if its upper bound reaches the best lower bound of the tokens kept
        // for certain.
        let time =
            |at: usize, weight: f64| weight / exponential(self.seed, self.draw, self.order[at].0);
        let least = |at: usize| time(at, (weights[at] * (1.0 - ROUNDING) - GRAIN).max(0.0));
        let most = |at: usize| time(at, weights[at] * (1.0 + ROUNDING) + GRAIN);
        let bar = (0..surely).map(least).fold(0.0, f64::max);
        let mut right: Vec<usize> = (0..maybe).filter(|at| most(*at) >= bar).collect();
        right.sort_by(|a, b| time(*b, weights[*b]).total_cmp(&time(*a, weights[*a])));
        right.into_iter().map(|at| self.order[at].0).collect()
    }

    /// The log-probability of a token by the unpenalised logits.
    fn logprob(&self, token: usize) -> f64 {
        let most = self.logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = self.logits.iter().map(|x| (x - most).exp()).sum();
        self.logits[token] - most - sum.ln()
    }
}

/// The exponential random number of a token: minus the logarithm of a word of Philox4x32-10, made odd, over 2^32.
fn exponential(seed: [u32; 2], draw: u32, token: usize) -> f64 {
    let mut counter = [token as u64 / 4, u64::from(draw), 0, 0];
    let mut key = seed.map(u64::from);
    const WORD: u64 = 0xffff_ffff;
    for _ in 0..10 {
        let (first, second) = (counter[0] * 0xd251_1f53, counter[2] * 0xcd9e_8d57);
        counter = [
            second >> 32 ^ counter[1] ^ key[0],
            second & WORD,
            first >> 32 ^ counter[3] ^ key[1],
            first & WORD,
        ];
        key = [(key[0] + 0x9e37_79b9) & WORD, (key[1] + 0xbb67_ae85) & WORD];
    }
    -((counter[token % 4] | 1) as f64 / (WORD + 1) as f64).ln()
}

/// The outputs with the reference's own choices.
pub(super) fn reference(problem: &SamplingProblem, inputs: Inputs<'_>) -> TensorMap {
    match solve(problem, inputs, None) {
        Ok(outputs) => outputs,
        Err(broken) => unreachable!("only choices from outside can be wrong: {broken}"),
    }
}

/// The outputs with the choices in `outputs`, after checking them.
pub(super) fn reference_given(
    problem: &SamplingProblem,
    inputs: Inputs<'_>,
    outputs: &TensorMap,
) -> Result<TensorMap, String> {
    let given = outputs.get("token").and_then(Tensor::view::<i32>);
    match given {
        Some(tokens) if tokens.len() == problem.rows => solve(problem, inputs, Some(tokens)),
        _ => Err(format!("tensor `token` is not i32 of {} rows", problem.rows)),
    }
}

fn solve(
    problem: &SamplingProblem,
    inputs: Inputs<'_>,
    given: Option<&[i32]>,
) -> Result<TensorMap, String> {
    let top = problem.top_logprobs;
    let (mut tokens, mut own, mut top_tokens, mut logprobs) = (vec![], vec![], vec![], vec![]);
    let all = Rows::new(problem, inputs);
    for at in 0..problem.rows {
        let row = Row::new(&all, at);
        let right = row.right();
        let token = match given {
            None => right.first().map_or(-1, |token| *token as i32),
            Some(given) => checked(at, given[at], &right)?,
        };
        tokens.push(f64::from(token));
        if top > 0 {
            let mut order: Vec<usize> = (0..problem.vocabulary).collect();
            let logit = |token: &usize| row.logits[*token] + 0.0;
            order.sort_by(|a, b| logit(b).total_cmp(&logit(a)).then(a.cmp(b)));
            order.truncate(top);
            own.push(usize::try_from(token).map_or(f64::NEG_INFINITY, |token| row.logprob(token)));
            logprobs.extend(order.iter().map(|token| row.logprob(*token)));
            top_tokens.extend(order.iter().map(|token| *token as f64));
        }
    }
    let rows = problem.rows;
    let mut outputs = TensorMap::from([("token".to_owned(), Tensor::new(&[rows], tokens))]);
    if top > 0 {
        outputs.insert("logprob".to_owned(), Tensor::new(&[rows], own));
        outputs.insert("top_tokens".to_owned(), Tensor::new(&[rows, top], top_tokens));
        outputs.insert("top_logprobs".to_owned(), Tensor::new(&[rows, top], logprobs));
    }
    Ok(outputs)
}

/// A kernel's token, if it is acceptable.
fn checked(row: usize, token: i32, right: &[usize]) -> Result<i32, String> {
    let is_right = match usize::try_from(token) {
        Ok(token) => right.contains(&token),
        Err(_) => token == -1 && right.is_empty(),
    };
    match right.first() {
        _ if is_right => Ok(token),
        None => Err(format!("row {row}: token {token}, where none can be chosen: wanted -1")),
        Some(best) => Err(format!("row {row}: token {token}, wanted {best}")),
    }
}
