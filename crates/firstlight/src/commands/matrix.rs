//! `firstlight matrix`: what works on which platform, each cell with its reason and source.

use crate::Outcome;
use crate::cli::Matrix;
use crate::output::Output;
use probe::{Options, Source};
use report::terminal;

pub(super) fn run(arguments: &Matrix, output: &Output) -> anyhow::Result<Outcome> {
    let machine = probe::machine(&Options { source: Source::live(), site_packages: Vec::new() });
    let matrix = diagnose::matrix(&machine);
    output.either(&matrix, |style| terminal::matrix(&matrix, arguments.verbose, style))?;
    Ok(Outcome::Good)
}
