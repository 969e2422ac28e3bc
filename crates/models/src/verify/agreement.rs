//! Criteria for the agreement of two sets of logits.

use crate::{Architecture, Storage};
use facts::CompactSort;

/// If the two largest logits differ by more, both engines have to choose the same token.
const MARGIN: f32 = 0.1;

/// The distance of two sets of logits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Agreement {
    pub(super) rel_err: f64,
    pub(super) max_err: f64,
    /// Why they do not agree.
    pub(super) wrong: Option<String>,
}

/// Compares logits `[tokens, vocabulary]` with trusted ones.
pub(super) struct LogitsComparer {
    vocabulary: usize,
    tolerance: f64,
    /// The share of tokens that have to agree.
    held: f64,
}

impl LogitsComparer {
    pub(super) fn new(architecture: &Architecture, storage: Storage) -> Self {
        Self {
            vocabulary: architecture.vocabulary,
            tolerance: storage.tolerance(),
            // If two experts have nearly equal scores, rounding decides which one a token is routed to, and different
            // logits are correct. With random weights and 256 experts that affects about a tenth of the tokens; wrong
            // arithmetic affects most of them.
            held: if architecture.is_routed() { 0.5 } else { 1.0 },
        }
    }

    /// The relative and the largest error over the required share of tokens, those that agree best.
    pub(super) fn judge(&self, got: &[f32], want: &[f32]) -> Agreement {
        let wrong =
            |what: String| Agreement { rel_err: f64::NAN, max_err: f64::NAN, wrong: Some(what) };
        if got.len() != want.len() || got.is_empty() {
            return wrong(format!("{} logits, expected {}", got.len(), want.len()));
        }
        if let Some(at) = got.iter().position(|x| !x.is_finite()) {
            let (token, logit) = (at / self.vocabulary, at % self.vocabulary);
            return wrong(format!("logit {logit} of token {token} is {}", got[at]));
        }
        let rows = got.chunks_exact(self.vocabulary).zip(want.chunks_exact(self.vocabulary));
        let mut rows: Vec<_> =
            rows.map(|(got, want)| (relative_error(got, want), got, want)).collect();
        rows.compact_sort_by(|a, b| a.0.total_cmp(&b.0));
        rows.truncate(self.held(rows.len()));
        let apart = |(_, got, want): &(f64, &[f32], &[f32])| {
            got.iter().zip(*want).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max)
        };
        let (held, trusted): (Vec<_>, Vec<_>) = rows.iter().map(|row| (row.1, row.2)).unzip();
        let rel_err = relative_error(&held.concat(), &trusted.concat());
        let max_err = rows.iter().map(apart).fold(0.0, f64::max);
        let wrong = if rel_err.is_nan() || rel_err > self.tolerance {
            Some(format!("relative error {rel_err:.1e}, at most {:.0e} is allowed", self.tolerance))
        } else {
            rows.iter().find_map(|(_, got, want)| self.poor_choice(likeliest(got), want))
        };
        Agreement { rel_err, max_err, wrong }
    }

    /// The required number of tokens.
    fn held(&self, tokens: usize) -> usize {
        (tokens as f64 * self.held).ceil() as usize
    }

    /// The first problem of chosen tokens, one entry per token, if there are more problems than allowed.
    pub(super) fn too_many(&self, poor: Vec<Option<String>>) -> Option<String> {
        let may_be = poor.len() - self.held(poor.len());
        poor.into_iter().flatten().nth(may_be)
    }

    /// Why a token is a wrong choice for these logits: another logit is larger by more than a tie.
    pub(super) fn poor_choice(&self, token: u32, logits: &[f32]) -> Option<String> {
        let best = likeliest(logits);
        let of = |token: u32| logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        let (best_logit, logit) = (of(best), of(token));
        (best_logit - logit > MARGIN).then(|| {
            format!("token {token} was chosen with a logit of {logit}, {best} has {best_logit}")
        })
    }
}

/// The token of the largest logit, the first one on ties.
pub(super) fn likeliest(logits: &[f32]) -> u32 {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    best.0
}

/// `||got - want|| / ||want||`, the norms in float64.
pub fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let off: f64 = got.iter().zip(want).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    (off / want.iter().map(|b| square(f64::from(*b))).sum::<f64>()).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    fn check(name: &str, got: &[f32], want: &[f32], expect: Option<&str>) {
        let mut architecture = Architecture::of(&shape(name).unwrap()).unwrap();
        architecture.vocabulary = 4;
        let judge = LogitsComparer::new(&architecture, Storage::Bf16);
        let found = judge.judge(got, want).wrong;
        assert_eq!(found.as_deref(), expect, "{name} {got:?} {want:?}");
    }

    #[test]
    fn disagreements_are_described() {
        let (dense, routed) = ("granite-hybrid-mini", "granite-moe-mini");
        let want = [1.0, 2.0, 3.0, 4.0];
        check(dense, &want, &want, None);
        check(dense, &want[..3], &want, Some("3 logits, expected 4"));
        check(dense, &[1.0, f32::NAN, 3.0, 4.0], &want, Some("logit 1 of token 0 is NaN"));
        let off = [1.0, 2.0, 3.0, 4.4];
        let words = "relative error 7.3e-2, at most 2e-2 is allowed";
        check(dense, &off, &want, Some(words));
        // The most likely token differs, though all logits are within the tolerance.
        let tie = [100.0, 100.05, 0.0, 0.0];
        check(dense, &[100.06, 100.05, 0.0, 0.0], &tie, None);
        let words = "token 0 was chosen with a logit of 100, 1 has 100.2";
        check(dense, &[100.3, 100.2, 0.0, 0.0], &[100.0, 100.2, 0.0, 0.0], Some(words));
        // At most half of the tokens may have been routed to other experts.
        let four = |other: [f32; 4]| [other, want, want, want].concat();
        check(routed, &four(off), &four(want), None);
        check(
            dense,
            &four(off),
            &four(want),
            Some("relative error 3.7e-2, at most 2e-2 is allowed"),
        );
        check(routed, &four([f32::NAN; 4]), &four(want), Some("logit 0 of token 0 is NaN"));
        let words = "relative error 7.3e-2, at most 2e-2 is allowed";
        check(routed, &[off, want].concat(), &[want, want].concat(), None);
        check(routed, &[off, off].concat(), &[want, want].concat(), Some(words));
    }
}
