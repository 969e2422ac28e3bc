//! Reads and writes tables as CSV. Numbers round-trip; a value that was not measured is an empty cell, never zero.

mod bench;
mod branches;
mod fabric;
mod fields;
mod model_speed;
mod parity;
mod samples;

pub use bench::{bench_csv, read_bench_csv};
pub use branches::branches_csv;
pub use fabric::fabric_csv;
pub use fields::CsvError;
pub use model_speed::model_speed_csv;
pub use parity::{parity_csv, read_parity_csv};
pub use samples::{read_samples_csv, samples_csv};
