//! Sampling parameters of a request; the op `sampling` applies them.

use crate::ModelError;

/// How the next token is chosen. Operations are applied in the order of the fields, as in transformers and vLLM.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Added to the logits of these tokens, each at most once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divisor of positive logits and factor of negative logits of tokens that occur in the prompt or the generated
    /// text; 1 disables it.
    pub repetition_penalty: f64,
    /// Subtracted from the logits of generated tokens once per occurrence; 0 disables it.
    pub frequency_penalty: f64,
    /// Subtracted from the logits of generated tokens once; 0 disables it.
    pub presence_penalty: f64,
    /// Divisor of logits; 0 selects the largest logit.
    pub temperature: f64,
    /// Number of largest logits to keep; `None` keeps all.
    pub top_k: Option<usize>,
    /// Keeps the most likely tokens whose probabilities add up to this; 1 keeps all.
    pub top_p: f64,
    /// Keeps tokens with at least this fraction of the largest probability; 0 keeps all.
    pub min_p: f64,
    /// The same seed selects the same tokens on every device.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy decoding.
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks the parameters' ranges.
    ///
    /// # Errors
    /// [`ModelError::Call`] naming the first invalid parameter, its range, and an example.
    pub fn check(&self) -> Result<(), ModelError> {
        let refuse = |name: &str, value: f64, wanted: &str, hint: &str| {
            Err(ModelError::call(format!("{name} is {value}, expected {wanted}"), hint))
        };
        let biases = self.logit_bias.iter();
        if let Some((token, bias)) = biases.clone().find(|(_, x)| !(-100.0..=100.0).contains(x)) {
            let name = format!("the logit bias of token {token}");
            let hint = "0 changes nothing, -100 practically bans a token, 5 is a usual value";
            return refuse(&name, f64::from(*bias), "-100 to 100", hint);
        }
        match self {
            Self { repetition_penalty: x, .. } if !(x.is_finite() && *x > 0.0) => refuse(
                "the repetition penalty",
                *x,
                "a number above 0",
                "1 changes nothing, 1.1 is a usual value",
            ),
            Self { presence_penalty: x, .. } if !(-2.0..=2.0).contains(x) => refuse(
                "the presence penalty",
                *x,
                "-2 to 2",
                "0 changes nothing, 0.5 is a usual value",
            ),
            Self { frequency_penalty: x, .. } if !(-2.0..=2.0).contains(x) => refuse(
                "the frequency penalty",
                *x,
                "-2 to 2",
                "0 changes nothing, 0.5 is a usual value",
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

    /// Whether a penalty needs the tokens that occurred.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_sampling_parameters_are_refused() {
        let plain = Sampling::default;
        assert!(plain().check().is_ok());
        for (sampling, words) in [
            (
                Sampling { top_p: 0.0, ..plain() },
                "top-p is 0, expected a number above 0, at most 1",
            ),
            (
                Sampling { logit_bias: vec![(3, 1.0), (7, 100.5)], ..plain() },
                "the logit bias of token 7 is 100.5, expected -100 to 100",
            ),
            (
                Sampling { logit_bias: vec![(3, f32::NAN)], ..plain() },
                "the logit bias of token 3 is NaN, expected -100 to 100",
            ),
            (Sampling { top_k: Some(0), ..plain() }, "top-k is 0, expected 1 or more"),
            (Sampling { min_p: 1.5, ..plain() }, "min-p is 1.5, expected 0 to 1"),
            (
                Sampling { temperature: f64::NAN, ..plain() },
                "the temperature is NaN, expected 0 or more",
            ),
            (
                Sampling { repetition_penalty: 0.0, ..plain() },
                "the repetition penalty is 0, expected a number above 0",
            ),
            (
                Sampling { presence_penalty: 2.5, ..plain() },
                "the presence penalty is 2.5, expected -2 to 2",
            ),
            (
                Sampling { frequency_penalty: f64::INFINITY, ..plain() },
                "the frequency penalty is inf, expected -2 to 2",
            ),
        ] {
            let wrong = sampling.check().unwrap_err();
            assert_eq!(wrong.to_string(), words);
            assert!(wrong.hint().is_some_and(|hint| hint.contains("usual value")), "{words}");
        }
    }
}
