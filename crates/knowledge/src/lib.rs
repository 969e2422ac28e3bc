//! What was published, as rows that carry where they were read and when: torch builds and their GPU code, driver floors,
//! wheels of extensions, indexes, build recipes, profiles and machines known by name.
//!
//! Data with its look-ups; deciding is for the rooms that import it. The tables are the files under `data/`.

mod arch;
pub mod cuda_drivers;
mod source;
mod table;
pub mod torch_builds;
pub mod torch_series;
mod version;

pub use arch::Arch;
pub use source::Source;
pub use version::{Minor, Version, cuda_of_label, dotted, minor_of};

/// A CUDA compute capability, major and minor.
pub type Sm = Minor;
