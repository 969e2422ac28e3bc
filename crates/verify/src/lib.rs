//! Holds every kernel against the float64 reference.
//!
//! A pass needs evidence: outputs start as NaN, the device must have counted a launch of the very kernel named, and
//! every output must agree within the one tolerance table. [`Verified`] can be made nowhere else, and nothing is
//! timed without it.

mod bits;
mod case;
mod cases;
mod compare;
mod draw;
mod judge;
mod layout;
mod matrix;
mod peers;
mod property;
mod python;
mod references;
mod sample;
mod standing;
mod tolerance;

pub use case::{Case, Property, Tier};
pub use cases::{CASES, OpCases, cases};
pub use compare::{Agreement, compare};
pub use draw::Draw;
pub use judge::{Judgement, Verified, judge, judge_outputs};
pub use matrix::{OUT_OF_TIME, Peers, Plan, count, matrix, run_case};
pub use peers::{Listed, PEERS, Peer};
pub use python::{
    Generated, GenerationCase, Limits, MODEL, ModelCase, PeerRefusal, Python, PythonError, Session,
    Tuning, VerifiedGeneration, VerifiedPeer, admit_generation, admit_peer, judge_model,
    load_peer_case,
};
pub use sample::{Drawn, Sample};
pub use standing::Standing;
pub use tolerance::{Tolerance, tolerance};
