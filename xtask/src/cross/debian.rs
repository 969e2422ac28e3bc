//! A compiler, and an emulated machine with a Python, from Debian's packages, unpacked below the target folder.
//!
//! Nothing is installed: Debian's cargo on PATH would stand in the way of rustup's, and another architecture would
//! change the machine's package database. apt gets a configuration, lists and an archive folder of its own.

use super::{TARGETS, write_program};
use crate::steps;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The compiler and its library for this machine, and the library's sources.
const PACKAGES: &[&str] = &["rustc-web", "libstd-rust-web-dev", "rust-web-src"];

/// Packages of the same source that the compiler loads; their names carry a version.
const LOADED: &[&str] = &["libstd-rust-web", "libllvm"];

/// The package with a built standard library, fetched for each Debian architecture in the table of targets.
const LIBRARY: &str = "libstd-rust-web-dev";

/// What an emulated machine needs besides the emulator: a Python without packages, and the libraries that it loads.
const EMULATED: &[&str] = &["python3-minimal", "libpython3-stdlib"];

/// The package of the emulators, each one program without libraries.
const EMULATORS: &str = "qemu-user-static";

/// How the names of those dependencies begin that a Python loads; the others are for installing packages.
const PYTHON_LOADS: &[&str] = &["lib", "python3", "zlib"];

/// Raised when the unpacked layout changes, so that an older one is thrown away.
const LAYOUT: &str = "1";

/// An unpacked compiler.
pub(super) struct Installation {
    /// A program that takes rustc's arguments.
    pub(super) rustc: PathBuf,
}

/// Unpacks the compiler where that has not been done yet.
pub(super) fn prepare(target_directory: &Path) -> anyhow::Result<Installation> {
    let home = target_directory.join("cross-debian");
    let installation = Installation { rustc: home.join("rustc") };
    let hint = "Debian's packages need a Debian or Ubuntu machine; elsewhere install the target with rustup";
    once(&home, hint, |apt, unpacked| {
        apt.download()?;
        unpack_all(&apt.archives(), unpacked)?;
        write_wrapper(&installation.rustc, &unpacked.join("usr"))?;
        steps::output(Command::new(&installation.rustc).arg("--version"))
            .context("Debian's rustc does not start")
    })?;
    Ok(installation)
}

/// The folder of an emulated machine of a Debian architecture. It has a C library, a Python, and at the path `emulator` the program that
/// runs them with `-L FOLDER`.
pub(super) fn prepare_emulated(
    target_directory: &Path,
    architecture: &str,
    emulator: &str,
) -> anyhow::Result<PathBuf> {
    let home = target_directory.join(format!("cross-{architecture}"));
    let hint = "Debian's packages need a Debian or Ubuntu machine";
    once(&home, hint, |apt, unpacked| {
        apt.download_emulated(architecture)?;
        unpack_all(&apt.archives(), unpacked)?;
        let mut python = Command::new(unpacked.join(emulator));
        python.arg("-L").arg(unpacked).arg(unpacked.join("usr/bin/python3")).arg("--version");
        steps::output(&mut python).context("Debian's Python does not start under qemu")
    })?;
    Ok(home.join("root"))
}

/// Fills `home/root` where that has not been done yet; `fill` returns the version of what it unpacked.
fn once(
    home: &Path,
    hint: &str,
    fill: impl FnOnce(&Apt, &Path) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    let stamp = home.join("complete");
    if fs::read_to_string(&stamp).is_ok_and(|layout| layout == LAYOUT) {
        return Ok(());
    }
    for program in ["apt-get", "dpkg-deb", "tar"] {
        steps::require(program, "--version", hint)?;
    }
    // An interrupted attempt leaves no stamp and is done again from nothing.
    if home.exists() {
        fs::remove_dir_all(home).with_context(|| format!("could not remove {}", home.display()))?;
    }
    let apt = Apt::new(home)?;
    let version = fill(&apt, &home.join("root"))?;
    eprintln!("unpacked {}", version.trim());
    fs::remove_dir_all(&apt.home)?;
    fs::write(&stamp, LAYOUT)?;
    Ok(())
}

/// apt with a private state.
struct Apt {
    home: PathBuf,
}

impl Apt {
    fn new(home: &Path) -> anyhow::Result<Self> {
        for folder in ["lists/partial", "archives/partial"] {
            let folder = home.join("apt").join(folder);
            fs::create_dir_all(&folder)
                .with_context(|| format!("could not make {}", folder.display()))?;
        }
        // apt wants absolute folders.
        Ok(Self { home: home.join("apt").canonicalize()? })
    }

    fn archives(&self) -> PathBuf {
        self.home.join("archives")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in options(&self.home, &machine_architecture()) {
            command.arg("-o").arg(option);
        }
        command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        command
    }

    /// Fetches every archive that `unpack_all` unpacks.
    fn download(&self) -> anyhow::Result<()> {
        steps::run(self.command("apt-get").args(["-q", "update"]))?;
        // Resolves and fetches what is not installed on this machine, dependencies included.
        let mut resolve = self.command("apt-get");
        resolve.args(["-q", "-y", "--no-install-recommends", "--download-only", "--reinstall"]);
        steps::run(resolve.arg("install").args(PACKAGES))?;
        // Where a dependency is installed already apt fetches nothing, so the ones that must lie beside the compiler
        // are fetched by name.
        let mut names = loaded(&self.depends(PACKAGES)?);
        let foreign = TARGETS.iter().filter_map(|target| target.debian_architecture);
        names.extend(foreign.map(|architecture| format!("{LIBRARY}:{architecture}")));
        self.fetch(&names)
    }

    /// Fetches the emulators, and a Python of another architecture with the libraries that it loads.
    fn download_emulated(&self, architecture: &str) -> anyhow::Result<()> {
        steps::run(self.command("apt-get").args(["-q", "update"]))?;
        let wanted = EMULATED.iter().map(|name| format!("{name}:{architecture}"));
        let wanted: Vec<String> = wanted.collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let mut names = of_python(&self.depends(&wanted)?, architecture);
        names.push(EMULATORS.to_owned());
        self.fetch(&names)
    }

    /// The dependencies of packages, as `apt-cache depends --recurse` lists them.
    fn depends(&self, packages: &[&str]) -> anyhow::Result<String> {
        let mut query = self.command("apt-cache");
        query.args(["depends", "--recurse", "--important", "--no-recommends", "--no-suggests"]);
        steps::output(query.args(packages))
    }

    fn fetch(&self, names: &[String]) -> anyhow::Result<()> {
        let mut download = self.command("apt-get");
        steps::run(download.args(["-q", "download"]).args(names).current_dir(self.archives()))
    }
}

/// apt's options for a private state, so that no root and no lock is needed and the machine's own lists stay as they
/// are. The status of installed packages is the machine's.
fn options(home: &Path, machine: &str) -> Vec<String> {
    let home = home.display();
    let mut options = vec![
        format!("Dir::State::lists={home}/lists"),
        format!("Dir::Cache={home}"),
        format!("Dir::Cache::archives={home}/archives"),
        "Debug::NoLocking=1".to_owned(),
        "APT::Sandbox::User=".to_owned(),
        // Translations and desktop metadata of packages are not asked about.
        "Acquire::Languages=none".to_owned(),
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
        format!("APT::Architecture={machine}"),
        format!("APT::Architectures::={machine}"),
    ];
    let foreign = TARGETS.iter().filter_map(|target| target.debian_architecture);
    for architecture in foreign.filter(|architecture| *architecture != machine) {
        options.push(format!("APT::Architectures::={architecture}"));
    }
    options
}

/// The names from `apt-cache depends --recurse` that the compiler loads at run time: names start a line without
/// indentation, and those of other architectures carry a colon.
fn loaded(depends: &str) -> Vec<String> {
    let mut names: Vec<String> = depends
        .lines()
        .filter(|line| !line.starts_with([' ', '|', '<']) && !line.contains(':'))
        .filter(|line| LOADED.iter().any(|prefix| line.starts_with(prefix)))
        .map(|line| line.trim().to_owned())
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The packages of an architecture from `apt-cache depends --recurse` that its Python loads.
fn of_python(depends: &str, architecture: &str) -> Vec<String> {
    let suffix = format!(":{architecture}");
    let mut names: Vec<String> = depends
        .lines()
        .filter(|line| line.ends_with(&suffix))
        .filter(|line| PYTHON_LOADS.iter().any(|prefix| line.starts_with(prefix)))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    names
}

fn machine_architecture() -> String {
    match std::env::consts::ARCH {
        "x86_64" => "amd64".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_owned(),
    }
}

fn unpack_all(archives: &Path, root: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(root)?;
    let mut archives: Vec<PathBuf> =
        fs::read_dir(archives)?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    archives.sort();
    archives.retain(|path| path.extension().is_some_and(|extension| extension == "deb"));
    if archives.is_empty() {
        bail!("apt-get downloaded no package");
    }
    for archive in archives {
        unpack(&archive, root)?;
    }
    Ok(())
}

fn unpack(archive: &Path, root: &Path) -> anyhow::Result<()> {
    let name = archive.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let mut reader = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(archive)
        .stdout(Stdio::piped())
        .spawn()
        .context("could not start `dpkg-deb`")?;
    let stream = reader.stdout.take().context("`dpkg-deb` has no output")?;
    let mut tar = Command::new("tar");
    tar.arg("-x").arg("-C").arg(root).args(members(&name)).stdin(stream);
    steps::run(&mut tar).with_context(|| format!("could not unpack {name}"))?;
    let status = reader.wait()?;
    if !status.success() {
        bail!("could not read {name}: dpkg-deb ended with {status}");
    }
    Ok(())
}

/// What of an archive is unpacked, everything if nothing is named: of the sources only the library, a tenth of them.
fn members(archive: &str) -> &'static [&'static str] {
    if archive.starts_with("rust-web-src") {
        &["--wildcards", "./usr/lib/rustlib/src", "./usr/src/rustc-*/library"]
    } else if archive.starts_with(EMULATORS) {
        &["./usr/bin/qemu-aarch64-static"]
    } else {
        &[]
    }
}

/// The compiler looks for its library in Debian's folders; the wrapper names the unpacked ones.
fn write_wrapper(path: &Path, usr: &Path) -> anyhow::Result<()> {
    let usr = usr.canonicalize()?;
    let driver = fs::read_dir(usr.join("lib"))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|folder| has_driver(folder))
        .context("Debian's rustc has no librustc_driver beside it")?;
    let (usr, driver) = (usr.display(), driver.display());
    write_program(
        path,
        &format!("LD_LIBRARY_PATH='{driver}' exec '{usr}/bin/rustc' --sysroot '{usr}' \"$@\""),
    )
}

fn has_driver(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    entries
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().starts_with("librustc_driver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_carry_a_version_are_found() {
        let depends = "rustc-web\n  Depends: libc6\n  Depends: libstd-rust-web-dev\nlibstd-rust-web-dev\n  Depends: libstd-rust-web-1.96\nlibstd-rust-web-1.96\n |Depends: libllvm22\nlibllvm22\nlibllvm22:arm64\n<libc-dev>\nlibc6\n";
        assert_eq!(loaded(depends), ["libllvm22", "libstd-rust-web-1.96", "libstd-rust-web-dev"]);
    }

    #[test]
    fn python_of_another_architecture_has_its_own_libraries() {
        let depends = "python3-minimal:arm64\n  Depends: dpkg:arm64\ndpkg:arm64\ndpkg\nlibc6\nlibc6:arm64\nzlib1g:arm64\nlibc6:arm64\npython3.11-minimal:arm64\n";
        let expect =
            ["libc6:arm64", "python3-minimal:arm64", "python3.11-minimal:arm64", "zlib1g:arm64"];
        assert_eq!(of_python(depends, "arm64"), expect);
    }

    #[test]
    fn another_architecture_is_asked_for_once() {
        let count = |machine| {
            let options = options(Path::new("/t"), machine);
            options.iter().filter(|option| option.starts_with("APT::Architectures::")).count()
        };
        assert_eq!((count("amd64"), count("arm64")), (2, 1));
    }

    #[test]
    fn only_the_library_of_the_sources_is_unpacked() {
        assert_eq!(members("rust-web-src_1.96.0_all.deb").len(), 3);
        assert_eq!(members("rustc-web_1.96.0_amd64.deb"), [""; 0]);
    }

    #[test]
    fn an_empty_download_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let error = unpack_all(folder.path(), &folder.path().join("root")).unwrap_err();
        assert_eq!(error.to_string(), "apt-get downloaded no package");
    }

    #[test]
    fn an_archive_that_is_none_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("broken_1_all.deb");
        fs::write(&archive, "no archive").unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let error = unpack(&archive, &root).unwrap_err();
        assert!(format!("{error:#}").contains("broken_1_all.deb"), "{error:#}");
    }
}
