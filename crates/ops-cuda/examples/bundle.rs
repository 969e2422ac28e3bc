//! Compiles the bundled kernels; `cargo xtask bundle` runs it.
//!
//! `bundle --nvrtc LIBRARY --into FOLDER` writes `FOLDER/bundle.bin`, one cubin a kernel under the kernel's key, and
//! `kernels.tsv` with key, architecture and label. NVRTC compiles one kernel at a time in a process, so one process
//! per core compiles a share of the kernels. With `--compile changed` the binaries of unchanged sources come from the
//! built-in bundle.
//!
//! With `--sample COUNT` no bundle is written: the built-in one is compared with the sources. Its keys have to be
//! exactly those of the sources; about COUNT kernels are compiled again and have to be identical bytes.
#![allow(clippy::print_stdout, clippy::print_stderr)] // It is a command.

use device::cuda::{Bundle, BundleStream, Cache, KernelSource, Nvrtc};
use lzma_rust2::{EncodeMode, LzmaOptions, LzmaWriter, MfType};
use ops_cuda::BUNDLE;
use std::fmt::Write as _;
use std::io::{self, Write as _};
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
    let (mut nvrtc, mut into) = (None, None);
    let (mut share, mut sample, mut changed) = (None, None, false);
    let mut arguments = std::env::args_os().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or("an argument has no value")?;
        match argument.to_str() {
            Some("--nvrtc") => nvrtc = Some(PathBuf::from(value)),
            Some("--into") => into = Some(PathBuf::from(value)),
            Some("--compile") => changed = value.to_str() == Some("changed"),
            Some("--share") => share = value.to_str().map(str::to_owned),
            Some("--sample") => sample = Some(value.to_str().unwrap_or_default().parse()?),
            _ => return Err(format!("unexpected argument `{}`", argument.display()).into()),
        }
    }
    let (Some(nvrtc), Some(into)) = (nvrtc, into) else {
        return Err(
            "usage: bundle --nvrtc LIBRARY --into FOLDER [--compile changed] [--sample COUNT]"
                .into(),
        );
    };
    let sources = ops_cuda::bundled();
    let cubins = Cache::at(into.join("cubins"));
    let compiled = sample.map_or_else(|| sources.clone(), |count| spread(&sources, count));
    match (share, sample) {
        (Some(share), _) => {
            let (nth, of) = share.split_once('/').ok_or("--share wants N/COUNT")?;
            let known = if changed { &BUNDLE } else { &Bundle::new(&[]) };
            compile(&nvrtc, &compiled, (nth.parse()?, of.parse()?), (known, &cubins))
        }
        (None, None) => {
            share_out(&nvrtc, &into, &["--compile", if changed { "changed" } else { "all" }])?;
            pack(&sources, &cubins, &into)
        }
        (None, Some(count)) => {
            // Stale keys fail before anything is compiled.
            let built_in = built_in(&sources)?;
            share_out(&nvrtc, &into, &["--sample", &count.to_string()])?;
            same(&compiled, &cubins)?;
            write(&sources, &built_in, &into)
        }
    }
}

/// About `count` of the sources, selected by their keys: the same for the same sources, and others after an edit, so
/// that every source is covered over time.
fn spread(sources: &[KernelSource], count: usize) -> Vec<KernelSource> {
    let mut keyed: Vec<_> = sources.iter().map(|source| (source.key(), source)).collect();
    keyed.sort_by_key(|(key, _)| *key);
    let step = keyed.len().div_ceil(count.max(1)).max(1);
    let from = keyed.iter().map(|(key, _)| usize::from(key[0])).sum::<usize>() % step;
    keyed.into_iter().skip(from).step_by(step).map(|(_, source)| source.clone()).collect()
}

/// The binary of each source from the built-in bundle.
fn built_in(sources: &[KernelSource]) -> Result<Vec<Vec<u8>>, Failure> {
    let find = |source: &KernelSource| {
        let (label, arch) = (source.label(), source.arch());
        let stale = || format!("the bundle has no {label} for {arch} of the source as it is now");
        BUNDLE.find(&source.key()).ok_or_else(stale)
    };
    let found = sources.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    match BUNDLE.len() - found.len() {
        0 => Ok(found),
        more => Err(format!("the bundle has {more} kernels that no source gives").into()),
    }
}

/// Checks that compiled binaries equal the built-in ones.
fn same(compiled: &[KernelSource], cubins: &Cache) -> Result<(), Failure> {
    for source in compiled {
        if cubins.find(&source.key()) != BUNDLE.find(&source.key()) {
            let (label, arch) = (source.label(), source.arch());
            return Err(format!("in the bundle {label} for {arch} has other bytes").into());
        }
    }
    println!("{} of {} kernels compiled again: the same bytes", compiled.len(), BUNDLE.len());
    Ok(())
}

/// Compiles every `of`th kernel that neither the cache nor the `known` bundle has.
fn compile(
    nvrtc: &Path,
    sources: &[KernelSource],
    (nth, of): (usize, usize),
    (known, cubins): (&Bundle, &Cache),
) -> Result<(), Failure> {
    let compiler = Nvrtc::load(nvrtc).ok_or("NVRTC cannot be loaded")?;
    for source in sources.iter().skip(nth).step_by(of) {
        if cubins.find(&source.key()).is_some() {
            continue;
        }
        if let Some(binary) = known.find(&source.key()) {
            cubins.keep(&source.key(), &binary)?;
            continue;
        }
        let (cubin, log) = compiler.compile(source)?;
        // The compiler logs this when it serializes `wgmma` instructions, which costs most of the performance.
        if log.to_lowercase().contains("serializ") {
            return Err(format!("{} for {}: {log}", source.label(), source.arch()).into());
        }
        cubins.keep(&source.key(), &cubin)?;
    }
    Ok(())
}

/// Runs this program once per core, each with a share of the kernels.
fn share_out(nvrtc: &Path, into: &Path, which: &[&str]) -> Result<(), Failure> {
    let count = std::thread::available_parallelism()?.get();
    let mut children = Vec::new();
    for nth in 0..count {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--nvrtc").arg(nvrtc).arg("--into").arg(into).args(which);
        children.push(command.arg("--share").arg(format!("{nth}/{count}")).spawn()?);
    }
    let mut good = true;
    for mut child in children {
        good &= child.wait()?.success();
    }
    if good { Ok(()) } else { Err("a kernel did not compile".into()) }
}

fn pack(sources: &[KernelSource], cubins: &Cache, into: &Path) -> Result<(), Failure> {
    let find = |source: &KernelSource| cubins.find(&source.key()).ok_or("a kernel is missing");
    let binaries = sources.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    write(sources, &binaries, into)?;
    let bytes = Bundle::pack(sources.iter().cloned().zip(binaries).collect(), compress)?;
    println!("{} kernels, {} bytes", sources.len(), bytes.len());
    std::fs::write(into.join("bundle.bin"), bytes)?;
    Ok(())
}

/// Compresses a stream of the bundle as an LZMA file. Instructions have 16 bytes, so the four low bits of the
/// position select match coding and literal contexts for code; in tables and names the previous byte does.
fn compress(stream: BundleStream, content: &[u8]) -> io::Result<Vec<u8>> {
    let (nice, window) = (LzmaOptions::NICE_LEN_MAX, content.len().clamp(4 << 10, 16 << 20) as u32);
    let [lc, lp, pb] = match stream {
        BundleStream::Code => [0, 4, 4],
        BundleStream::Rest => [3, 0, 2],
    };
    let options = LzmaOptions::new(window, lc, lp, pb, EncodeMode::Normal, nice, MfType::Bt4, 0);
    let mut file = LzmaWriter::new_use_header(Vec::new(), &options, Some(content.len() as u64))?;
    file.write_all(content)?;
    file.finish()
}

/// Writes the binaries as files, and their table.
fn write(sources: &[KernelSource], binaries: &[Vec<u8>], into: &Path) -> Result<(), Failure> {
    let mut table = String::new();
    for (source, binary) in sources.iter().zip(binaries) {
        let name: String = source.key().iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(into.join(&name).with_extension("cubin"), binary)?;
        writeln!(table, "{name}\t{}\t{}", source.arch(), source.label())?;
    }
    std::fs::write(into.join("kernels.tsv"), table)?;
    Ok(())
}
