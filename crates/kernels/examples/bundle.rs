//! Compiles the kernels that the bundle is made of; `cargo xtask bundle` runs it.
//!
//! `bundle --nvrtc LIBRARY --into FOLDER` writes `FOLDER/bundle.bin`, one cubin a kernel under the kernel's key, and
//! `kernels.tsv` with key, architecture and label. NVRTC compiles one kernel at a time in a process,
//! so the work is shared out among as many processes as there are cores.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a command.

use device::cuda::{Bundle, Cache, KernelSource, Nvrtc};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let (mut nvrtc, mut into, mut share) = (None, None, None);
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or("an argument has no value")?;
        match argument.to_str() {
            Some("--nvrtc") => nvrtc = Some(PathBuf::from(value)),
            Some("--into") => into = Some(PathBuf::from(value)),
            Some("--share") => share = value.to_str().map(str::to_owned),
            _ => return Err(format!("unexpected argument `{}`", argument.display()).into()),
        }
    }
    let (Some(nvrtc), Some(into)) = (nvrtc, into) else {
        return Err("usage: bundle --nvrtc LIBRARY --into FOLDER".into());
    };
    let sources = kernels::cuda::bundled();
    let cubins = Cache::at(into.join("cubins"));
    match share {
        Some(share) => {
            let (nth, of) = share.split_once('/').ok_or("--share wants N/COUNT")?;
            compile(&nvrtc, &sources, (nth.parse()?, of.parse()?), &cubins)
        }
        None => {
            share_out(&nvrtc, &into)?;
            pack(&sources, &cubins, &into)
        }
    }
}

/// Compiles every `of`th kernel that is not there yet.
fn compile(
    nvrtc: &Path,
    sources: &[KernelSource],
    (nth, of): (usize, usize),
    cubins: &Cache,
) -> Result<(), Failure> {
    let compiler = Nvrtc::load(nvrtc).ok_or("NVRTC cannot be loaded")?;
    for source in sources.iter().skip(nth).step_by(of) {
        if cubins.find(&source.key()).is_some() {
            continue;
        }
        let (cubin, log) = compiler.compile(source)?;
        // The compiler says so when it had to give up overlapping matrix products, which costs most of the speed.
        if log.to_lowercase().contains("serializ") {
            return Err(format!("{} for {}: {log}", source.label(), source.arch()).into());
        }
        cubins.keep(&source.key(), &cubin)?;
    }
    Ok(())
}

/// Runs this program once a core, each with its share.
fn share_out(nvrtc: &Path, into: &Path) -> Result<(), Failure> {
    let count = std::thread::available_parallelism()?.get();
    let mut children = Vec::new();
    for nth in 0..count {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--nvrtc").arg(nvrtc).arg("--into").arg(into);
        children.push(command.arg("--share").arg(format!("{nth}/{count}")).spawn()?);
    }
    let mut good = true;
    for mut child in children {
        good &= child.wait()?.success();
    }
    if good { Ok(()) } else { Err("a kernel did not compile".into()) }
}

fn pack(sources: &[KernelSource], cubins: &Cache, into: &Path) -> Result<(), Failure> {
    let (mut binaries, mut table) = (Vec::new(), String::new());
    for source in sources {
        let key = source.key();
        let cubin = cubins.find(&key).ok_or("a kernel is missing")?;
        let name: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(into.join(&name).with_extension("cubin"), &cubin)?;
        writeln!(table, "{name}\t{}\t{}", source.arch(), source.label())?;
        binaries.push((key, cubin));
    }
    let bytes = Bundle::pack(binaries);
    println!("{} kernels, {} bytes", sources.len(), bytes.len());
    std::fs::write(into.join("kernels.tsv"), table)?;
    std::fs::write(into.join("bundle.bin"), bytes)?;
    Ok(())
}
