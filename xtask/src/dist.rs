//! Builds archives and wheels of the command for users without Rust, and checks each of them.
//!
//! The wheel's tag is derived from the program file: its glibc version, its architecture and the libraries that it loads.
//! Builds are reproducible: the same commit gives the same bytes.

mod archive;
mod binary;
mod build;
mod documents;
mod package;
mod proof;
mod sbom;
#[cfg(test)]
mod schemas;
mod size;
mod texts;
mod wheel;
mod zig;

use crate::cross::{Source, host_triple};
use crate::{cargo, steps};
use anyhow::{Context, bail};
use binary::Needs;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use wheel::Package;

/// A platform of the releases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Platform {
    /// The target triple.
    pub(crate) triple: &'static str,
    /// Docker's name of the architecture; `None` if there is no image for it.
    image: Option<&'static str>,
}

impl Platform {
    /// Whether `name` is its triple, or for Linux its architecture.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.triple == name || self.triple.strip_suffix("-unknown-linux-gnu") == Some(name)
    }
}

/// Every platform.
pub(crate) const PLATFORMS: &[Platform] = &[
    Platform { triple: "x86_64-unknown-linux-gnu", image: Some("amd64") },
    Platform { triple: "aarch64-unknown-linux-gnu", image: Some("arm64") },
    Platform { triple: "aarch64-apple-darwin", image: None },
];

/// Maximum size of a program in bytes.
const MAX_BYTES: usize = 30_000_000;
/// Maximum size of a wheel in bytes.
const MAX_WHEEL_BYTES: u64 = 45_000_000;

/// Arguments of `cargo xtask wheel`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// The platforms to build; if empty, every platform that this machine can build.
    pub(crate) targets: Vec<Platform>,
    /// The source of another target's standard library; any if `None`.
    pub(crate) source: Option<Source>,
    /// A built program to pack, instead of building one.
    pub(crate) program: Option<PathBuf>,
    /// The folder to write to.
    pub(crate) output: Option<PathBuf>,
    /// Install and run the built packages.
    pub(crate) prove: bool,
}

/// A file of an archive or a wheel.
#[derive(Debug, Clone)]
struct File {
    /// Its path in the archive's folder.
    path: String,
    bytes: Vec<u8>,
    executable: bool,
}

impl File {
    fn text(path: &str, bytes: Vec<u8>) -> Self {
        Self { path: path.to_owned(), bytes, executable: false }
    }

    fn program(path: &str, bytes: Vec<u8>) -> Self {
        Self { executable: true, ..Self::text(path, bytes) }
    }
}

/// The release of a commit.
struct Dist<'a> {
    root: &'a Path,
    request: &'a Request,
    target_directory: PathBuf,
    output: PathBuf,
    version: String,
    summary: String,
    repository: Option<String>,
    /// The date of every file, in seconds since 1970.
    time: u64,
}

/// The built files of one platform.
struct PlatformBuild {
    triple: &'static str,
    bytes: usize,
    needs: Needs,
    /// The output of a run on this machine, or the reason why it was not run.
    ran: Result<String, String>,
    /// Runs its programs, if this machine can.
    runner: Option<build::Runner>,
    wheel: PathBuf,
    program: PathBuf,
}

/// Builds the requested platforms and prints the result of each.
pub(crate) fn make(root: &Path, request: &Request) -> anyhow::Result<()> {
    let target_directory = cargo::target_directory(root)?;
    let output = request.output.clone().unwrap_or_else(|| target_directory.join("packages"));
    fs::create_dir_all(&output).with_context(|| output.display().to_string())?;
    let (version, summary, repository) = described(root)?;
    let time = date_of_commit(root)?;
    let dist = Dist { root, request, target_directory, output, version, summary, repository, time };
    let here = host_triple()?;
    let mut platforms = match request.targets.as_slice() {
        [] if request.program.is_some() => {
            PLATFORMS.iter().copied().filter(|platform| platform.triple == here).collect()
        }
        [] => PLATFORMS.to_vec(),
        named => named.to_vec(),
    };
    // The host comes first: its program prints the man pages and completions of all platforms.
    platforms.sort_by_key(|platform| platform.triple != here);
    let (mut all, mut lines, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let mut documents = None;
    for platform in platforms {
        eprintln!("== {}", platform.triple);
        match dist.platform(platform, &here, &mut documents) {
            Ok(made) => {
                lines.push(made.line());
                all.push(made);
            }
            Err(reason) => {
                lines.push(format!("{:<28}NOT MADE: {reason:#}", platform.triple));
                missing.push(platform.triple);
            }
        }
    }
    println!("{}\n\n{}", lines.join("\n"), dist.output.display());
    for file in written(&dist.output)? {
        println!("  {file}");
    }
    // Every requested platform is required; without a request, at least one.
    if all.is_empty() || (!request.targets.is_empty() && !missing.is_empty()) {
        bail!("not made: {}", missing.join(", "));
    }
    if request.prove {
        let runs = |made: &&PlatformBuild| made.runner.is_some();
        if !all.iter().any(|made| runs(&made)) {
            bail!("--prove needs a platform whose programs run on this machine");
        }
        all.iter().filter(runs).try_for_each(|made| proof::run(&dist, made, &here))?;
    }
    Ok(())
}

impl Dist<'_> {
    /// The archive and the wheel of one platform, with their checksums.
    fn platform(
        &self,
        platform: Platform,
        here: &str,
        documents: &mut Option<Vec<File>>,
    ) -> anyhow::Result<PlatformBuild> {
        let (build::Built { program, library }, own) = match &self.request.program {
            Some(program) => (build::Built::of_program(program), false),
            None => (build::build(self, platform, here)?, true),
        };
        let bytes = fs::read(&program).with_context(|| program.display().to_string())?;
        let needs = Needs::of(&bytes).with_context(|| program.display().to_string())?;
        if !platform.triple.starts_with(needs.processor.replace("arm64", "aarch64").as_str()) {
            bail!("{} is for {}", program.display(), needs.processor);
        }
        // A given program is a test build, so the size of its release build is estimated.
        if !own && platform.triple == "x86_64-unknown-linux-gnu" {
            size::Sections::of(&bytes)?.hold(MAX_BYTES as u64)?;
        }
        if own {
            needs.hold()?;
            if bytes.len() > MAX_BYTES {
                bail!("the program has {} bytes; wanted {MAX_BYTES} or fewer", bytes.len());
            }
        }
        let runner = build::runner(self, platform, here);
        let ran = match &runner {
            Ok(runner) => Ok(runner.version(&program)?),
            Err(reason) => Err(format!("{reason:#}")),
        };
        if documents.is_none() {
            let runner = runner.as_ref().map_err(|reason| {
                anyhow::anyhow!(
                    "the program, which prints its man pages, does not run here: {reason:#}"
                )
            })?;
            *documents = Some(documents::of(runner, &program, texts::read(self.root)?)?);
        }
        let mut files = documents.clone().unwrap_or_default();
        files.push(File::program("firstlight", bytes.clone()));
        let stem = format!("firstlight-{}-{}", self.version, platform.triple);
        let archive = self.output.join(format!("{stem}.tar.gz"));
        archive::write(&archive, &stem, &files, self.time)?;
        let mut tag = needs.tag()?;
        if let Some(library) = &library {
            let package = package::of(self.root, library)?;
            if own {
                package.needs.hold().with_context(|| library.display().to_string())?;
            }
            // The wheel needs the newer system of program and library.
            tag = needs.and(&package.needs).tag()?;
            files.extend(package.files);
        }
        let wheel = self.output.join(wheel::name(&self.version, &tag));
        let description = texts::description(&fs::read_to_string(self.root.join("README.md"))?);
        let package = Package {
            version: &self.version,
            summary: &self.summary,
            description: &description,
            repository: self.repository.as_deref(),
        };
        wheel::write(&wheel, &package, &tag, &files, self.time)?;
        let weight = fs::metadata(&wheel)?.len();
        if own && weight > MAX_WHEEL_BYTES {
            bail!("the wheel has {weight} bytes; wanted {MAX_WHEEL_BYTES} or fewer");
        }
        let bill = self.output.join(format!("{stem}.cdx.json"));
        let document = sbom::of(self.root, platform.triple, &self.version, self.time)?;
        fs::write(&bill, format!("{document:#}\n")).with_context(|| bill.display().to_string())?;
        for file in [&archive, &wheel, &bill] {
            checksum(file)?;
        }
        if let Some(image) = platform.image {
            let folder = self.output.join("image").join(image);
            fs::create_dir_all(&folder)?;
            fs::copy(&program, folder.join("firstlight"))?;
        }
        let triple = platform.triple;
        let runner = runner.ok();
        Ok(PlatformBuild { triple, bytes: bytes.len(), needs, ran, runner, wheel, program })
    }
}

impl PlatformBuild {
    fn line(&self) -> String {
        let megabytes = self.bytes as f64 / 1e6;
        let ran = match &self.ran {
            Ok(ran) => ran.clone(),
            Err(reason) => format!("not run: {reason}"),
        };
        format!("{:<28}made  {megabytes:.1} MB, needs {}; {ran}", self.triple, self.needs.system)
    }
}

/// The version, description and repository of the manifest of `firstlight`.
fn described(root: &Path) -> anyhow::Result<(String, String, Option<String>)> {
    let metadata = cargo::metadata(root)?;
    let packages = metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
    let package = packages.iter().find(|package| package["name"] == "firstlight");
    let text = |key: &str| Some(package?[key].as_str()?.to_owned());
    let (version, summary) = text("version")
        .zip(text("description"))
        .context("the workspace has no package `firstlight`")?;
    Ok((version, summary, text("repository")))
}

/// SOURCE_DATE_EPOCH if it is set, otherwise the date of the commit, in seconds since 1970.
fn date_of_commit(root: &Path) -> anyhow::Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            steps::output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))
                .context(
                    "files are dated by the commit\nhint: set SOURCE_DATE_EPOCH outside a clone",
                )?
        }
    };
    text.trim().parse().with_context(|| format!("`{}` is not a time in seconds", text.trim()))
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Writes `FILE.sha256` in the format of `sha256sum`.
fn checksum(path: &Path) -> anyhow::Result<()> {
    let name = path.file_name().context("no file name")?.to_string_lossy();
    let hash: String = sha256(&fs::read(path)?).iter().map(|byte| format!("{byte:02x}")).collect();
    let sums = path.with_file_name(format!("{name}.sha256"));
    fs::write(&sums, format!("{hash}  {name}\n")).with_context(|| sums.display().to_string())
}

fn written(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let megabytes = entry.metadata()?.len() as f64 / 1e6;
            names.push(format!("{} ({megabytes:.1} MB)", entry.file_name().to_string_lossy()));
        }
    }
    names.retain(|name| !name.contains(".sha256 "));
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sha256sum_accepts_the_checksum_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.whl");
        fs::write(&file, "abc").unwrap();
        checksum(&file).unwrap();
        let check = ["--check", "--strict", "a.whl.sha256"];
        steps::run(Command::new("sha256sum").current_dir(folder.path()).args(check)).unwrap();
    }

    #[test]
    fn reads_version_and_description_of_the_manifest() {
        let (version, summary, _) = described(&cargo::workspace_root().unwrap()).unwrap();
        assert_eq!(version.split('.').count(), 3);
        assert!(!summary.contains('\n') && summary.len() > 20);
    }
}
