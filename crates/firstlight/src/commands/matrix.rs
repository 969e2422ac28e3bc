//! `firstlight matrix`: what works on which platform, each cell with its reason and source.

use super::ask_nvml::live;
use crate::Outcome;
use crate::cli::Matrix;
use crate::output::Output;
use probe::Options;
use report::terminal;

pub(super) fn run(arguments: &Matrix, output: &Output) -> anyhow::Result<Outcome> {
    let machine =
        probe::machine(&Options { source: live(&arguments.waiting), site_packages: Vec::new() });
    let matrix = diagnose::matrix(&machine);
    output.either(&matrix, |style| terminal::matrix(&matrix, arguments.verbose, style))?;
    Ok(Outcome::Good)
}
