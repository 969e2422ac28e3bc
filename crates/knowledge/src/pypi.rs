//! Releases and files on PyPI of the packages that plans use. `cargo xtask facts` regenerates the table.

use crate::Citation;
use crate::packed::table;
use crate::table::rows;
use crate::{Minor, minor_of, wheel_tags};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::sync::LazyLock;

/// One release of one package.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Normalised name.
    pub package: String,
    /// The version.
    pub version: String,
    /// `Requires-Python` as PEP 440 specifiers; empty for any Python.
    pub python: String,
    /// `Requires-Dist` lines without an extra, for packages whose versions must agree within an environment.
    pub requires: Vec<String>,
    /// Its files for Linux and Apple silicon.
    pub files: Vec<File>,
    /// Source of the row.
    pub source: Citation,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The file name.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// From `name bytes sha256`.
impl<'de> Deserialize<'de> for File {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let words: Vec<&str> = text.split(' ').collect();
        let hexadecimal = |text: &str| {
            text.len() == 64 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
        };
        match words[..] {
            [name, bytes, sha256] if hexadecimal(sha256) => {
                let bytes = bytes.parse().map_err(D::Error::custom)?;
                Ok(Self { name: name.to_owned(), bytes, sha256: sha256.to_owned() })
            }
            _ => Err(D::Error::custom(format!("`{text}` is not a name, a size and a SHA-256"))),
        }
    }
}

impl Release {
    /// The CUDA release of a torch build, from its requirement on the CUDA runtime; `None` without CUDA.
    pub fn cuda(&self) -> Option<Minor> {
        let version = |line: &String| {
            let name = line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).next()?;
            let runtime = name == "cuda-toolkit" || name.starts_with("nvidia-cuda-runtime");
            let (_, rest) = line.split_once("==").filter(|_| runtime)?;
            minor_of(rest.split([';', ' ']).next()?)
        };
        self.requires.iter().find_map(version)
    }

    /// Whether a wheel is for this Python: by its own tag (`cp312`), by the stable ABI of an earlier one (`cp39-abi3`), or as `py3`.
    pub fn has_wheel(&self, python: Minor) -> bool {
        self.files.iter().any(|file| fits_python(&file.name, python))
    }
}

/// Whether the tags of a wheel's file name allow this Python.
fn fits_python(file: &str, python: Minor) -> bool {
    let mut parts = file.strip_suffix(".whl").unwrap_or_default().rsplit('-').skip(1);
    let (Some(abis), Some(pythons)) = (parts.next(), parts.next()) else { return false };
    let [pythons, abis] = [pythons, abis].map(|set| set.split('.').collect::<Vec<_>>());
    wheel_tags::accepts_python(python, &pythons, &abis)
}

static RELEASES: LazyLock<Vec<Release>> = LazyLock::new(|| rows(table!("pypi.toml"), "release"));

/// The releases of a package, oldest first; empty if the table does not have it.
pub fn releases(package: &str) -> impl DoubleEndedIterator<Item = &'static Release> {
    RELEASES.iter().filter(move |row| row.package == package)
}

/// The release of a package with this version.
pub fn release(package: &str, version: &str) -> Option<&'static Release> {
    releases(package).find(|row| row.version == version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torch_series;

    #[test]
    fn wheel_fits_python_by_its_tag_or_an_earlier_stable_abi() {
        let check = |file, minors: &[u32]| {
            let fitting: Vec<u32> =
                (8..16).filter(|minor| super::fits_python(file, (3, *minor))).collect();
            assert_eq!(fitting, minors, "{file}");
        };
        check("triton-3.9.0-cp312-abi3-manylinux_2_28_x86_64.whl", &[12, 13, 14, 15]);
        check("triton-3.8.0-cp310-cp310-manylinux_2_28_x86_64.whl", &[10]);
        check("torch-2.15.0-1-cp313-cp313t-manylinux_2_28_x86_64.whl", &[]);
        check("a-1-cp311-none-any.whl", &[11]);
        check("a-1-py2.py3-none-any.whl", &[8, 9, 10, 11, 12, 13, 14, 15]);
        check("a-1.tar.gz", &[]);
        assert!(release("triton", "3.9.0").unwrap().has_wheel((3, 13)));
    }

    #[test]
    fn torch_releases_have_their_cuda_and_pythons() {
        let check = |version: &str, cuda: Minor, python: Minor, has: bool| {
            let row = release("torch", version).unwrap();
            assert_eq!((row.cuda(), row.has_wheel(python)), (Some(cuda), has), "{version}");
        };
        check("2.4.1", (12, 1), (3, 8), false);
        check("2.10.0", (12, 8), (3, 12), true);
        check("2.14.1", (13, 0), (3, 10), true);
        check("2.15.0", (13, 2), (3, 10), false);
        assert_eq!(releases("torchaudio").last().and_then(Release::cuda), None);
    }

    #[test]
    fn releases_ascend_and_files_are_unique() {
        let mut names = std::collections::HashSet::new();
        for row in RELEASES.iter() {
            assert!(!row.files.is_empty(), "{} {}", row.package, row.version);
            for file in &row.files {
                assert!(names.insert(&file.name) && file.bytes > 1000, "{}", file.name);
            }
        }
        let torch: Vec<_> = releases("torch").filter_map(|row| minor_of(&row.version)).collect();
        assert!(torch.windows(2).all(|pair| pair[0] <= pair[1]), "{torch:?}");
    }

    /// The two tables were read in different ways.
    #[test]
    fn the_series_table_agrees_with_the_wheels() {
        for row in releases("torch") {
            let minor = minor_of(&row.version).expect(&row.version);
            let series = torch_series::series(minor).expect(&row.version);
            let newest = format!("cp{}{}-", series.python.1.0, series.python.1.1);
            let has = |tag: &str| {
                row.files.iter().any(|file| file.name.contains(tag) && file.name.contains("x86_64"))
            };
            assert!(has(&newest), "torch {} has no {newest}", row.version);
            let pin = row.requires.iter().find(|line| line.starts_with("triton")).expect("a pin");
            // The series table leaves out previews: wheels for a Python without a triton wheel.
            let later = (series.python.1.0, series.python.1.1 + 1);
            let preview = pin.contains(&format!("python_version < \"{}\"", crate::dotted(later)));
            let tag = format!("cp{}{}-", later.0, later.1);
            assert!(!has(&tag) || preview, "torch {} has {tag}", row.version);
            assert!(pin.contains(&format!("={}.", crate::dotted(series.triton))), "{pin}");
        }
    }
}
