//! Versions of packages, drivers, toolkits and libraries, as used to search the tables. [`crate::Requirement::allows`] compares
//! versions by PEP 440.

use std::cmp::Ordering;

/// Major and minor number of a CUDA, torch or Python release.
pub type Minor = (u32, u32);

/// A version string, split into release numbers, suffix and local label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// `[2, 11, 0]` of `2.11.0+cu130`.
    pub release: Vec<u32>,
    /// `a0`, `.dev20251120`, `rc1`, `.post2`; empty for a plain release.
    pub suffix: String,
    /// `cu130` of `2.11.0+cu130`.
    pub local: Option<String>,
    /// The version parsed by PEP 440; `None` if it is not valid there, as with some drivers and system packages.
    pep440: Option<pep440_rs::Version>,
}

impl Version {
    /// Parses a version; `None` if it does not begin with a number, after an optional `v`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let (public, local) = match text.split_once('+') {
            Some((public, local)) => (public, Some(local.to_owned())),
            None => (text, None),
        };
        let mut release = Vec::new();
        let mut rest = public;
        loop {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                break;
            }
            release.push(rest[..digits].parse().ok()?);
            rest = &rest[digits..];
            // A dot belongs to the release only when a number follows it: `.post1` and `.dev3` do not.
            match rest.strip_prefix('.') {
                Some(next) if next.starts_with(|c: char| c.is_ascii_digit()) => rest = next,
                _ => break,
            }
        }
        let pep440 = text.parse().ok();
        (!release.is_empty()).then(|| Self { release, suffix: rest.to_owned(), local, pep440 })
    }

    /// The version by PEP 440. A vendor's snapshot build (NVIDIA's `2.6.0a0+ecf3bae40a.nv25.01`) counts as the release that it is
    /// named after, because its container is tested with packages that require that release.
    pub(crate) fn pep440(&self) -> Option<pep440_rs::Version> {
        let version = self.pep440.clone()?;
        let vendor = self.local.as_deref().is_some_and(|local| local.contains(".nv"));
        Some(match vendor {
            true => pep440_rs::Version::new(version.release()).with_epoch(version.epoch()),
            false => version,
        })
    }

    /// Major and minor number; a missing one is 0.
    pub fn minor(&self) -> Minor {
        (self.release.first().copied().unwrap_or(0), self.release.get(1).copied().unwrap_or(0))
    }

    /// Whether it is a final or post release: no alpha, release candidate, nightly or vendor's snapshot such as `2.6.0a0+nv25.01`.
    pub fn is_final(&self) -> bool {
        self.suffix.is_empty() || self.suffix.starts_with(".post")
    }

    /// The version without its local label: `2.11.0`.
    pub fn public(&self) -> String {
        let numbers: Vec<String> = self.release.iter().map(u32::to_string).collect();
        format!("{}{}", numbers.join("."), self.suffix)
    }

    /// Compares the release numbers, a missing one as 0, and ignores suffixes and labels.
    pub fn compare(&self, other: &Self) -> Ordering {
        let length = self.release.len().max(other.release.len());
        let padded = |version: &Self| {
            (0..length).map(|i| version.release.get(i).copied().unwrap_or(0)).collect::<Vec<_>>()
        };
        padded(self).cmp(&padded(other))
    }
}

/// Major and minor number of a dotted version such as `13.0.88`.
pub fn minor_of(text: &str) -> Option<Minor> {
    Version::parse(text).map(|version| version.minor())
}

/// `12.8` of `(12, 8)`.
pub fn dotted(minor: Minor) -> String {
    format!("{}.{}", minor.0, minor.1)
}

/// The CUDA major and minor number in a local label: `cu130` is 13.0, `cu12.8torch2.10` is 12.8, and `cu12torch2.8` has the
/// major number only. `None` if the label has no CUDA release.
pub fn cuda_of_label(label: &str) -> Option<(u32, Option<u32>)> {
    let rest = label.strip_prefix("cu")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at(digits);
    let number: u32 = number.parse().ok()?;
    match (digits, after.strip_prefix('.')) {
        (2, Some(minor)) => {
            let digits = minor.bytes().take_while(u8::is_ascii_digit).count();
            Some((number, minor[..digits].parse().ok()))
        }
        (2, None) => Some((number, None)),
        (3, _) => Some((number / 10, Some(number % 10))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_split_into_release_suffix_and_label() {
        let check = |text: &str, release: &[u32], suffix: &str, local: Option<&str>, last: bool| {
            let version = Version::parse(text).expect(text);
            assert_eq!(version.release, release, "{text}");
            assert_eq!(version.suffix, suffix, "{text}");
            assert_eq!(version.local.as_deref(), local, "{text}");
            assert_eq!(version.is_final(), last, "{text}");
        };
        check("2.11.0+cu130", &[2, 11, 0], "", Some("cu130"), true);
        check("2.5.0a0+872d972e41.nv24.08", &[2, 5, 0], "a0", Some("872d972e41.nv24.08"), false);
        check("2.10.0.dev20251120+cu130", &[2, 10, 0], ".dev20251120", Some("cu130"), false);
        check("2.8.3.post2", &[2, 8, 3], ".post2", None, true);
        check("570.148.08", &[570, 148, 8], "", None, true);
        check("13", &[13], "", None, true);
        for junk in ["", "unknown", "+cu130", "99999999999999999999.1"] {
            assert_eq!(Version::parse(junk), None, "{junk}");
        }
    }

    #[test]
    fn releases_compare_as_numbers() {
        let check = |a: &str, b: &str, expect| {
            let (a, b) = (Version::parse(a).expect(a), Version::parse(b).expect(b));
            assert_eq!(a.compare(&b), expect);
        };
        check("2.10", "2.9.1", Ordering::Greater);
        check("580", "580.0", Ordering::Equal);
        check("525.60.13", "525.60.2", Ordering::Greater);
        check("2.11.0+cu130", "2.11.0+cu126", Ordering::Equal);
    }

    #[test]
    fn labels_name_cuda_releases() {
        for (label, expect) in [
            ("cu130", Some((13, Some(0)))),
            ("cu118", Some((11, Some(8)))),
            ("cu12torch2.8cxx11abiTRUE", Some((12, None))),
            ("cu12.8torch2.10.0cxx11abiTRUE", Some((12, Some(8)))),
            ("cu130torch2.13", Some((13, Some(0)))),
            ("cpu", None),
            ("custom", None),
            ("rocm6.4", None),
        ] {
            assert_eq!(cuda_of_label(label), expect, "{label}");
        }
    }
}
