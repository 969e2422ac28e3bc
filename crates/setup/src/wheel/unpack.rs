//! Unpacks a wheel's contents to their installed paths.

use super::record::{self, RecordLine};
use super::{WheelError, WheelName};
use facts::CompactCollect;
use facts::Dist;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use zip::ZipArchive;

/// A wheel that was unpacked into an environment's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The parsed name.
    pub name: WheelName,
    /// The wheel itself.
    pub(super) wheel: PathBuf,
    /// The Python that it was unpacked for: `3.12`.
    python: String,
    /// The environment's folder, or a temporary one: with `lib/python3.12/site-packages` and `bin` below it.
    pub prefix: PathBuf,
    /// Its dist-info folder, relative to `prefix`.
    pub(super) info: PathBuf,
    /// Its files relative to `prefix`, each with its line in RECORD; RECORD itself without a hash.
    pub(super) files: BTreeMap<PathBuf, RecordLine>,
    /// Files that already existed, and were kept.
    pub(super) taken: BTreeSet<PathBuf>,
}

impl Unpacked {
    /// Its files relative to `prefix`, sorted.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.keys().map(PathBuf::as_path)
    }
}

/// Unpacks a wheel below `prefix` for this Python (`3.12`), and compares every file with RECORD. An existing file is
/// kept: other wheels may be unpacked into the same folder at the same time.
///
/// # Errors
/// The file is not a wheel, a path in it is outside of the environment, its name and METADATA disagree, or a file does
/// not match RECORD.
pub fn unpack(path: &Path, prefix: &Path, python: &str) -> Result<Unpacked, WheelError> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = WheelName::parse(&file)?;
    let unreadable = |what: String| WheelError::Unreadable { path: path.to_owned(), what };
    let lies = |what: String| WheelError::Lies { path: path.to_owned(), what };

    let opened = fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut archive =
        ZipArchive::new(BufReader::new(opened)).map_err(|error| unreadable(error.to_string()))?;
    let info = info_folder(&archive, &name).map_err(lies)?;
    let mut text = |file: &str| -> Result<String, WheelError> {
        let mut text = String::new();
        let mut entry = archive
            .by_name(&format!("{info}/{file}"))
            .map_err(|error| lies(format!("{info}/{file}: {error}")))?;
        entry.read_to_string(&mut text).map_err(|error| unreadable(error.to_string()))?;
        Ok(text)
    };
    agrees(&text("METADATA")?, &name).map_err(lies)?;
    text("WHEEL")?;
    let mut listed = record::parse(&text("RECORD")?);
    // RECORD cannot contain its own hash, and its signatures are created after it.
    let own = ["RECORD", "RECORD.jws", "RECORD.p7s"].map(|own| format!("{info}/{own}"));

    let (mut files, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| unreadable(error.to_string()))?;
        if entry.is_dir() {
            continue;
        }
        let inside = entry.name().map_err(|error| unreadable(error.to_string()))?.into_owned();
        let safe = entry.enclosed_name().is_some_and(|path| path == Path::new(&inside));
        if !safe || entry.is_symlink() {
            return Err(lies(format!("{inside} is outside of the environment")));
        }
        let line = match own.contains(&inside) {
            true => RecordLine::itself(),
            false => listed
                .remove(&inside)
                .ok_or_else(|| lies(format!("{inside} is not listed in RECORD")))?,
        };
        let place = place(&inside, &name, python);
        let failed = |error: io::Error| unreadable(format!("{inside}: {error}"));
        let found = match create(&prefix.join(&place), &inside, entry.unix_mode()) {
            Ok(mut out) => line.copy(&mut entry, &mut out),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                taken.insert(place.clone());
                line.copy(&mut entry, &mut io::sink())
            }
            Err(error) => Err(error),
        };
        found.map_err(failed)?.map_err(|found| lies(format!("{inside}: {found}")))?;
        files.insert(place, line);
    }
    if let Some(missing) = listed.keys().find(|file| !own.contains(file)) {
        return Err(lies(format!("{missing} is listed in RECORD and missing")));
    }
    let info = place(&info, &name, python);
    let (wheel, prefix) = (path.to_owned(), prefix.to_owned());
    Ok(Unpacked { name, wheel, python: python.to_owned(), prefix, info, files, taken })
}

/// Unpacks one file of a wheel again, replacing another wheel's.
pub(super) fn restore_file(unpacked: &Unpacked, wanted: &Path) -> Result<(), WheelError> {
    let Unpacked { name, wheel, python, prefix, .. } = unpacked;
    let target = prefix.join(wanted);
    let write = || -> io::Result<Result<(), String>> {
        let mut archive = ZipArchive::new(BufReader::new(fs::File::open(wheel)?))?;
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index)?;
            let inside = entry.name()?.into_owned();
            if place(&inside, name, python) == wanted && !entry.is_dir() {
                fs::remove_file(&target)?;
                let mut out = create(&target, &inside, entry.unix_mode())?;
                // The archive may have changed since it was compared with RECORD.
                return unpacked.files[wanted].copy(&mut entry, &mut out);
            }
        }
        Err(ErrorKind::NotFound.into())
    };
    let what = |what: String| format!("{}: {what}", wanted.display());
    let path = || wheel.clone();
    write()
        .map_err(|error| WheelError::Unreadable { path: path(), what: what(error.to_string()) })?
        .map_err(|found| WheelError::Lies { path: path(), what: what(found) })
}

/// Creates a new file. Only the executable bit of its mode is used; a script always has it.
fn create(target: &Path, inside: &str, mode: Option<u32>) -> io::Result<fs::File> {
    let program = mode.is_some_and(|mode| mode & 0o111 != 0) || inside.contains(".data/scripts/");
    let mode = if program { 0o777 } else { 0o666 };
    let make = || OpenOptions::new().write(true).create_new(true).mode(mode).open(target);
    match make() {
        // Most files are in a folder that an earlier one created.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::create_dir_all(target.parent().unwrap_or(target))?;
            make()
        }
        made => made,
    }
}

/// The dist-info folder, which has to belong to this distribution.
fn info_folder(
    archive: &ZipArchive<BufReader<fs::File>>,
    name: &WheelName,
) -> Result<String, String> {
    let folder = |file: &str| {
        let folder = file.split('/').next()?;
        folder.ends_with(".dist-info").then(|| folder.to_owned())
    };
    let files = archive.file_names().filter_map(Result::ok);
    let found: BTreeSet<String> = files.filter_map(|file| folder(&file)).compact_set();
    let one = found.into_iter().collect::<Vec<_>>();
    let [info] = one.as_slice() else {
        return Err(format!("it has {} dist-info folders instead of one", one.len()));
    };
    let named = info.split('-').next().unwrap_or_default();
    match Dist::normalise(named) == Dist::normalise(&name.distribution) {
        true => Ok(info.clone()),
        false => Err(format!("its name has {}, but it has {info}", name.distribution)),
    }
}

/// Checks that name and version in METADATA are those of the file name.
fn agrees(metadata: &str, name: &WheelName) -> Result<(), String> {
    let field = |field: &str| {
        let head = metadata.lines().take_while(|line| !line.is_empty());
        head.filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(field))
            .map(|(_, value)| value.trim().to_owned())
            .ok_or_else(|| format!("METADATA has no {field}"))
    };
    let (found, version) = (field("Name")?, field("Version")?);
    if Dist::normalise(&found) != Dist::normalise(&name.distribution) {
        return Err(format!("its name has {}, but METADATA has {found}", name.distribution));
    }
    // A file name has `_` instead of separators, and PEP 440 ignores case.
    let plain = |version: &str| version.to_lowercase().replace(['-', '_'], ".");
    match plain(&version) == plain(&name.version) {
        true => Ok(()),
        false => Err(format!("its name has {}, but METADATA has {version}", name.version)),
    }
}

/// The installed path of a file, relative to the environment: PEP 427's `.data` folder has parts for other locations.
fn place(inside: &str, name: &WheelName, python: &str) -> PathBuf {
    let site = PathBuf::from(format!("lib/python{python}/site-packages"));
    let mut parts = inside.splitn(3, '/');
    let (first, scheme, rest) = (parts.next(), parts.next(), parts.next());
    let (Some(scheme), Some(rest), true) =
        (scheme, rest, first.is_some_and(|first| first.ends_with(".data")))
    else {
        return site.join(inside);
    };
    match scheme {
        "purelib" | "platlib" => site.join(rest),
        "scripts" => Path::new("bin").join(rest),
        "headers" => PathBuf::from(format!("include/site/python{python}"))
            .join(&name.distribution)
            .join(rest),
        // `data` is the environment itself.
        _ => PathBuf::from(rest),
    }
}
