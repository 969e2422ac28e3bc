//! Runs one call of one peer and judges it like a native kernel.

use super::evidence::{Evidence, Gap, ObservedCall};
use super::files::{read_outputs, word, write_inputs};
use super::{PythonError, Session};
use crate::Agreement;
use crate::judge::{Judgement, against_only};
use crate::peers::Peer;
use crate::references::References;
use crate::sample::SampledCall;
use facts::{BackendKind, Status};
use ops::{Call, DType, OutputSpec, Settings, TensorMap};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

/// The result of a peer's call.
pub(crate) struct PeerRun {
    pub(crate) judgement: Judgement,
    /// The package with its version, if known.
    pub(crate) package: String,
    /// The kernels that ran.
    pub(crate) evidence: String,
    /// Whether its outputs are correct, whatever computed them.
    pub(crate) agrees: bool,
    /// Milliseconds of the first call, on other values.
    pub(crate) first_millis: f64,
    /// The package's warnings about missing fast paths, with their reasons.
    said: String,
}

impl PeerRun {
    fn without_outputs(status: Status, reason: String) -> Self {
        let judgement = Judgement { status, ..Judgement::fail(reason, 0, 0.0) };
        let (package, evidence, said) = (String::new(), String::new(), String::new());
        Self { judgement, package, evidence, agrees: false, first_millis: f64::NAN, said }
    }

    /// Turns the result into a fallback if the package itself reports one, although some of its kernels ran.
    pub(super) fn or_fallback(mut self) -> Self {
        if self.judgement.status == Status::Pass && !self.said.is_empty() {
            self.judgement.status = Status::Fallback;
            self.judgement.reason = format!("it says: {}", self.said);
        }
        self
    }
}

/// The harness's answer to `run`.
#[derive(Deserialize)]
#[serde(tag = "outcome")]
enum Outcome {
    #[serde(rename = "ran")]
    Ran {
        evidence: Vec<ObservedCall>,
        millis: f64,
        first_millis: f64,
        package: String,
        said: String,
    },
    #[serde(rename = "not applicable")]
    NotApplicable { reason: String },
    #[serde(rename = "not installed")]
    NotInstalled { reason: String },
    #[serde(rename = "skipped")]
    Skipped { reason: String },
    #[serde(rename = "raised")]
    Raised { reason: String },
}

/// A call as sent to the harness.
pub(super) struct CallMessage<'a> {
    pub(super) op: &'a str,
    pub(super) dtype: DType,
    pub(super) inputs: &'a TensorMap,
    pub(super) settings: &'a Settings,
    pub(super) outputs: &'a [OutputSpec],
    pub(super) backend: BackendKind,
}

/// Sends a call's inputs to the harness.
///
/// # Errors
/// When they cannot be written, or it does not answer.
pub fn load(
    session: &mut Session,
    call: &Call<'_>,
    (inputs, settings): (&TensorMap, &Settings),
    backend: BackendKind,
) -> Result<(), PythonError> {
    let (op, dtype, outputs) = (call.spec().name, call.problem().dtype(), call.problem().outputs());
    tell(session, &CallMessage { op, dtype, inputs, settings, outputs: &outputs, backend })
}

/// [`load`] for a call that need not belong to one of our ops.
pub(super) fn tell(session: &mut Session, told: &CallMessage<'_>) -> Result<(), PythonError> {
    let path = session.folder().join("inputs.safetensors");
    write_inputs(&path, told.inputs)
        .map_err(|error| PythonError::Start { interpreter: path.clone(), error })?;
    let settings: Map<String, Value> =
        told.settings.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let outputs: Map<String, Value> =
        told.outputs.iter().map(|spec| (spec.name.to_owned(), word(spec.dtype).into())).collect();
    session.load(json!({
        "do": "load",
        "op": told.op,
        "dtype": told.dtype.as_str(),
        "device": if told.backend == BackendKind::Cuda { "cuda" } else { "cpu" },
        "settings": settings,
        "outputs": outputs,
        "inputs": path,
    }))
}

/// Runs a peer on the loaded call and compares its outputs with `reference`.
pub(super) fn run(
    session: &mut Session,
    peer: &Peer,
    specs: &[OutputSpec],
    backend: BackendKind,
    compare: impl FnOnce(&TensorMap, &[&str]) -> Judgement,
) -> PeerRun {
    if let Some((status, reason)) = session.refuses(peer, backend) {
        return PeerRun::without_outputs(status, reason);
    }
    let into = session.folder().join("outputs.safetensors");
    // Remove an earlier peer's outputs, so that they are not read as this one's.
    let _ = std::fs::remove_file(&into);
    let asked = session.ask(json!({
        "do": "run",
        "peer": peer.name,
        "adapter": peer.adapter,
        "function": peer.function,
        "gives": peer.gives,
        "into": into,
    }));
    let answer = match asked {
        Ok(answer) => answer,
        Err(error) => return PeerRun::without_outputs(error.status(), error.to_string()),
    };
    let (seen, millis, first_millis, package, said) = match serde_json::from_value(answer.clone()) {
        Ok(Outcome::Ran { evidence, millis, first_millis, package, said }) => {
            (evidence, millis, first_millis, package, said)
        }
        Ok(Outcome::NotApplicable { reason }) => {
            return PeerRun::without_outputs(Status::NotApplicable, reason);
        }
        Ok(Outcome::NotInstalled { reason }) => {
            return PeerRun::without_outputs(peer.status_if_not_installed(), reason);
        }
        Ok(Outcome::Skipped { reason }) => return PeerRun::without_outputs(Status::Skip, reason),
        Ok(Outcome::Raised { reason }) => return PeerRun::without_outputs(Status::Fail, reason),
        Err(_) => {
            let reason = PythonError::Garbage(answer.to_string()).to_string();
            return PeerRun::without_outputs(Status::Fail, reason);
        }
    };
    let (evidence, gap) = peer.evidence(seen, backend);
    let judgement = match read_outputs(&into, specs) {
        Err(error) => Judgement::fail(error.to_string(), 0, 0.0),
        Ok(outputs) => {
            // A user's function must return at least the first output.
            let given: Vec<&str> = match peer.gives.is_empty() {
                true => specs
                    .iter()
                    .enumerate()
                    .filter(|(index, spec)| *index == 0 || outputs.contains_key(spec.name))
                    .map(|(_, spec)| spec.name)
                    .collect(),
                false => peer.gives.iter().map(String::as_str).collect(),
            };
            compare(&outputs, &given)
        }
    };
    let judgement = Judgement { launches: evidence.launches(), millis, ..judgement };
    let agrees = judgement.status == Status::Pass;
    let told =
        |text: String| if said.is_empty() { text } else { format!("{text}; it says: {said}") };
    let judgement = match gap {
        None => judgement,
        Some(Gap::Nothing) => unseen(judgement, specs),
        Some(Gap::Others(reason)) => {
            Judgement { status: Status::Fallback, reason: told(reason), ..judgement }
        }
    };
    let evidence = told(evidence.text());
    PeerRun { judgement, package, evidence, agrees, first_millis, said }
}

/// A call during which no kernel was seen: a failure, unless there was nothing to compute.
fn unseen(judgement: Judgement, specs: &[OutputSpec]) -> Judgement {
    let empty = specs.iter().all(|spec| spec.shape.contains(&0));
    let (status, reason) = if empty && judgement.status == Status::Pass {
        let reason = "there was nothing to compute, and nothing was seen to run";
        (Status::NotApplicable, reason)
    } else {
        (Status::Fail, "nothing was seen to run")
    };
    Judgement { status, reason: reason.to_owned(), ..judgement }
}

impl Peer {
    /// The observed kernels on a backend, and what is missing: its own kernels, and those for single tokens if
    /// required.
    fn evidence(&self, seen: Vec<ObservedCall>, backend: BackendKind) -> (Evidence, Option<Gap>) {
        if backend != BackendKind::Cuda {
            let evidence = Evidence::of(seen, &self.cpu, &self.not);
            let gap = evidence.gap(&self.cpu);
            return (evidence, gap);
        }
        let decoded = match self.decodes.as_slice() {
            [] => None,
            decodes => Evidence::of(seen.clone(), decodes, &self.not).gap(decodes),
        };
        let evidence = Evidence::of(seen, &self.kernels, &self.not);
        let gap = evidence.gap(&self.kernels).or(decoded);
        (evidence, gap)
    }
}

/// Sends a request to the process of a peer, not to a restarted one.
pub(super) fn ask<T: DeserializeOwned>(
    session: &mut Session,
    process: u32,
    request: Value,
) -> Result<T, PeerRefusal> {
    if !session.holds(process) {
        // Another peer ended the process, which says nothing about this one.
        let reason = "the process that held it is gone".to_owned();
        return Err(PeerRefusal { status: Status::NotRun, reason });
    }
    let answer = session
        .ask(request)
        .map_err(|error| PeerRefusal { status: error.status(), reason: error.to_string() })?;
    serde_json::from_value(answer.clone()).map_err(|_| match answer["reason"].as_str() {
        Some(reason) => PeerRefusal::fail(reason),
        None => PeerRefusal::fail(PythonError::Garbage(answer.to_string()).to_string()),
    })
}

/// Checks the kernels that run once more, after timing.
///
/// # Errors
/// When its own kernels no longer run.
pub(super) fn still(
    session: &mut Session,
    peer: &Peer,
    backend: BackendKind,
    process: u32,
) -> Result<(), PeerRefusal> {
    #[derive(Deserialize)]
    struct ObservedRun {
        evidence: Vec<ObservedCall>,
    }
    let request = json!({ "do": "watch", "peer": peer.name });
    let ObservedRun { evidence } = ask(session, process, request)?;
    match peer.evidence(evidence, backend).1 {
        None => Ok(()),
        Some(Gap::Nothing) => Err(PeerRefusal::fail("after its timing nothing was seen to run")),
        Some(Gap::Others(reason)) => Err(PeerRefusal::fail(format!("after its timing {reason}"))),
    }
}

/// Judges a peer on the loaded call, with its whole reference.
pub(crate) fn judge_peer(
    session: &mut Session,
    peer: &Peer,
    references: &mut References<'_>,
    backend: BackendKind,
) -> PeerRun {
    let call = references.call();
    run(session, peer, &call.problem().outputs(), backend, |outputs, given| {
        match references.for_outputs(outputs) {
            Ok(reference) => against_only(call, outputs, &reference, Some(given)),
            Err(reason) => Judgement::fail(reason, 0, 0.0),
        }
    })
}

/// A peer whose last run was compared with the float64 reference, whose kernels were seen, and which may be timed.
///
/// Only [`admit_peer`] constructs it.
#[derive(Debug)]
pub struct VerifiedPeer {
    peer: Peer,
    package: String,
    evidence: String,
    agreement: Agreement,
    backend: BackendKind,
    /// The id of its process.
    process: u32,
}

/// Why a peer is not timed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRefusal {
    /// The result of its check.
    pub status: Status,
    /// The reason.
    pub reason: String,
}

impl PeerRefusal {
    fn fail(reason: impl Into<String>) -> Self {
        Self { status: Status::Fail, reason: reason.into() }
    }
}

/// Runs a peer on the loaded call and compares a random part of its outputs with the reference of that part.
///
/// # Errors
/// Why it must not be timed.
pub fn admit_peer(
    session: &mut Session,
    peer: &Peer,
    call: &Call<'_>,
    drawn: &mut SampledCall<'_>,
    backend: BackendKind,
) -> Result<VerifiedPeer, PeerRefusal> {
    let ran = run(session, peer, &call.problem().outputs(), backend, |outputs, gives| {
        drawn.judge(outputs, Some(gives))
    });
    match (ran.judgement.status, ran.judgement.agreement) {
        (Status::Pass, Some(agreement)) => Ok(VerifiedPeer {
            peer: peer.clone(),
            package: ran.package,
            evidence: ran.evidence,
            agreement,
            backend,
            process: session.started(),
        }),
        (status, _) => Err(PeerRefusal { status, reason: ran.judgement.reason }),
    }
}

impl VerifiedPeer {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.peer.name
    }

    /// Whether its process is still the current one.
    pub fn is_held_by(&self, session: &Session) -> bool {
        session.holds(self.process)
    }

    /// The package with its version.
    pub fn package(&self) -> &str {
        &self.package
    }

    /// The kernels that ran.
    pub fn evidence(&self) -> &str {
        &self.evidence
    }

    /// The errors it passed with.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Times it by the device's own clock for about `budget`, with at least `fewest` samples: milliseconds of single
    /// runs, or means of `replays` runs of a CUDA graph if it could be captured. Returns the samples and the runs per
    /// sample.
    ///
    /// # Errors
    /// The process was restarted, or the times are invalid.
    pub fn time(
        &self,
        session: &mut Session,
        budget: Duration,
        fewest: usize,
        replays: u32,
    ) -> Result<(Vec<f64>, u32), PeerRefusal> {
        #[derive(Deserialize)]
        struct TimedResponse {
            samples: Vec<f64>,
            replays: u32,
        }
        let begin = Instant::now();
        let request = json!({
            "do": "time",
            "peer": self.peer.name,
            "millis": budget.as_secs_f64() * 1e3,
            "fewest": fewest,
            "most": 200,
            "replays": replays,
        });
        let timed: TimedResponse = ask(session, self.process, request)?;
        let wall = begin.elapsed().as_secs_f64() * 1e3;
        check_plausible(&timed.samples, timed.replays, wall).map_err(PeerRefusal::fail)?;
        Ok((timed.samples, timed.replays))
    }

    /// Checks the kernels that run once more, after timing.
    ///
    /// # Errors
    /// When its own kernels no longer run.
    pub fn confirm(&self, session: &mut Session) -> Result<(), PeerRefusal> {
        still(session, &self.peer, self.backend, self.process)
    }
}

/// Times must be plausible: positive, and together no longer than firstlight's own clock measured for all of them.
fn check_plausible(samples: &[f64], replays: u32, wall_millis: f64) -> Result<(), String> {
    let total: f64 = samples.iter().sum::<f64>() * f64::from(replays);
    if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite() || *sample <= 0.0) {
        Err("its clock gave a time that is none".to_owned())
    } else if total > wall_millis {
        Err(format!("its clock says {total:.1} ms, and all of it took {wall_millis:.1} ms"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn implausible_clocks_are_rejected() {
        assert_eq!(check_plausible(&[1.0, 2.0], 1, 3.5), Ok(()));
        assert_eq!(check_plausible(&[1.0, 0.5], 2, 3.5), Ok(()));
        for (samples, replays) in [
            (&[][..], 1),
            (&[1.0, -2.0], 1),
            (&[0.0], 1),
            (&[f64::NAN], 1),
            (&[3.0, 2.0], 1),
            (&[1.0, 1.0], 20),
        ] {
            assert!(check_plausible(samples, replays, 3.5).is_err(), "{samples:?} {replays}");
        }
    }

    #[test]
    fn call_without_evidence_fails_unless_it_is_empty() {
        let spec =
            |name, shape: &[usize]| OutputSpec { name, shape: shape.to_vec(), dtype: DType::F32 };
        let (nothing, some) = (spec("o", &[0, 3, 8]), spec("final_state", &[2, 8]));
        let passed = Judgement { status: Status::Pass, ..Judgement::fail(String::new(), 0, 0.0) };
        let check = |judgement: &Judgement, specs: &[OutputSpec], expect: Status| {
            assert_eq!(unseen(judgement.clone(), specs).status, expect, "{specs:?}");
        };
        check(&passed, std::slice::from_ref(&nothing), Status::NotApplicable);
        check(&passed, std::slice::from_ref(&some), Status::Fail);
        check(&passed, &[nothing.clone(), some], Status::Fail);
        check(&Judgement::fail("raised".to_owned(), 0, 0.0), &[nothing], Status::Fail);
    }
}
