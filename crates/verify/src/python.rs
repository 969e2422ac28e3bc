//! Runs kernels of an installed Python environment: one interpreter started in it, one request per line, tensors in
//! files in memory.
//!
//! Invariant: whatever a package does (crash, hang, exhaust memory, print, end the process) gives an answer with a
//! reason.

mod budget;
mod evidence;
mod files;
mod generation;
mod model;
mod run;
mod session;
mod tuning;

pub use generation::{GenerationCase, GenerationTimes, VerifiedGeneration, admit_generation};
pub use model::{MODEL, ModelCase, judge_model};
pub use run::{PeerRefusal, VerifiedPeer, admit_peer, load as load_peer_case};
pub use session::{ProcessLimits, Python, PythonError, Session};
pub use tuning::Tuning;

pub(crate) use budget::Budget;
pub(crate) use run::{PeerRun, judge_peer, load};
