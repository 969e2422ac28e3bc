//! Where kernels run: backends, what each can do, and the launch counters that are the evidence of a run.
//!
//! A backend is found at run time; its absence is a fact with a sentence, never a build option.

mod backends;
mod caches;
mod capabilities;
pub mod cuda;
mod grid;
mod host;
mod launches;
mod mapped;
mod team;
mod walk;

pub use backends::{BACKENDS, Backend, Device, Unavailable, borrow_gpu, open, open_gpu};
pub use caches::Caches;
pub use capabilities::{Capabilities, Isa};
pub use grid::SharedMut;
pub use host::HostBuffer;
pub use launches::{LaunchRecord, Launches};
pub use mapped::MappedFile;
pub use team::keep_to;
pub use walk::Walk;
