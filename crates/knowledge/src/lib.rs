//! Published data, each row with its source and date: torch builds and their GPU code, minimum drivers, wheels of
//! extensions, indexes, build recipes, profiles and named machines.
//!
//! This crate has the tables, the files under `data/`, and their lookups; the crates that import it decide.

pub mod abi;
mod arch;
pub mod causes;
mod citation;
pub mod cuda_drivers;
pub mod cuda_images;
pub mod gpu_codes;
pub mod indexes;
pub mod jetson;
pub mod kernels;
pub mod machines;
pub mod marker;
pub mod messages;
mod name_history;
pub mod packages;
mod packed;
pub mod profiles;
pub mod pypi;
pub mod recipes;
mod requirement;
mod table;
pub mod torch_builds;
pub mod torch_series;
mod version;
pub mod wheel_code;
mod wheel_tags;
pub mod wheels;
pub mod xids;

pub use arch::Arch;
pub use citation::Citation;
pub use name_history::{NameHistory, NameLack, NameQuery};
pub use requirement::Requirement;
pub use version::{Minor, Version, cuda_of_label, dotted, minor_of};
pub use wheel_code::{GpuArchitecture, WheelCode, wheel_code};
pub use wheel_tags::WheelTarget;

/// A CUDA compute capability, major and minor.
pub type Sm = Minor;

#[cfg(test)]
mod tests {
    use super::*;

    /// A row without a source, or with keys that its type does not have, does not parse.
    #[test]
    fn every_table_parses() {
        let lengths = [
            torch_builds::builds().len(),
            torch_series::all().len(),
            cuda_drivers::minimum_drivers().len(),
            cuda_images::images().len(),
            gpu_codes::cuda().len(),
            indexes::indexes().len(),
            jetson::torch().len(),
            machines::machines().len(),
            messages::messages().len(),
            packages::packages().len(),
            profiles::profiles().len(),
            pypi::releases("torch").count(),
            recipes::recipes().len(),
            wheels::wheels().len(),
            causes::partners("trl").len(),
            causes::of_exception("ValueError", "", &["python", "raised"]).len(),
            causes::of_build("ld: cannot find -lx", &["python", "toolchain"]).len(),
            xids::xids().len(),
            packages::undeclared_requirements("fla-core").count(),
            packages::libraries("bitsandbytes", "0.50.2").map_or(0, |row| row.cuda.len()),
        ];
        assert!(lengths.iter().all(|length| *length > 0), "{lengths:?}");
    }
}
