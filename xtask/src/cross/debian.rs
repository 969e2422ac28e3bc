//! Unpacks a compiler, and a Python of another architecture with an emulator, from Debian's packages below the target folder.
//!
//! Nothing is installed: Debian's cargo could precede rustup's on PATH, and another architecture would change the machine's
//! package database. apt uses private lists and a private archive folder.

use super::{TARGETS, write_program};
use crate::steps;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The compiler, the host's standard library and its sources.
const PACKAGES: &[&str] = &["rustc-web", "libstd-rust-web-dev", "rust-web-src"];

/// Prefixes of the packages that the compiler loads; their names contain a version.
const LOADED: &[&str] = &["libstd-rust-web", "libllvm"];

/// The package with a built standard library, downloaded for each Debian architecture of the targets.
const LIBRARY: &str = "libstd-rust-web-dev";

/// Packages for the emulator: a Python without other packages, and the libraries that it loads.
const EMULATED: &[&str] = &["python3-minimal", "libpython3-stdlib"];

/// The package of the emulators, which are statically linked.
const EMULATORS: &str = "qemu-user-static";

/// Prefixes of the dependencies that Python loads; the others are only for installing packages.
const PYTHON_LOADS: &[&str] = &["lib", "python3", "zlib"];

/// Version of the unpacked layout; a folder with another one is replaced.
const LAYOUT: &str = "1";

/// An unpacked compiler.
pub(super) struct Installation {
    /// A program that takes rustc's arguments.
    pub(super) rustc: PathBuf,
}

/// Unpacks the compiler unless it is unpacked.
pub(super) fn prepare(target_directory: &Path) -> anyhow::Result<Installation> {
    let home = target_directory.join("cross-debian");
    let installation = Installation { rustc: home.join("rustc") };
    let hint = "Debian's packages need a Debian or Ubuntu machine; elsewhere install the target with rustup";
    fill_once(&home, hint, |apt, unpacked| {
        apt.download()?;
        unpack_all(&apt.archives(), unpacked)?;
        write_wrapper(&installation.rustc, &unpacked.join("usr"))?;
        steps::output(Command::new(&installation.rustc).arg("--version"))
            .context("Debian's rustc does not start")
    })?;
    Ok(installation)
}

/// The root folder of an emulated Debian architecture, with a C library and a Python. The emulator is below it at the path
/// `emulator`, and runs programs with `-L FOLDER`.
pub(super) fn prepare_emulated(
    target_directory: &Path,
    architecture: &str,
    emulator: &str,
) -> anyhow::Result<PathBuf> {
    let home = target_directory.join(format!("cross-{architecture}"));
    let hint = "Debian's packages need a Debian or Ubuntu machine";
    fill_once(&home, hint, |apt, unpacked| {
        apt.download_emulated(architecture)?;
        unpack_all(&apt.archives(), unpacked)?;
        let mut python = Command::new(unpacked.join(emulator));
        python.arg("-L").arg(unpacked).arg(unpacked.join("usr/bin/python3")).arg("--version");
        steps::output(&mut python).context("Debian's Python does not start under qemu")
    })?;
    Ok(home.join("root"))
}

/// Fills `home/root` unless it is complete; `fill` returns the version of the unpacked program.
fn fill_once(
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
    // An interrupted attempt has no stamp and starts over.
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

/// apt with private lists and archives.
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

    /// Downloads every archive that `unpack_all` unpacks.
    fn download(&self) -> anyhow::Result<()> {
        steps::run(self.command("apt-get").args(["-q", "update"]))?;
        // Downloads the packages and their dependencies that are not installed on this machine.
        let mut resolve = self.command("apt-get");
        resolve.args(["-q", "-y", "--no-install-recommends", "--download-only", "--reinstall"]);
        steps::run(resolve.arg("install").args(PACKAGES))?;
        // apt does not download installed dependencies, so those that must be next to the compiler are downloaded by
        // name.
        let mut names = loaded(&self.depends(PACKAGES)?);
        let foreign = TARGETS.iter().filter_map(|target| target.debian_architecture);
        names.extend(foreign.map(|architecture| format!("{LIBRARY}:{architecture}")));
        self.fetch(&names)
    }

    /// Downloads the emulators, and a Python of another architecture with the libraries that it loads.
    fn download_emulated(&self, architecture: &str) -> anyhow::Result<()> {
        steps::run(self.command("apt-get").args(["-q", "update"]))?;
        let wanted = EMULATED.iter().map(|name| format!("{name}:{architecture}"));
        let wanted: Vec<String> = wanted.collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let mut names = python_packages(&self.depends(&wanted)?, architecture);
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

/// apt's options for private lists and archives, which need neither root nor a lock and leave the machine's lists unchanged.
/// The status of installed packages is the machine's.
fn options(home: &Path, machine: &str) -> Vec<String> {
    let home = home.display();
    let mut options = vec![
        format!("Dir::State::lists={home}/lists"),
        format!("Dir::Cache={home}"),
        format!("Dir::Cache::archives={home}/archives"),
        "Debug::NoLocking=1".to_owned(),
        "APT::Sandbox::User=".to_owned(),
        // Without translations and desktop metadata.
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

/// The packages from `apt-cache depends --recurse` that the compiler loads at run time. Lines with package names are not
/// indented, and names of other architectures have a colon.
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

/// The packages of an architecture from `apt-cache depends --recurse` that Python loads.
fn python_packages(depends: &str, architecture: &str) -> Vec<String> {
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

/// The members of an archive to unpack, all if empty. Only the standard library is unpacked from the sources, a tenth of them.
fn members(archive: &str) -> &'static [&'static str] {
    if archive.starts_with("rust-web-src") {
        &["--wildcards", "./usr/lib/rustlib/src", "./usr/src/rustc-*/library"]
    } else if archive.starts_with(EMULATORS) {
        &["./usr/bin/qemu-aarch64-static"]
    } else {
        &[]
    }
}

/// Writes a wrapper that points the compiler to the unpacked libraries instead of the system's.
fn write_wrapper(path: &Path, usr: &Path) -> anyhow::Result<()> {
    let usr = usr.canonicalize()?;
    let driver = fs::read_dir(usr.join("lib"))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|folder| has_driver(folder))
        .context("the unpacked rustc has no librustc_driver")?;
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
    fn finds_packages_with_a_version_in_the_name() {
        let depends = "rustc-web\n  Depends: libc6\n  Depends: libstd-rust-web-dev\nlibstd-rust-web-dev\n  Depends: libstd-rust-web-1.96\nlibstd-rust-web-1.96\n |Depends: libllvm22\nlibllvm22\nlibllvm22:arm64\n<libc-dev>\nlibc6\n";
        assert_eq!(loaded(depends), ["libllvm22", "libstd-rust-web-1.96", "libstd-rust-web-dev"]);
    }

    #[test]
    fn python_loads_libraries_of_its_architecture() {
        let depends = "python3-minimal:arm64\n  Depends: dpkg:arm64\ndpkg:arm64\ndpkg\nlibc6\nlibc6:arm64\nzlib1g:arm64\nlibc6:arm64\npython3.11-minimal:arm64\n";
        let expect =
            ["libc6:arm64", "python3-minimal:arm64", "python3.11-minimal:arm64", "zlib1g:arm64"];
        assert_eq!(python_packages(depends, "arm64"), expect);
    }

    #[test]
    fn each_architecture_is_listed_once() {
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
    fn error_names_the_invalid_archive() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("broken_1_all.deb");
        fs::write(&archive, "no archive").unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let error = unpack(&archive, &root).unwrap_err();
        assert!(format!("{error:#}").contains("broken_1_all.deb"), "{error:#}");
    }
}
