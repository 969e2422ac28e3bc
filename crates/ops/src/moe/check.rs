//! Checks a router's top-k choice. Sigmoid scores that nearly tie may round to different orders in float32 and float64, so a kernel
//! may swap two of them; logits are given in float32, so their order is exact.

use super::{MoeProblem, Score};

/// Error bound of a sigmoid score plus its correction in float32, relative to 1 + |correction|: a few units in the last place of each.
pub const SCORE_MARGIN: f64 = 1e-6;

/// Scores of one token's experts, in float64.
pub(super) struct RouterScores<'a> {
    /// The router's logits.
    pub(super) logits: &'a [f64],
    /// Added to sigmoid scores for the choice.
    pub(super) correction: Option<&'a [f64]>,
}

impl RouterScores<'_> {
    fn correction(&self, expert: usize) -> f64 {
        self.correction.map_or(0.0, |of| of[expert])
    }

    /// The score that an expert is chosen by.
    pub(super) fn of(&self, problem: &MoeProblem, expert: usize) -> f64 {
        match problem.score {
            Score::SoftmaxOfChosen | Score::SoftmaxOfAll => self.logits[expert],
            Score::Sigmoid { .. } => {
                1.0 / (1.0 + (-self.logits[expert]).exp()) + self.correction(expert)
            }
        }
    }

    /// Difference of two experts' scores above which their order is certain.
    fn margin(&self, problem: &MoeProblem, a: usize, b: usize) -> f64 {
        match problem.score {
            Score::SoftmaxOfChosen | Score::SoftmaxOfAll => 0.0,
            Score::Sigmoid { .. } => {
                SCORE_MARGIN * (2.0 + self.correction(a).abs() + self.correction(b).abs())
            }
        }
    }

    /// Whether two experts tie exactly, in float32 and float64.
    fn same(&self, a: usize, b: usize) -> bool {
        self.logits[a] == self.logits[b] && self.correction(a) == self.correction(b)
    }

    /// Whether `later` must precede `first`.
    fn must_swap(&self, problem: &MoeProblem, first: usize, later: usize) -> bool {
        let ahead = self.of(problem, later) - self.of(problem, first);
        ahead > self.margin(problem, first, later) || (self.same(first, later) && later < first)
    }
}

/// Checks the experts that a kernel returned for one token: the routed ones by falling score, then the shared ones. Returns the
/// routed ones.
///
/// # Errors
/// One sentence on the first rule that is broken.
pub(super) fn check_choice(
    problem: &MoeProblem,
    wanted: &RouterScores<'_>,
    chosen: &[i32],
) -> Result<Vec<usize>, String> {
    let (chosen, always) = chosen.split_at(problem.top_k);
    for (expert, wanted) in always.iter().zip(problem.experts..) {
        if usize::try_from(*expert) != Ok(wanted) {
            return Err(format!("expert {expert} is at the place of the shared expert {wanted}"));
        }
    }
    let mut taken = vec![false; problem.experts];
    let mut experts = Vec::new();
    for expert in chosen {
        match usize::try_from(*expert).ok().filter(|expert| *expert < problem.experts) {
            Some(expert) if !taken[expert] => {
                taken[expert] = true;
                experts.push(expert);
            }
            Some(expert) => return Err(format!("expert {expert} was chosen twice")),
            None => return Err(format!("expert {expert} is not one of the {}", problem.experts)),
        }
    }
    let swapped = |a: usize, b: usize| wanted.must_swap(problem, a, b);
    if let Some(pair) = experts.windows(2).find(|pair| swapped(pair[0], pair[1])) {
        return Err(format!("expert {} precedes {}, which has a higher rank", pair[0], pair[1]));
    }
    for left in (0..problem.experts).filter(|expert| !taken[*expert]) {
        if let Some(taken) = experts.iter().find(|expert| swapped(**expert, left)) {
            return Err(format!(
                "expert {taken} was chosen and {left} left out, which has a higher rank"
            ));
        }
    }
    Ok(experts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Family, Inputs, Options, Settings, Tensor, TensorMap, moe::MoeOp};

    #[track_caller]
    fn check(score: &str, logits: [f64; 4], correction: [f64; 4], chosen: [i32; 2], expect: &str) {
        let zeros = |shape: &[usize]| Tensor::new(shape, vec![0f32; shape.iter().product()]);
        let mut tensors = TensorMap::new();
        for (name, shape) in [
            ("x", vec![1, 2]),
            ("logits", vec![1, 4]),
            ("w_gate_up", vec![4, 2, 2]),
            ("w_down", vec![4, 2, 1]),
        ] {
            tensors.insert(name.into(), zeros(&shape));
        }
        let settings = Settings::new().with("top_k", 2).with("score", score);
        let problem =
            MoeOp::parse(Inputs::of_map(MoeOp::SPEC, &tensors), &Options::read(&settings).unwrap())
                .unwrap();
        let correction = (score == "sigmoid").then_some(&correction as &[f64]);
        let got = check_choice(&problem, &RouterScores { logits: &logits, correction }, &chosen);
        assert_eq!(got.err().unwrap_or_default(), expect);
    }

    #[test]
    fn the_order_of_logits_is_exact() {
        let check = |logits, chosen, expect| {
            check("softmax_of_chosen", logits, [0.0; 4], chosen, expect);
        };
        let close = [1.0, 1.000_000_1, -5.0, 0.0];
        check(close, [1, 0], "");
        check(close, [0, 1], "expert 0 precedes 1, which has a higher rank");
        check(close, [1, 3], "expert 3 was chosen and 0 left out, which has a higher rank");
        check([1.0; 4], [0, 1], "");
        check([1.0; 4], [1, 0], "expert 1 precedes 0, which has a higher rank");
        check([1.0; 4], [0, 2], "expert 2 was chosen and 1 left out, which has a higher rank");
        check(close, [1, 1], "expert 1 was chosen twice");
        check(close, [1, 4], "expert 4 is not one of the 4");
        check(close, [1, i32::MIN], "expert -2147483648 is not one of the 4");
    }

    #[test]
    fn near_ties_of_sigmoids_may_be_swapped_and_exact_ties_may_not() {
        let check = |logits, correction, chosen, expect| {
            check("sigmoid", logits, correction, chosen, expect);
        };
        check([0.0, 1e-7, -1.0, -2.0], [0.0; 4], [0, 1], "");
        check([0.0, 1e-7, -1.0, -2.0], [0.0; 4], [1, 0], "");
        let wrong = "expert 0 precedes 1, which has a higher rank";
        check([0.0, 1e-3, -1.0, -2.0], [0.0; 4], [0, 1], wrong);
        check(
            [0.0, 0.0, -1.0, -2.0],
            [0.0; 4],
            [1, 0],
            "expert 1 precedes 0, which has a higher rank",
        );
        // The correction decides the choice.
        check([0.0, 1.0, -1.0, -2.0], [0.0, 0.0, 1.0, 1.0], [2, 3], "");
        let wrong = "expert 1 was chosen and 3 left out, which has a higher rank";
        check([0.0, 1.0, -1.0, -2.0], [0.0, 0.0, 1.0, 1.0], [2, 1], wrong);
    }
}
