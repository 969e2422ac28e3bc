//! The wheels of one environment: unpacked one by one, and then installed.
//!
//! uv could install them only by unpacking each wheel again, from its cache. The inspected files would be one copy and
//! the installed ones another, and gigabytes would be unpacked twice. The remaining work of an installer is small and
//! specified: the binary distribution format and the recording of installed projects, in
//! <https://packaging.python.org/specifications>.

use super::record::RecordLine;
use super::{Unpacked, WheelError, scripts, unpack};
use facts::CompactCollect;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Wheels that share a folder, in the order of installation.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    wheels: Vec<Unpacked>,
    /// Number of installed wheels, from the first.
    installed: usize,
}

impl Layout {
    /// Adds wheels that were unpacked into the folder, and resolves files that several of them have: the later wheel
    /// wins, as with pip. Returns the number of replaced files.
    ///
    /// # Errors
    /// A wheel has a file of the environment itself, such as its interpreter.
    pub(crate) fn add(&mut self, wheels: Vec<Unpacked>) -> Result<usize, WheelError> {
        let taken: BTreeSet<PathBuf> = wheels.iter().flat_map(|it| it.taken.clone()).compact_set();
        self.wheels.extend(wheels);
        let mut replaced = 0;
        for place in taken {
            let owners: Vec<&Unpacked> =
                self.wheels.iter().filter(|wheel| wheel.files.contains_key(&place)).collect();
            let [others @ .., last] = owners.as_slice() else { continue };
            if others.is_empty() {
                return Err(last.invalid(format!("{} belongs to the environment", place.display())));
            }
            if others.iter().any(|other| other.files[&place] != last.files[&place]) {
                unpack::restore_file(last, &place)?;
                replaced += 1;
            }
        }
        Ok(replaced)
    }

    /// Installs the remaining wheels: sets the interpreter of their scripts, and writes their RECORDs.
    ///
    /// # Errors
    /// A script would replace a file that belongs to no wheel, or cannot be written.
    pub(crate) fn install(&mut self) -> Result<(), WheelError> {
        let (done, new) = self.wheels.split_at_mut(self.installed);
        let mut of_wheels: BTreeSet<PathBuf> =
            done.iter().chain(&*new).flat_map(|wheel| wheel.files.keys().cloned()).compact_set();
        for wheel in new {
            wheel.install(&of_wheels)?;
            of_wheels.extend(wheel.files.keys().cloned());
        }
        self.installed = self.wheels.len();
        Ok(())
    }
}

impl Unpacked {
    fn invalid(&self, what: String) -> WheelError {
        WheelError::Lies { path: self.wheel.clone(), what }
    }

    fn install(&mut self, of_wheels: &BTreeSet<PathBuf>) -> Result<(), WheelError> {
        let failed = |place: &Path, error: io::Error| WheelError::Unreadable {
            path: self.wheel.clone(),
            what: format!("{}: {error}", place.display()),
        };
        let mut written: Vec<(PathBuf, Vec<u8>)> = Vec::new();
        for place in self.files().filter(|place| place.starts_with("bin")) {
            let script = fs::read(self.prefix.join(place)).map_err(|error| failed(place, error))?;
            written.extend(scripts::headed(&script).map(|script| (place.to_owned(), script)));
        }
        let entry_points = self.info.join("entry_points.txt");
        if self.files.contains_key(&entry_points) {
            let text = fs::read_to_string(self.prefix.join(&entry_points))
                .map_err(|error| failed(&entry_points, error))?;
            for (name, script) in scripts::of_entry_points(&text).map_err(|it| self.invalid(it))? {
                let place = Path::new("bin").join(name);
                let there = self.prefix.join(&place).symlink_metadata().is_ok();
                if there && !of_wheels.contains(&place) {
                    return Err(
                        self.invalid(format!("{} belongs to the environment", place.display()))
                    );
                }
                written.push((place, script.into_bytes()));
            }
        }
        written.push((self.info.join("INSTALLER"), b"firstlight\n".to_vec()));
        for (place, content) in written {
            write(&self.prefix.join(&place), &content).map_err(|error| failed(&place, error))?;
            self.files.insert(place, RecordLine::of(&content));
        }
        let record = self.info.join("RECORD");
        write(&self.prefix.join(&record), self.record().as_bytes())
            .map_err(|error| failed(&record, error))
    }

    /// RECORD after installation: paths relative to site-packages.
    fn record(&self) -> String {
        let site = self.info.parent().unwrap_or(&self.info);
        let up = "../".repeat(site.components().count());
        let line = |(place, listed): (&PathBuf, &RecordLine)| match place.strip_prefix(site) {
            Ok(inside) => listed.line(&inside.to_string_lossy()),
            Err(_) => listed.line(&format!("{up}{}", place.display())),
        };
        self.files.iter().map(line).collect()
    }
}

/// Replaces a file; files in the scripts folder are executable.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let program = path.parent().is_some_and(|folder| folder.ends_with("bin"));
    // The old one may be the target of a link of another name; it is replaced, never written through.
    fs::remove_file(path).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    })?;
    let mode = if program { 0o777 } else { 0o666 };
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?.write_all(content)
}
