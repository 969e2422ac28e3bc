//! Checks whether a wheel can be installed, by the tags in its name (PEP 425).

use crate::{Arch, Minor};

/// The CPython and the machine that the tags of a wheel are compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WheelTarget {
    /// The Python release.
    pub python: Minor,
    /// The processor; `None` for an unsupported one.
    pub arch: Option<Arch>,
    /// Whether the system is macOS; otherwise it is Linux.
    pub mac: bool,
    /// The glibc release; `None` for any: it is not known, or does not matter.
    pub glibc: Option<Minor>,
}

impl WheelTarget {
    /// Whether one combination of a Python, an ABI and a platform tag fits.
    pub fn accepts<S: AsRef<str>>(&self, pythons: &[S], abis: &[S], platforms: &[S]) -> bool {
        accepts_python(self.python, pythons, abis)
            && platforms.iter().any(|tag| self.accepts_platform(tag.as_ref()))
    }

    fn accepts_platform(&self, tag: &str) -> bool {
        if tag == "any" {
            return true;
        }
        let Some(arch) = self.arch else { return false };
        if self.mac {
            let own = if arch == Arch::Aarch64 { "_arm64" } else { "_x86_64" };
            return tag.starts_with("macosx_")
                && (tag.ends_with(own) || tag.ends_with("_universal2"));
        }
        let Some(name) = tag.strip_suffix(arch.as_str()).and_then(|rest| rest.strip_suffix('_'))
        else {
            return false;
        };
        glibc_of(name).is_some_and(|wanted| self.glibc.is_none_or(|have| have >= wanted))
    }
}

/// Whether one combination of a Python and an ABI tag fits this release of CPython: its own, the stable ABI of an
/// earlier one, or Python code for this or an earlier one.
pub(crate) fn accepts_python<S: AsRef<str>>(python: Minor, pythons: &[S], abis: &[S]) -> bool {
    let own = format!("cp{}{}", python.0, python.1);
    // `cp39` and `py3` with their prefix: the release itself or an earlier one of the same major.
    let onward = |tag: &str, prefix: &str| {
        let minor = tag.strip_prefix(prefix).and_then(|it| it.strip_prefix(&python.0.to_string()));
        minor.is_some_and(|minor| {
            minor.is_empty() || minor.parse().is_ok_and(|minor: u32| minor <= python.1)
        })
    };
    let fits = |tag: &str, abi: &str| match abi {
        "none" => tag == own || onward(tag, "py"),
        "abi3" => onward(tag, "cp"),
        _ => tag == own && abi == own,
    };
    pythons.iter().any(|tag| abis.iter().any(|abi| fits(tag.as_ref(), abi.as_ref())))
}

/// The glibc of a platform tag without its processor; `None` for a tag of another system.
fn glibc_of(name: &str) -> Option<Minor> {
    match name {
        "linux" => Some((0, 0)),
        "manylinux1" => Some((2, 5)),
        "manylinux2010" => Some((2, 12)),
        "manylinux2014" => Some((2, 17)),
        _ => {
            let (major, minor) = name.strip_prefix("manylinux_")?.split_once('_')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_published_wheels() {
        let arm = WheelTarget {
            python: (3, 12),
            arch: Some(Arch::Aarch64),
            mac: false,
            glibc: Some((2, 35)),
        };
        let old = WheelTarget { arch: Some(Arch::X86_64), glibc: Some((2, 27)), ..arm };
        let mac = WheelTarget { mac: true, glibc: None, ..arm };
        let check = |tags: &str, expect: [bool; 3]| {
            let sets: Vec<Vec<&str>> =
                tags.split('-').map(|set| set.split('.').collect()).collect();
            let fits = |target: WheelTarget| target.accepts(&sets[0], &sets[1], &sets[2]);
            assert_eq!([arm, old, mac].map(fits), expect, "{tags}");
        };
        check("cp312-cp312-manylinux_2_28_aarch64", [true, false, false]);
        check("cp312-cp312-manylinux_2_28_x86_64", [false, false, false]);
        check("cp312-cp312-manylinux1_x86_64", [false, true, false]);
        check("cp311-cp311-manylinux_2_28_aarch64", [false, false, false]);
        check("cp312-cp312t-manylinux_2_28_aarch64", [false, false, false]);
        check("cp312-none-macosx_11_0_arm64", [false, false, true]);
        check("cp38-abi3-manylinux_2_28_aarch64", [true, false, false]);
        check("cp313-abi3-manylinux_2_27_aarch64", [false, false, false]);
        check("py39-none-manylinux_2_28_x86_64", [false, false, false]);
        check("py39-none-manylinux_2_28_aarch64", [true, false, false]);
        check("py3-none-any", [true, true, true]);
        check("py2.py3-none-any", [true, true, true]);
        check("py2-none-any", [false, false, false]);
        check("py3-cp312-any", [false, false, false]);
        check("cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64", [false, true, false]);
        check("cp312-cp312-musllinux_1_2_x86_64", [false, false, false]);
    }
}
