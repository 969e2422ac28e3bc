//! Compares every kernel with the float64 reference.
//!
//! A pass needs evidence: outputs start as NaN, the device must have counted a launch of the named kernel, and every
//! output must agree within the one tolerance table. [`Verified`] can only be constructed here, and nothing is timed
//! without it.

mod bits;
mod case;
mod cases;
mod compare;
mod judge;
mod layout;
mod matrix;
mod matrix_results;
mod peers;
mod property;
mod python;
mod references;
mod sample;
mod tensor_rng;
mod tolerance;

pub use case::{Case, Property, Tier};
pub use cases::{CASES, OpCases, cases};
pub use compare::{Agreement, compare};
pub use judge::{Judgement, Verified, judge, judge_outputs};
pub use matrix::{MatrixPlan, Peers, count, matrix, run_case};
pub use matrix_results::MatrixResults;
pub use peers::{ListedPeer, PEERS, Peer};
pub use python::{
    GenerationCase, GenerationTimes, MODEL, ModelCase, PeerRefusal, ProcessLimits, Python,
    PythonError, Session, Tuning, VerifiedGeneration, VerifiedPeer, admit_generation, admit_peer,
    judge_model, load_peer_case,
};
pub use sample::{Sample, SampledCall};
pub use tensor_rng::TensorRng;
pub use tolerance::{Tolerance, tolerance};
