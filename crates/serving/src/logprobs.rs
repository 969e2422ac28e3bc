//! Log-probabilities of the model's own distribution, before biases, penalties, temperature and truncation, as vLLM
//! returns them.

use models::TokenLogprobs;

/// Computes them from logits `[vocabulary]`.
pub(crate) fn of(logits: &[f32], chosen: u32, count: usize) -> TokenLogprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let log_sum = sum.ln();
    let log = |logit: f32| (f64::from(logit - largest) - log_sum) as f32;
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (token, logit) in (0..).zip(logits) {
        if best.len() == count && best.last().is_none_or(|(_, least)| logit <= least) {
            continue;
        }
        let at = best.partition_point(|(_, other)| other >= logit);
        best.insert(at, (token, *logit));
        best.truncate(count);
    }
    best.iter_mut().for_each(|(_, logit)| *logit = log(*logit));
    let chosen = logits.get(chosen as usize).copied().map_or(f32::NEG_INFINITY, log);
    TokenLogprobs { chosen, likeliest: best }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_in_descending_order() {
        let logits = [0.5, 2.0, -1.0, 2.0, 1.0, -3.0];
        let all = of(&logits, 4, 6);
        let order: Vec<u32> = all.likeliest.iter().map(|(token, _)| *token).collect();
        assert_eq!(order, [1, 3, 4, 0, 2, 5]);
        let sum: f64 = all.likeliest.iter().map(|(_, log)| f64::from(*log).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(all.chosen, all.likeliest[2].1);
        assert_eq!(of(&logits, 5, 2).likeliest, all.likeliest[..2]);
        assert_eq!(
            of(&logits, 5, 0),
            TokenLogprobs { chosen: all.likeliest[5].1, likeliest: vec![] }
        );
    }
}
