//! The wheels of one environment: laid out in it one by one, and then made to work there.
//!
//! uv could do the second part only by unpacking each wheel again, from its own cache. What was opened and judged would be
//! one copy and what is installed another, and gigabytes would be unpacked twice. What an installer does with files that
//! are there already is little, and written down: the binary distribution format and the recording of installed projects, in
//! <https://packaging.python.org/specifications>.

use super::record::Listed;
use super::{Unpacked, WheelError, scripts, unpack};
use facts::CompactCollect;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Wheels that share a folder, in the order in which they are installed.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    wheels: Vec<Unpacked>,
    /// So many of them, from the first on, are installed.
    installed: usize,
}

impl Layout {
    /// Adds wheels that were laid out in the folder, and settles whose each file is that several of them have: the later
    /// one's, as with pip. Gives the number of files that another wheel's took the place of.
    ///
    /// # Errors
    /// Where one has a file that is the environment's own, as its interpreter is.
    pub(crate) fn add(&mut self, wheels: Vec<Unpacked>) -> Result<usize, WheelError> {
        let taken: BTreeSet<PathBuf> = wheels.iter().flat_map(|it| it.taken.clone()).compact_set();
        self.wheels.extend(wheels);
        let mut replaced = 0;
        for place in taken {
            let owners: Vec<&Unpacked> =
                self.wheels.iter().filter(|wheel| wheel.files.contains_key(&place)).collect();
            let [others @ .., last] = owners.as_slice() else { continue };
            if others.is_empty() {
                return Err(last.lies(format!("{} is the environment's own", place.display())));
            }
            if others.iter().any(|other| other.files[&place] != last.files[&place]) {
                unpack::again(last, &place)?;
                replaced += 1;
            }
        }
        Ok(replaced)
    }

    /// Installs those that are not installed yet: their programs run by the environment's interpreter, and what each
    /// consists of recorded.
    ///
    /// # Errors
    /// Where a script would take the place of a file that is no wheel's, or cannot be written.
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
    fn lies(&self, what: String) -> WheelError {
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
            for (name, script) in scripts::of_entry_points(&text).map_err(|it| self.lies(it))? {
                let place = Path::new("bin").join(name);
                let there = self.prefix.join(&place).symlink_metadata().is_ok();
                if there && !of_wheels.contains(&place) {
                    return Err(self.lies(format!("{} is the environment's own", place.display())));
                }
                written.push((place, script.into_bytes()));
            }
        }
        written.push((self.info.join("INSTALLER"), b"firstlight\n".to_vec()));
        for (place, content) in written {
            write(&self.prefix.join(&place), &content).map_err(|error| failed(&place, error))?;
            self.files.insert(place, Listed::of(&content));
        }
        let record = self.info.join("RECORD");
        write(&self.prefix.join(&record), self.record().as_bytes())
            .map_err(|error| failed(&record, error))
    }

    /// RECORD of what is installed: each path from the folder of packages.
    fn record(&self) -> String {
        let site = self.info.parent().unwrap_or(&self.info);
        let up = "../".repeat(site.components().count());
        let line = |(place, listed): (&PathBuf, &Listed)| match place.strip_prefix(site) {
            Ok(inside) => listed.line(&inside.to_string_lossy()),
            Err(_) => listed.line(&format!("{up}{}", place.display())),
        };
        self.files.iter().map(line).collect()
    }
}

/// Writes a file anew, a program where it lies among them.
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
