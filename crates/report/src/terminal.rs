//! Text for terminals. The caller passes the width of a line and whether there is color: this crate does not read the
//! environment.
//!
//! Every line fits the width except commands and addresses, which must survive being copied.

mod apply;
mod baseline;
mod bench;
mod branches;
mod brief;
mod compare;
mod doctor;
mod fleet;
mod gpus;
mod layout;
mod matrix;
mod model;
mod model_speed;
mod parity;
mod plan;
mod processes;
mod side_by_side;
mod summary;
mod table;
mod together;

pub use apply::apply;
pub use baseline::baseline;
pub use bench::bench;
pub use branches::branches;
pub use brief::{IndexCheck, doctor_brief, doctor_brief_with};
pub use compare::{comparison, gate};
pub use doctor::{doctor, doctor_with, one_finding};
pub use fleet::fleet;
pub use layout::paragraph;
pub use matrix::matrix;
pub use model::fit;
pub use model_speed::model_speed;
pub use parity::{parity, parity_summary};
pub use plan::{plan, refusal};
pub use processes::processes;
pub use summary::{summary, verdict};
pub use together::{fabric, sustained};

/// Names with a sentence each, the sentences wrapped in a second column.
pub fn listing(rows: &[(&str, &str)], style: Style) -> String {
    let rows: Vec<(String, String)> =
        rows.iter().map(|(name, words)| ((*name).to_owned(), (*words).to_owned())).collect();
    layout::fields(style, &rows)
}

/// How to write for a terminal, a pipe or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to use ANSI colours (`NO_COLOR` and "is it a terminal" are the caller's questions).
    pub color: bool,
    /// Columns a line may take; at least 40 are used.
    pub width: usize,
}

impl Default for Style {
    /// Plain text of 80 columns.
    fn default() -> Self {
        Self { color: false, width: 80 }
    }
}
