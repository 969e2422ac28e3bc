//! Choosing the next token from logits.

use crate::ModelError;
use std::cmp::Ordering;

/// How the next token is chosen. Steps are taken in the order of the fields, as transformers takes them.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Logits of tokens that were there already, in the prompt or since, are divided by this where positive and
    /// multiplied where negative; 1 for none.
    pub repetition_penalty: f64,
    /// Logits are divided by this; 0 takes the largest.
    pub temperature: f64,
    /// Only this many largest logits; none for all.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens whose probabilities sum up to this; 1 for all.
    pub top_p: f64,
    /// Only tokens at least this times as likely as the likeliest; 0 for all.
    pub min_p: f64,
    /// The same seed chooses the same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// The largest logit.
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether these mean something.
    ///
    /// # Errors
    /// [`ModelError::Call`] naming the first that does not, what it may be, and an example.
    pub fn check(&self) -> Result<(), ModelError> {
        let refuse = |name: &str, value: f64, wanted: &str, hint: &str| {
            Err(ModelError::call(format!("{name} is {value}, wanted {wanted}"), hint))
        };
        match self {
            Self { repetition_penalty: x, .. } if !(x.is_finite() && *x > 0.0) => refuse(
                "the repetition penalty",
                *x,
                "a number above 0",
                "1 changes nothing, 1.1 is a usual value",
            ),
            Self { temperature: x, .. } if !(x.is_finite() && *x >= 0.0) => refuse(
                "the temperature",
                *x,
                "0 or more",
                "0 always takes the most likely token, 0.7 is a usual value",
            ),
            Self { top_k: Some(0), .. } => refuse(
                "top-k",
                0.0,
                "1 or more",
                "40 is a usual value; leave it out for all tokens",
            ),
            Self { top_p: x, .. } if !(*x > 0.0 && *x <= 1.0) => refuse(
                "top-p",
                *x,
                "a number above 0, at most 1",
                "1 is for all tokens, 0.9 is a usual value",
            ),
            Self { min_p: x, .. } if !(0.0..=1.0).contains(x) => {
                refuse("min-p", *x, "0 to 1", "0 is for all tokens, 0.05 is a usual value")
            }
            _ => Ok(()),
        }
    }
}

/// The token of the largest logit, the first of equal ones.
pub(crate) fn likeliest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    best.0
}

/// A token and its logit.
type Candidate = (u32, f64);

/// Of equal logits the lower token is the likelier.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Candidates of which so many as were asked for are in order, likeliest first. A vocabulary takes milliseconds to sort, and a
/// draw mostly falls on one of the first.
struct Ranked {
    candidates: Vec<Candidate>,
    /// How many are in their places.
    sorted: usize,
}

impl Ranked {
    /// Candidates that are sorted first.
    const FIRST: usize = 64;

    /// The candidate in place `at`.
    fn get(&mut self, at: usize) -> Option<Candidate> {
        while at >= self.sorted && self.sorted < self.candidates.len() {
            let rest = &mut self.candidates[self.sorted..];
            // Each time a multiple of what there is: all of them are in order after a few times.
            let more = Self::FIRST.max(3 * self.sorted).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more, likelier);
            }
            rest[..more].sort_unstable_by(likelier);
            self.sorted += more;
        }
        self.candidates.get(at).copied()
    }
}

/// The choices of one sequence.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    /// Which tokens were there already.
    seen: Vec<bool>,
    random: u64,
}

impl Sampler {
    /// A sampler for a sequence that begins with a prompt.
    pub fn new(sampling: Sampling, vocabulary: usize, prompt: &[u32]) -> Self {
        let random = sampling.seed;
        let mut sampler = Self { sampling, seen: vec![false; vocabulary], random };
        prompt.iter().for_each(|token| sampler.see(*token));
        sampler
    }

    fn see(&mut self, token: u32) {
        if let Some(seen) = self.seen.get_mut(token as usize) {
            *seen = true;
        }
    }

    /// Whether it always takes the largest logit.
    pub(crate) fn takes_the_likeliest(&self) -> bool {
        self.sampling.temperature == 0.0 && self.sampling.repetition_penalty == 1.0
    }

    /// Chooses the next token. Of equal logits the lower token is taken first.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let penalty = self.sampling.repetition_penalty;
        if self.takes_the_likeliest() {
            // Most generation is this, and need not rank anything.
            return likeliest(logits);
        }
        let mut all: Vec<Candidate> = (0..).zip(logits.iter().map(|x| f64::from(*x))).collect();
        if penalty != 1.0 {
            for ((_, logit), seen) in all.iter_mut().zip(&self.seen) {
                if *seen {
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
        }
        let token = if self.sampling.temperature == 0.0 {
            all.iter().copied().min_by(likelier).map_or(0, |(token, _)| token)
        } else {
            let keep = self.sampling.top_k.unwrap_or(all.len()).min(all.len());
            // The k largest are found without sorting the rest.
            if keep < all.len() {
                all.select_nth_unstable_by(keep, likelier);
                all.truncate(keep);
            }
            self.draw(Ranked { candidates: all, sorted: 0 })
        };
        self.see(token);
        token
    }

    /// Draws from candidates, likeliest first.
    fn draw(&mut self, mut ranked: Ranked) -> u32 {
        let Sampling { temperature, top_p, min_p, .. } = self.sampling;
        let largest = ranked.get(0).map_or(0.0, |(_, logit)| logit);
        let weight = |logit: f64| ((logit - largest) / temperature).exp();
        let all: f64 = ranked.candidates.iter().map(|(_, logit)| weight(*logit)).sum();
        // Without a limit every candidate is kept, and none has to be ranked for that.
        let limited = top_p < 1.0 || min_p > 0.0;
        let (mut kept, mut mass) = (ranked.candidates.len(), all);
        if limited {
            // The last token that is kept is the one that reaches top-p. The likeliest has weight 1, so min-p compares
            // weights as they are.
            (kept, mass) = (0, 0.0);
            while let Some((_, logit)) = ranked.get(kept) {
                let weight = weight(logit);
                if kept > 0 && (mass >= top_p * all || weight < min_p) {
                    break;
                }
                (kept, mass) = (kept + 1, mass + weight);
            }
        }
        let mut left = self.uniform() * mass;
        let mut token = 0;
        for at in 0..kept {
            let Some((candidate, logit)) = ranked.get(at) else { break };
            // Rounding may leave a rest after the last.
            token = candidate;
            left -= weight(logit);
            if left < 0.0 {
                break;
            }
        }
        token
    }

    /// A number from 0 to 1, 1 left out: SplitMix64.
    fn uniform(&mut self) -> f64 {
        let bits = crate::random::mix(self.random);
        self.random = self.random.wrapping_add(crate::random::STEP);
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 6] = [0.5, 2.0, -1.0, 2.0, 1.0, -3.0];

    /// How often each token is drawn.
    fn drawn(sampling: Sampling, prompt: &[u32]) -> [f64; 6] {
        const DRAWS: u32 = 20_000;
        let mut counts = [0.0; 6];
        for seed in 0..DRAWS {
            let sampling = Sampling { seed: u64::from(seed), ..sampling.clone() };
            let token = Sampler::new(sampling, 6, prompt).choose(&LOGITS);
            counts[token as usize] += 1.0 / f64::from(DRAWS);
        }
        counts
    }

    /// Holds draws against unnormalised weights, 0 meaning never.
    fn check(sampling: Sampling, prompt: &[u32], weights: [f64; 6]) {
        let sum: f64 = weights.iter().sum();
        let got = drawn(sampling.clone(), prompt);
        for (token, (got, weight)) in got.iter().zip(weights).enumerate() {
            let want = weight / sum;
            assert!((got - want).abs() < 0.015, "{sampling:?} token {token}: {got}, wanted {want}");
            assert_eq!(*got == 0.0, weight == 0.0, "{sampling:?} token {token}");
        }
    }

    #[test]
    fn draws_follow_the_probabilities_that_are_left() {
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let e = |x: f64| x.exp();
        let all = [e(0.5), e(2.0), e(-1.0), e(2.0), e(1.0), e(-3.0)];
        check(warm.clone(), &[], all);
        check(Sampling { temperature: 2.0, ..warm.clone() }, &[], all.map(f64::sqrt));
        let three = [0.0, e(2.0), 0.0, e(2.0), e(1.0), 0.0];
        check(Sampling { top_k: Some(3), ..warm.clone() }, &[], three);
        // The two likeliest have 0.78 together, the third reaches 0.8.
        check(Sampling { top_p: 0.8, ..warm.clone() }, &[], three);
        check(Sampling { top_p: 0.01, ..warm.clone() }, &[], [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        // e^(1-2) = 0.37 stays, e^(0.5-2) = 0.22 goes.
        check(Sampling { min_p: 0.3, ..warm.clone() }, &[], three);
        let penal = Sampling { repetition_penalty: 2.0, ..warm };
        check(penal, &[1, 2], [e(0.5), e(1.0), e(-2.0), e(2.0), e(1.0), e(-3.0)]);
    }

    #[test]
    fn the_largest_is_taken_and_what_was_there_is_penalised() {
        let mut greedy = Sampler::new(Sampling::default(), 6, &[]);
        assert_eq!([greedy.choose(&LOGITS), greedy.choose(&LOGITS)], [1, 1]);
        let penal = Sampling { repetition_penalty: 3.0, ..Sampling::default() };
        let mut penal = Sampler::new(penal, 6, &[]);
        assert_eq!([0; 4].map(|_| penal.choose(&LOGITS)), [1, 3, 4, 1]);
    }

    #[test]
    fn settings_that_mean_nothing_are_refused() {
        assert!(Sampling::default().check().is_ok());
        for (sampling, words) in [
            (
                Sampling { top_p: 0.0, ..Sampling::default() },
                "top-p is 0, wanted a number above 0, at most 1",
            ),
            (Sampling { top_k: Some(0), ..Sampling::default() }, "top-k is 0, wanted 1 or more"),
            (Sampling { min_p: 1.5, ..Sampling::default() }, "min-p is 1.5, wanted 0 to 1"),
            (
                Sampling { temperature: f64::NAN, ..Sampling::default() },
                "the temperature is NaN, wanted 0 or more",
            ),
            (
                Sampling { repetition_penalty: 0.0, ..Sampling::default() },
                "the repetition penalty is 0, wanted a number above 0",
            ),
        ] {
            let wrong = sampling.check().unwrap_err();
            assert_eq!(wrong.to_string(), words);
            assert!(wrong.hint().is_some_and(|hint| hint.contains("usual value")), "{words}");
        }
    }

    #[test]
    fn candidates_come_in_the_order_of_a_sort_however_many_are_asked_for() {
        for count in [0, 1, 63, 64, 65, 256, 257, 5000] {
            // Few different logits: many are equal.
            let logit = |token: u32| f64::from(crate::random::mix(token.into()) as u8 / 4) - 30.0;
            let all: Vec<Candidate> = (0..count).map(|token| (token, logit(token))).collect();
            let mut sorted = all.clone();
            sorted.sort_by(likelier);
            let mut ranked = Ranked { candidates: all, sorted: 0 };
            for at in 0..count as usize {
                assert_eq!(ranked.get(at), Some(sorted[at]), "place {at} of {count}");
            }
            assert_eq!(ranked.get(count as usize), None, "behind {count}");
        }
    }

    #[test]
    fn a_draw_from_a_vocabulary_ranks_few_of_it() {
        let logits: Vec<f64> =
            (0..100_000u64).map(|token| (crate::random::mix(token) >> 40) as f64 / 1e6).collect();
        let mut ranked = Ranked { candidates: (0..).zip(logits).collect(), sorted: 0 };
        assert!(ranked.get(50).is_some());
        assert_eq!(ranked.sorted, Ranked::FIRST);
    }
}
