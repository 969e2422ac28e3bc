//! Measures prefill and decode speed of a verified engine.

use crate::verify::{VerifiedEngine, counts, since, tokens};
use crate::{Batch, Choice, Engine, LogitsSelection, ModelError, Sampling, Storage, holding};
use facts::CompactSort;
use facts::{DecodeLimit, FirstToken, ModelSpeed};
use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Instant;

/// A speed test, named as in llama-bench: `pp512` prefills 512 tokens, `tg128` decodes 128, and `tg128@8192` does so
/// after 8192 others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeedTest {
    /// Whether tokens are decoded one by one, or prefilled.
    pub decode: bool,
    /// Timed tokens per sequence.
    pub tokens: usize,
    /// Tokens before them.
    pub depth: usize,
}

impl SpeedTest {
    /// The longest prompt that is prefilled before or during the measurement.
    pub fn prompt(self) -> usize {
        if self.decode { self.depth } else { self.depth + self.tokens }
    }
}

impl FromStr for SpeedTest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("`{text}` is no test, expected pp512, tg128 or tg128@8192");
        let count = |text: &str| match text.parse() {
            Ok(count @ 1..=0x100_0000) => Ok(count),
            _ => Err(wanted()),
        };
        let (what, depth) = match text.split_once('@') {
            Some((what, depth)) => (what, count(depth)?),
            None => (text, 0),
        };
        let (kind, tokens) = what.split_at_checked(2).ok_or_else(wanted)?;
        let decode = match kind {
            "pp" => false,
            "tg" => true,
            _ => return Err(wanted()),
        };
        Ok(Self { decode, tokens: count(tokens)?, depth })
    }
}

impl std::fmt::Display for SpeedTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.decode { "tg" } else { "pp" };
        let depth = if self.depth > 0 { format!("@{}", self.depth) } else { String::new() };
        f.pad(&format!("{kind}{}{depth}", self.tokens))
    }
}

/// Times a test `repeats` times after a cold run, on an engine of a verified kind. Decoding uses `sampling`.
///
/// # Errors
/// [`ModelError`] of a step, or when a kernel ran that the verification had not run: then there is no speed.
pub fn measure(
    engine: &mut dyn Engine,
    verified: VerifiedEngine<'_>,
    storage: Storage,
    test: SpeedTest,
    sequences: usize,
    repeats: usize,
    sampling: &Sampling,
) -> Result<ModelSpeed, ModelError> {
    let before_bandwidth = test.decode.then(|| engine.read_bandwidth());
    let before = counts(engine);
    let mut once = || once(engine, test, sequences, sampling);
    let cold = once()?;
    let seconds = (0..repeats).map(|_| once()).collect::<Result<Vec<_>, _>>()?;
    let launches = since(&before, counts(engine));
    let unknown = launches.keys().filter(|kernel| !verified.launches.contains_key(*kernel));
    let unknown: Vec<&str> = unknown.map(String::as_str).collect();
    if !unknown.is_empty() {
        let what = format!("{test}: {} ran that was not verified", unknown.join(", "));
        return Err(ModelError::fault(what));
    }
    let mut speed = speed(test, sequences, &seconds);
    if test.decode && *sampling != Sampling::default() {
        let Sampling { temperature, top_p, .. } = sampling;
        speed.test = format!("{test} at temperature {temperature}, top-p {top_p}");
    }
    let limit = before_bandwidth.map(|bandwidth| {
        // On average half of the decoded tokens are in the cache.
        let tokens = test.depth + test.tokens / 2;
        let keeps = holding(engine.device(), storage).keeps;
        let architecture = engine.architecture();
        let bytes = architecture.decode_bytes(storage.bytes(), keeps, sequences, tokens);
        // The maximum of two measurements is less affected by other load.
        let bandwidth = bandwidth.max(engine.read_bandwidth());
        let rate = sequences as f64 * bandwidth / bytes as f64;
        DecodeLimit {
            bytes_per_step: bytes,
            read_gbps: bandwidth / 1e9,
            tokens_per_second: rate,
            percent: 100.0 * speed.mean_tokens_per_second / rate,
        }
    });
    let first_token = first_token(test, cold * 1e3, &seconds);
    Ok(ModelSpeed { first_token, limit, launches, ..speed })
}

/// The speed of a test, from its samples in seconds.
pub fn speed(test: SpeedTest, sequences: usize, seconds: &[f64]) -> ModelSpeed {
    let total = (sequences * test.tokens) as f64;
    let rates: Vec<f64> = seconds.iter().map(|seconds| total / seconds).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    ModelSpeed {
        test: test.to_string(),
        peer: None,
        tokens: test.tokens as u64,
        depth: test.depth as u64,
        sequences: sequences as u64,
        mean_tokens_per_second: mean,
        deviation_tokens_per_second: deviation(&rates, mean),
        samples_tokens_per_second: rates,
        first_token: None,
        limit: None,
        launches: BTreeMap::new(),
    }
}

/// Time to first token, from a prefill test without depth.
pub fn first_token(test: SpeedTest, cold_ms: f64, seconds: &[f64]) -> Option<FirstToken> {
    let is_first = !test.decode && test.depth == 0;
    is_first.then(|| FirstToken { cold_ms, warm_ms: 1e3 * median(seconds) })
}

/// The prompts of a test for another program that continues them: for decoding, the tokens before the timed ones and
/// the first of these.
pub fn prompts(test: SpeedTest, sequences: usize, vocabulary: usize) -> Vec<Vec<u32>> {
    let count = test.depth + if test.decode { 1 } else { test.tokens };
    (0..sequences).map(|place| tokens(place, count, vocabulary)).collect()
}

/// The logits after each of some prompts of equal length, [sequences, vocabulary].
///
/// # Errors
/// [`ModelError`] of a step.
pub fn answers(engine: &mut dyn Engine, prompts: &[Vec<u32>]) -> Result<Vec<f32>, ModelError> {
    (0..prompts.len()).for_each(|place| engine.reset(place));
    read(engine, prompts, 0..prompts.first().map_or(0, Vec::len))
}

/// Seconds of one run of a test, starting from empty slots.
fn once(
    engine: &mut dyn Engine,
    test: SpeedTest,
    sequences: usize,
    sampling: &Sampling,
) -> Result<f64, ModelError> {
    let vocabulary = engine.architecture().vocabulary;
    let all: Vec<Vec<u32>> =
        (0..sequences).map(|place| tokens(place, test.depth + test.tokens, vocabulary)).collect();
    (0..sequences).for_each(|place| engine.reset(place));
    read(engine, &all, 0..test.depth)?;
    let start = Instant::now();
    if test.decode {
        let batch = batch(&all, test.depth..test.depth + 1);
        engine.choose(&batch, &vec![Some(Choice::by(sampling)); sequences], test.tokens)?;
    } else {
        read(engine, &all, test.depth..test.depth + test.tokens)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Prefills a range of every sequence's tokens as the scheduler does: one sequence after another, in steps of the
/// engine's best size. Returns the last logits of each.
pub(crate) fn read(
    engine: &mut dyn Engine,
    all: &[Vec<u32>],
    range: std::ops::Range<usize>,
) -> Result<Vec<f32>, ModelError> {
    let (most, mut logits) = (engine.chunk().max(1), Vec::new());
    let (mut batch, mut whole) = (Batch::new(), Vec::new());
    for (slot, tokens) in all.iter().enumerate() {
        let mut rest = &tokens[range.clone()];
        while !rest.is_empty() {
            let (next, behind) = rest.split_at(rest.len().min(most - batch.tokens().len()));
            rest = behind;
            batch = batch.with(slot, next);
            whole.push(rest.is_empty());
            let last = slot + 1 == all.len() && rest.is_empty();
            if batch.tokens().len() == most || last {
                let rows = engine
                    .step(&std::mem::replace(&mut batch, Batch::new()), LogitsSelection::Last)?;
                let rows = rows.chunks_exact(rows.len() / whole.len());
                let ends = rows.zip(std::mem::take(&mut whole)).filter(|(_, whole)| *whole);
                ends.for_each(|(row, _)| logits.extend_from_slice(row));
            }
        }
    }
    Ok(logits)
}

fn batch(all: &[Vec<u32>], range: std::ops::Range<usize>) -> Batch {
    let tokens = all.iter().enumerate();
    tokens.fold(Batch::new(), |batch, (place, tokens)| batch.with(place, &tokens[range.clone()]))
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.compact_sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}

/// The standard deviation of a sample; `None` for one value.
fn deviation(values: &[f64], mean: f64) -> Option<f64> {
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_names_match_llama_bench() {
        let check = |text: &str, decode, tokens, depth| {
            let test: SpeedTest = text.parse().unwrap();
            assert_eq!(test, SpeedTest { decode, tokens, depth });
            assert_eq!(test.to_string(), text);
        };
        check("pp512", false, 512, 0);
        check("tg128@8192", true, 128, 8192);
        for text in ["", "p", "pp", "pp0", "xx3", "tg128@", "tg@8", "pp-1", "ü1", "tg99999999999"]
        {
            let error = text.parse::<SpeedTest>().unwrap_err();
            assert_eq!(error, format!("`{text}` is no test, expected pp512, tg128 or tg128@8192"));
        }
    }
}
