//! Prints the probe's facts as JSON: `probe [--venv DIR] [--recorded DIR] [--cache FILE] [--nvml]`.
//!
//! `--nvml` prints only NVML's answers, in the format of a recorded machine's file `nvml`.
#![allow(clippy::print_stdout, clippy::print_stderr)] // An example can only print.

use probe::{EnvOptions, Source};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut source = Source::live();
    let mut venv = None;
    let mut cache = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--venv" => venv = args.next().map(PathBuf::from),
            "--cache" => cache = args.next().map(PathBuf::from),
            "--recorded" => {
                source =
                    Source::recorded(Path::new(&args.next().ok_or("--recorded wants a folder")?))?
            }
            "--nvml" => {
                print!("{}", source.ask_nvml().record());
                return Ok(());
            }
            other => return Err(format!("unknown argument `{other}`").into()),
        }
    }
    let started = Instant::now();
    let report = probe::read(&EnvOptions { source, venv, cache, verify_files: false })
        .map_err(|error| format!("{error}\nhint: {}", error.hint()))?;
    let millis = started.elapsed().as_secs_f64() * 1e3;
    println!("{}", serde_json::to_string_pretty(&report.machine)?);
    println!("{}", serde_json::to_string_pretty(&report.envs)?);
    eprintln!("read in {millis:.1} ms");
    Ok(())
}
