//! Whether an index has an installable file for a requirement, given the Python and the machine.

use super::page::{Page, PageRelease};
use super::{IndexClient, IndexError};
use crate::wheel::WheelName;
use facts::CompactCollect;
use knowledge::{Arch, Minor, WheelTarget};
use pep440_rs::VersionSpecifiers;
use std::collections::BTreeSet;

/// A package to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageQuery {
    /// The name, normalized by PEP 503.
    pub package: String,
    /// Its versions.
    pub specifiers: VersionSpecifiers,
    /// Whether it is built from source, for which a wheel does not help.
    pub from_source: bool,
}

/// The target machine and Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetHost<'a> {
    /// Python.
    pub python: Minor,
    /// `x86_64` or `aarch64`, for Linux.
    pub arch: &'a str,
    /// glibc, if known.
    pub glibc: Option<Minor>,
}

/// The index's answer to one requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexAnswer {
    /// An installable file of this release.
    Has(String),
    /// No file.
    Lacks {
        /// The reason, following the package's name: `has no source distribution of 0.14.0`.
        reason: String,
        /// The newest release with an installable file.
        newest: Option<String>,
    },
}

impl IndexClient<'_> {
    /// The index's answer to each requirement.
    ///
    /// # Errors
    /// If it does not answer, or lacks one of the packages completely.
    pub fn offers(
        &self,
        wanted: &[PackageQuery],
        host: TargetHost<'_>,
    ) -> Result<Vec<IndexAnswer>, IndexError> {
        // Several requirements are about one package, whose page has megabytes.
        let names: BTreeSet<&str> = wanted.iter().map(|one| one.package.as_str()).compact_set();
        let names: Vec<&str> = names.into_iter().collect();
        let pages = self.pages(&names)?;
        let answer = |wanted: &PackageQuery| {
            let at = names.binary_search(&wanted.package.as_str()).ok()?;
            Some(offer(&pages[at], wanted, host))
        };
        Ok(wanted.iter().filter_map(answer).collect())
    }
}

fn offer(page: &Page, wanted: &PackageQuery, host: TargetHost<'_>) -> IndexAnswer {
    let within = page.releases(&wanted.specifiers);
    let within: Vec<&PageRelease> =
        within.iter().filter(|release| wanted.specifiers.contains(release.version())).collect();
    let usable = |release: &&&PageRelease| match wanted.from_source {
        true => release.has_source(),
        false => release.has_source() || release.wheels().any(|wheel| runs_on(&wheel, host)),
    };
    if let Some(release) = within.iter().find(usable) {
        return IndexAnswer::Has(release.version().to_string());
    }
    let any = page.releases(&VersionSpecifiers::empty());
    let installable = any.iter().find(|release| {
        release.has_source() || release.wheels().any(|wheel| runs_on(&wheel, host))
    });
    let what = match within.first() {
        None => format!("has no release {}", wanted.specifiers),
        Some(release) if wanted.from_source => {
            format!("has no source distribution of {}", release.version())
        }
        Some(release) => format!(
            "has no wheel of {} for Python {}.{} on Linux {}{}, and no source distribution",
            release.version(),
            host.python.0,
            host.python.1,
            host.arch,
            host.glibc
                .map_or(String::new(), |glibc| format!(" with glibc {}.{}", glibc.0, glibc.1)),
        ),
    };
    IndexAnswer::Lacks {
        reason: what,
        newest: installable.map(|release| release.version().to_string()),
    }
}

/// Whether the tags of a wheel match CPython on Linux.
fn runs_on(wheel: &WheelName, host: TargetHost<'_>) -> bool {
    let (python, glibc) = (host.python, host.glibc);
    wheel.fits(&WheelTarget { python, arch: Arch::parse(host.arch), mac: false, glibc })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(files: &[&str]) -> Page {
        let rows: Vec<String> = files
            .iter()
            .map(|name| {
                format!(
                    r#"{{"filename": "{name}", "url": "https://files.example/{name}", "size": 1}}"#
                )
            })
            .collect();
        Page::parse(&format!(r#"{{"files": [{}]}}"#, rows.join(","))).expect("a page")
    }

    fn check(
        files: &[&str],
        specifiers: &str,
        from_source: bool,
        expect: Result<&str, (&str, Option<&str>)>,
    ) {
        let host = TargetHost { python: (3, 12), arch: "x86_64", glibc: Some((2, 31)) };
        let specifiers = specifiers.parse().expect("specifiers");
        let wanted = PackageQuery { package: "x".into(), specifiers, from_source };
        match (offer(&page(files), &wanted, host), expect) {
            (IndexAnswer::Has(version), Ok(expect)) => assert_eq!(version, expect, "{files:?}"),
            (IndexAnswer::Lacks { reason, newest }, Err((words, expect))) => {
                assert!(reason.contains(words), "{reason}");
                assert_eq!(newest.as_deref(), expect, "{files:?}");
            }
            (got, _) => panic!("{files:?}: {got:?}"),
        }
    }

    #[test]
    fn a_file_is_looked_for_that_this_python_installs() {
        let wheels = [
            "x-1.0-cp312-cp312-manylinux_2_28_x86_64.whl",
            "x-2.0-cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            "x-3.0-cp312-cp312-manylinux_2_34_x86_64.whl",
            "x-4.0-cp311-cp311-manylinux_2_28_x86_64.whl",
            "x-5.0-cp312-cp312-manylinux_2_28_aarch64.whl",
            "x-6.0-cp39-cp39-any.whl",
        ];
        check(&wheels, "==1.0", false, Ok("1.0"));
        check(&wheels, "", false, Ok("2.0"));
        check(
            &wheels,
            "==3.0",
            false,
            Err(("no wheel of 3.0 for Python 3.12 on Linux x86_64 with glibc 2.31", Some("2.0"))),
        );
        check(&wheels, "==4.0", false, Err(("no wheel of 4.0", Some("2.0"))));
        check(&wheels, "==5.0", false, Err(("no wheel of 5.0", Some("2.0"))));
        check(&wheels, "==1.0", true, Err(("no source distribution of 1.0", Some("2.0"))));
        check(&wheels, "==9", false, Err(("no release ==9", Some("2.0"))));
        check(&["x-1.0.tar.gz"], "", true, Ok("1.0"));
        check(&["x-1.0.tar.gz"], "", false, Ok("1.0"));
        check(&["x-1.0-py3-none-any.whl", "x-1.1-py2.py3-none-any.whl"], "", false, Ok("1.1"));
    }
}
