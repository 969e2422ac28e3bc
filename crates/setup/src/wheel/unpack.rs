//! A wheel's contents, where an installer would put them.

use super::record;
use super::{WheelError, WheelName};
use facts::Dist;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use zip::ZipArchive;

/// A wheel that was laid out in a folder of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// The wheel's name, taken apart.
    pub name: WheelName,
    /// The folder that stands for the environment's: with `lib/python3.12/site-packages` and `bin` below it.
    pub prefix: PathBuf,
    /// Its files relative to `prefix`, sorted.
    pub files: Vec<PathBuf>,
}

/// Lays a wheel out below `prefix`, as it would be for this Python (`3.12`), and holds every file against RECORD.
///
/// # Errors
/// Where the file is no wheel, a path in it leads outside, its name and METADATA disagree, or a file is not the one that
/// RECORD lists.
pub fn unpack(path: &Path, prefix: &Path, python: &str) -> Result<Unpacked, WheelError> {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = WheelName::parse(&file)?;
    let unreadable = |what: String| WheelError::Unreadable { path: path.to_owned(), what };
    let lies = |what: String| WheelError::Lies { path: path.to_owned(), what };

    let opened = fs::File::open(path).map_err(|error| unreadable(error.to_string()))?;
    let mut archive = ZipArchive::new(opened).map_err(|error| unreadable(error.to_string()))?;
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

    let mut files = BTreeSet::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| unreadable(error.to_string()))?;
        if entry.is_dir() {
            continue;
        }
        let inside = entry.name().map_err(|error| unreadable(error.to_string()))?.into_owned();
        let safe = entry.enclosed_name().is_some_and(|path| path == Path::new(&inside));
        if !safe || entry.is_symlink() {
            return Err(lies(format!("{inside} leads outside of the environment")));
        }
        let place = place(&inside, &name, python);
        let target = prefix.join(&place);
        let failed = |error: io::Error| unreadable(format!("{inside}: {error}"));
        let mut out = fs::create_dir_all(target.parent().unwrap_or(prefix))
            .and_then(|()| fs::File::create(&target))
            .map_err(failed)?;
        // RECORD cannot have its own hash, and what signs it was made after it.
        let own = ["RECORD", "RECORD.jws", "RECORD.p7s"];
        if own.iter().any(|own| inside == format!("{info}/{own}")) {
            io::copy(&mut entry, &mut out).map_err(failed)?;
        } else {
            let line = listed
                .remove(&inside)
                .ok_or_else(|| lies(format!("{inside} is not listed in RECORD")))?;
            let found = line.copy(&mut entry, &mut out).map_err(failed)?;
            found.map_err(|found| lies(format!("{inside}: {found}")))?;
        }
        files.insert(place);
    }
    let own = |file: &String| file.starts_with(&format!("{info}/RECORD"));
    if let Some(missing) = listed.keys().find(|file| !own(file)) {
        return Err(lies(format!("{missing} is listed in RECORD and is not there")));
    }
    Ok(Unpacked { name, prefix: prefix.to_owned(), files: files.into_iter().collect() })
}

/// The one dist-info folder, which has to be this distribution's.
fn info_folder(archive: &ZipArchive<fs::File>, name: &WheelName) -> Result<String, String> {
    let folder = |file: &str| {
        let folder = file.split('/').next()?;
        folder.ends_with(".dist-info").then(|| folder.to_owned())
    };
    let files = archive.file_names().filter_map(Result::ok);
    let found: BTreeSet<String> = files.filter_map(|file| folder(&file)).collect();
    let one = found.into_iter().collect::<Vec<_>>();
    let [info] = one.as_slice() else {
        return Err(format!("one dist-info folder was wanted, not {}", one.len()));
    };
    let named = info.split('-').next().unwrap_or_default();
    match Dist::normalise(named) == Dist::normalise(&name.distribution) {
        true => Ok(info.clone()),
        false => Err(format!("its name says {}, but it has {info}", name.distribution)),
    }
}

/// Name and version of METADATA have to be those of the file name.
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
        return Err(format!("its name says {}, but METADATA says {found}", name.distribution));
    }
    // A file name writes `_` for what would end its part, and PEP 440 has no difference of case.
    let plain = |version: &str| version.to_lowercase().replace(['-', '_'], ".");
    match plain(&version) == plain(&name.version) {
        true => Ok(()),
        false => Err(format!("its name says {}, but METADATA says {version}", name.version)),
    }
}

/// Where a file goes, relative to the environment: PEP 427's `.data` folder has parts for other places.
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
        "headers" => {
            PathBuf::from(format!("include/python{python}")).join(&name.distribution).join(rest)
        }
        // `data` is the environment itself.
        _ => PathBuf::from(rest),
    }
}
