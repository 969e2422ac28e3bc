//! Text generation with an installed package's model: the logits of its tokens are compared with expected ones, then it
//! is timed by the ids that it returns.

use super::Session;
use super::run::{CallMessage, ask, run, still, tell};
use crate::compare::compare;
use crate::judge::{Judgement, within};
use crate::matrix::{blank, peer_row};
use crate::peers::Peer;
use crate::{MODEL, Tolerance};
use facts::{BackendKind, ParityRow, Status};
use ops::{DType, OutputSpec, Settings, Tensor, TensorMap};
use serde::Deserialize;
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Prompts, and how many tokens a model has to generate for each by greedy decoding.
#[derive(Debug, Clone, Copy)]
pub struct GenerationCase<'a> {
    /// `granite-hybrid-mini/pp512`.
    pub name: &'a str,
    /// The model's folder, with config.json and safetensors files.
    pub folder: &'a Path,
    /// The backend.
    pub backend: BackendKind,
    /// Storage type of weights and activations: f32 or bf16.
    pub dtype: DType,
    /// Prompts of equal length: token ids, [sequences, tokens].
    pub ids: &'a Tensor,
    /// Tokens generated for verification. With more than one, a kernel for single tokens must have run too.
    pub new_tokens: usize,
    /// Size of a token's logits.
    pub vocabulary: usize,
    /// Tolerated relative error of the logits.
    pub tolerance: f64,
}

impl GenerationCase<'_> {
    fn sequences(&self) -> usize {
        self.ids.shape().first().copied().unwrap_or(0)
    }
}

/// A peer that generated the expected tokens by correct logits, and which may be timed.
///
/// Only [`admit_generation`] constructs it. One whose own kernels did not run is a FALLBACK, and stays one.
#[derive(Debug)]
pub struct VerifiedGeneration {
    peer: Peer,
    backend: BackendKind,
    status: Status,
    sequences: usize,
    first_millis: f64,
    /// The id of its process.
    process: u32,
}

/// Seconds of one generation, starting at its prompt's ids.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GenerationTimes {
    /// Until the ids of the first tokens arrived.
    pub first: f64,
    /// Until those of the last ones arrived.
    pub last: f64,
}

/// Runs a peer. `expected` gets the ids that it chose, [new tokens, sequences], and returns the logits from which the
/// first of them must be chosen, [some tokens, sequences, vocabulary].
pub fn admit_generation(
    session: &mut Session,
    peer: &Peer,
    case: &GenerationCase<'_>,
    expected: &mut dyn FnMut(&[i32]) -> Result<Tensor, String>,
) -> (ParityRow, Option<VerifiedGeneration>) {
    let row = |status, reason: String| ParityRow {
        tolerance: case.tolerance,
        ..blank(MODEL, case.name, case.backend, case.dtype, status, reason)
    };
    let several = case.new_tokens > 1;
    let peer = Peer {
        gives: vec!["logits".to_owned(), "tokens".to_owned()],
        decodes: if several { peer.decodes.clone() } else { Vec::new() },
        ..peer.clone()
    };
    let sequences = case.sequences();
    let outputs = [
        OutputSpec {
            name: "logits",
            shape: vec![case.new_tokens, sequences, case.vocabulary],
            dtype: DType::F32,
        },
        OutputSpec { name: "tokens", shape: vec![case.new_tokens, sequences], dtype: DType::I32 },
    ];
    let told = CallMessage {
        op: MODEL,
        dtype: case.dtype,
        inputs: &TensorMap::from([("ids".to_owned(), case.ids.clone())]),
        settings: &Settings::new()
            .with("folder", case.folder.display())
            .with("new_tokens", case.new_tokens),
        outputs: &outputs,
        backend: case.backend,
    };
    if let Err(error) = tell(session, &told) {
        let failed = row(Status::Fail, error.to_string());
        let name = peer.name;
        return (ParityRow { variant: name.clone(), peer: Some(name), ..failed }, None);
    }
    let ran = run(session, &peer, &outputs, case.backend, |outputs, _| {
        check_greedy_tokens(outputs, case, expected)
    });
    // The request is for a speed, so a slow path is not accepted as the package.
    let ran = ran.or_fallback();
    let (status, first_millis) = (ran.judgement.status, ran.first_millis);
    let may_be_timed = match status {
        Status::Pass => true,
        // Its result is correct but slow: worth reporting, under this name only.
        Status::Fallback => ran.agrees,
        _ => false,
    };
    let row = peer_row(&peer, ran, &row);
    let verified = may_be_timed.then(|| VerifiedGeneration {
        backend: case.backend,
        status,
        sequences,
        first_millis,
        process: session.started(),
        peer,
    });
    (row, verified)
}

/// Each token is the most likely one for its logits, and the first of these logits agree with the expected ones.
fn check_greedy_tokens(
    outputs: &TensorMap,
    case: &GenerationCase<'_>,
    expected: &mut dyn FnMut(&[i32]) -> Result<Tensor, String>,
) -> Judgement {
    let fail = |reason| Judgement::fail(reason, 0, 0.0);
    let (Some(logits), Some(tokens)) = (outputs.get("logits"), outputs.get("tokens")) else {
        return fail("output `logits` or `tokens` is missing".to_owned());
    };
    let (Some(values), Some(tokens)) = (logits.view::<f32>(), tokens.view::<i32>()) else {
        return fail("output `logits` or `tokens` has another type".to_owned());
    };
    for (at, (token, logits)) in tokens.iter().zip(values.chunks(case.vocabulary)).enumerate() {
        let chosen = usize::try_from(*token).ok().and_then(|token| logits.get(token));
        let likeliest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if chosen.is_none_or(|logit| *logit < likeliest) {
            return fail(format!("token {at} is {token}, which is not the most likely one"));
        }
    }
    let wanted = match expected(tokens) {
        Ok(wanted) => wanted,
        Err(why) => return fail(why),
    };
    let first = Tensor::new(wanted.shape(), values[..wanted.len().min(values.len())].to_vec());
    match compare(&first, &wanted, 1) {
        Ok(agreement) => within(agreement, Tolerance::of(case.tolerance)),
        Err(what) => fail(format!("output `logits` {what}")),
    }
}

impl VerifiedGeneration {
    /// PASS, or FALLBACK for correct tokens by others' kernels.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Milliseconds of its first call on other prompts of this length, which includes compilation and first use of
    /// memory.
    pub fn first_millis(&self) -> f64 {
        self.first_millis
    }

    /// Generates this many tokens per sequence, `runs` times, timed by the harness's clock.
    ///
    /// # Errors
    /// One sentence: ids are missing, times are invalid, or its own kernels no longer run.
    pub fn time(
        &self,
        session: &mut Session,
        new_tokens: usize,
        runs: usize,
    ) -> Result<Vec<GenerationTimes>, String> {
        #[derive(Deserialize)]
        struct TimedResponse {
            /// For each run and step: seconds, and the number of ids.
            runs: Vec<Vec<(f64, usize)>>,
        }
        let begin = Instant::now();
        let what = json!({
            "do": "generate", "peer": self.peer.name, "new_tokens": new_tokens, "runs": runs
        });
        let timed: TimedResponse =
            ask(session, self.process, what).map_err(|refusal| refusal.reason)?;
        let wall = begin.elapsed().as_secs_f64();
        let times = timed.runs.iter().map(|steps| counted(steps, new_tokens, self.sequences));
        let times = times.collect::<Result<Vec<_>, _>>()?;
        let total: f64 = times.iter().map(|times| times.last).sum();
        if times.len() != runs || total > wall {
            return Err(format!(
                "its clock says {total:.3} s for {} runs, and all of it took {wall:.3} s",
                times.len()
            ));
        }
        match self.status {
            Status::Fallback => Ok(times),
            _ => still(session, &self.peer, self.backend, self.process)
                .map(|()| times)
                .map_err(|refusal| refusal.reason),
        }
    }
}

/// The times of a run in which every token's ids arrived, one step after another.
fn counted(
    steps: &[(f64, usize)],
    tokens: usize,
    sequences: usize,
) -> Result<GenerationTimes, String> {
    let ids: usize = steps.iter().map(|(_, ids)| ids).sum();
    let each = steps.iter().all(|(_, ids)| *ids == sequences);
    if steps.len() != tokens || !each {
        return Err(format!(
            "{ids} ids came in {} steps, expected {sequences} in each of {tokens}",
            steps.len()
        ));
    }
    let ascends = steps.is_sorted_by(|a, b| a.0 <= b.0);
    match (steps.first(), steps.last()) {
        (Some((first, _)), Some((last, _))) if *first > 0.0 && ascends && last.is_finite() => {
            Ok(GenerationTimes { first: *first, last: *last })
        }
        _ => Err("its clock gave a time that is none".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::{GenerationTimes, counted};

    #[test]
    fn ids_are_counted_and_times_ascend() {
        let check = |steps: &[(f64, usize)], expect: Result<(f64, f64), &str>| {
            let expect = expect.map(|(first, last)| GenerationTimes { first, last });
            assert_eq!(counted(steps, 2, 3), expect.map_err(str::to_owned));
        };
        check(&[(0.5, 3), (0.75, 3)], Ok((0.5, 0.75)));
        check(&[(0.5, 3)], Err("3 ids came in 1 steps, expected 3 in each of 2"));
        check(&[(0.5, 6), (0.75, 0)], Err("6 ids came in 2 steps, expected 3 in each of 2"));
        check(&[], Err("0 ids came in 0 steps, expected 3 in each of 2"));
        for steps in [[(0.5, 3), (0.25, 3)], [(0.0, 3), (1.0, 3)], [(1.0, 3), (f64::NAN, 3)]] {
            check(&steps, Err("its clock gave a time that is none"));
        }
    }
}
