//! Checks whether a wheel can be installed on a machine, by the tags in its name.

use crate::wheel::WheelName;
use knowledge::{Arch, Minor};

/// The machine's values for comparison with tags.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tags {
    pub(crate) python: Minor,
    /// `None` for an unsupported processor.
    pub(crate) arch: Option<Arch>,
    pub(crate) mac: bool,
    /// `None` for any: the version is not known, or does not matter.
    pub(crate) glibc: Option<Minor>,
}

impl Tags {
    /// Whether a Python, an ABI and a platform tag of the wheel fit.
    pub(crate) fn fit(&self, wheel: &WheelName) -> bool {
        let abi3 = wheel.abis.iter().any(|abi| abi == "abi3");
        let own = format!("cp{}{}", self.python.0, self.python.1);
        let abi = abi3 || wheel.abis.iter().any(|abi| abi == "none" || *abi == own);
        let python = wheel.pythons.iter().any(|tag| self.python_fits(tag, &own, abi3));
        abi && python && wheel.platforms.iter().any(|tag| self.platform_fits(tag))
    }

    fn python_fits(&self, tag: &str, own: &str, abi3: bool) -> bool {
        // A stable-ABI wheel and a pure one run on their Python and on newer ones.
        let onward = |digits: &str| match digits.strip_prefix('3').map(str::parse) {
            Some(Ok(minor)) => self.python.1 >= minor,
            _ => digits == "3",
        };
        match (tag.strip_prefix("cp"), tag.strip_prefix("py")) {
            (Some(digits), _) if abi3 => onward(digits),
            (Some(_), _) => tag == own,
            (_, Some(digits)) => onward(digits),
            _ => false,
        }
    }

    fn platform_fits(&self, tag: &str) -> bool {
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
        let arm =
            Tags { python: (3, 12), arch: Some(Arch::Aarch64), mac: false, glibc: Some((2, 35)) };
        let old = Tags { arch: Some(Arch::X86_64), glibc: Some((2, 27)), ..arm };
        let mac = Tags { mac: true, glibc: None, ..arm };
        let check = |file: &str, expect: [bool; 3]| {
            let name = WheelName::parse(file).expect(file);
            assert_eq!([arm, old, mac].map(|tags| tags.fit(&name)), expect, "{file}");
        };
        check("torch-2.11.0-cp312-cp312-manylinux_2_28_aarch64.whl", [true, false, false]);
        check("torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl", [false, false, false]);
        check("torch-2.5.1-cp312-cp312-manylinux1_x86_64.whl", [false, true, false]);
        check("torch-2.11.0-cp311-cp311-manylinux_2_28_aarch64.whl", [false, false, false]);
        check("torch-2.11.0-cp312-cp312t-manylinux_2_28_aarch64.whl", [false, false, false]);
        check("torch-2.11.0-cp312-none-macosx_11_0_arm64.whl", [false, false, true]);
        check("vllm-0.33.0-cp38-abi3-manylinux_2_28_aarch64.whl", [true, false, false]);
        check("triton-3.9.0-cp313-abi3-manylinux_2_27_aarch64.whl", [false, false, false]);
        check("xformers-0.0.35-py39-none-manylinux_2_28_x86_64.whl", [false, false, false]);
        check("fla_core-0.6.0-py3-none-any.whl", [true, true, true]);
        check("x-1-py2.py3-none-any.whl", [true, true, true]);
        check("x-1-py2-none-any.whl", [false, false, false]);
        check(
            "x-1-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
            [false, true, false],
        );
        check("x-1-cp312-cp312-musllinux_1_2_x86_64.whl", [false, false, false]);
    }
}
