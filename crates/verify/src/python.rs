//! An installed Python stack, asked to run its kernels: one interpreter started in the user's environment, one request a
//! line, tensors in files in memory.
//!
//! Invariant: whatever a package does (crash, hang, take all memory, print, end the process) is an answer with a reason.

mod budget;
mod evidence;
mod files;
mod generation;
mod model;
mod run;
mod session;
mod tuning;

pub use generation::{Generated, GenerationCase, VerifiedGeneration, admit_generation};
pub use model::{MODEL, ModelCase, judge_model};
pub use run::{PeerRefusal, VerifiedPeer, admit_peer, load as load_peer_case};
pub use session::{Limits, Python, PythonError, Session};
pub use tuning::Tuning;

pub(crate) use budget::Budget;
pub(crate) use run::{PeerRun, judge_peer, load};
