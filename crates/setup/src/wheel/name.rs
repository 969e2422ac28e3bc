//! File names of wheels.

use super::WheelError;
use knowledge::WheelTarget;

/// A parsed wheel file name (PEP 427).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelName {
    /// The distribution, as written: `flash_attn`.
    pub distribution: String,
    /// The version with its local label: `2.8.3+cu12torch2.8cxx11abiTRUE`.
    pub version: String,
    /// The build tag, if any: `1`.
    pub build: Option<String>,
    /// Python tags: `cp312`, `py3`.
    pub pythons: Vec<String>,
    /// ABI tags: `cp312`, `abi3`, `none`.
    pub abis: Vec<String>,
    /// Platform tags: `manylinux_2_28_x86_64`, `any`.
    pub platforms: Vec<String>,
}

impl WheelName {
    /// Parses a file name.
    ///
    /// # Errors
    /// It does not have five parts, or six with a build tag that begins with a digit.
    pub fn parse(file: &str) -> Result<Self, WheelError> {
        let wrong = || WheelError::Name { file: file.to_owned() };
        let stem = file.strip_suffix(".whl").ok_or_else(wrong)?;
        let parts: Vec<&str> = stem.split('-').collect();
        let (head, tags) = parts.split_at(parts.len().saturating_sub(3));
        let (distribution, version, build) = match *head {
            [distribution, version] => (distribution, version, None),
            [distribution, version, build] if build.starts_with(|c: char| c.is_ascii_digit()) => {
                (distribution, version, Some(build))
            }
            _ => return Err(wrong()),
        };
        if parts.iter().any(|part| part.is_empty()) {
            return Err(wrong());
        }
        let set = |words: &str| words.split('.').map(str::to_owned).collect();
        Ok(Self {
            distribution: distribution.to_owned(),
            // Some tools write the `+` as the address of a download has it.
            version: version.replace("%2B", "+").replace("%2b", "+"),
            build: build.map(str::to_owned),
            pythons: set(tags[0]),
            abis: set(tags[1]),
            platforms: set(tags[2]),
        })
    }

    /// Whether it can be installed on a machine, by its tags.
    pub(crate) fn fits(&self, target: &WheelTarget) -> bool {
        target.accepts(&self.pythons, &self.abis, &self.platforms)
    }

    /// Its Python, `3.12`, if its tag is one release of CPython.
    pub fn python(&self) -> Option<String> {
        let digits = self.pythons.iter().find_map(|tag| tag.strip_prefix("cp3"))?;
        Some(format!("3.{digits}"))
    }
}

#[cfg(test)]
mod tests {
    use super::WheelName;

    #[test]
    fn names_are_parsed() {
        let name = WheelName::parse(
            "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
        )
        .unwrap();
        assert_eq!(name.distribution, "flash_attn");
        assert_eq!(name.version, "2.8.3+cu12torch2.8cxx11abiTRUE");
        assert_eq!((name.build.as_deref(), name.python().as_deref()), (None, Some("3.12")));
        let name = WheelName::parse("six-1.17.0-py2.py3-none-any.whl").unwrap();
        assert_eq!((name.pythons.len(), name.python()), (2, None));
        let name = WheelName::parse("torch-2.10.0%2Bcu128-1-cp39-abi3-a_x86_64.b_x86_64.whl");
        let name = name.unwrap();
        assert_eq!((name.version.as_str(), name.build.as_deref()), ("2.10.0+cu128", Some("1")));
        assert_eq!(name.platforms, ["a_x86_64", "b_x86_64"]);
    }

    #[test]
    fn other_names_are_refused() {
        for file in [
            "flash_attn-2.8.3.tar.gz",
            "flash_attn-2.8.3-py3-none.whl",
            "a-1-x-py3-none-any.whl",
            "a-1-1-py3-none-any-more.whl",
            "-1-py3-none-any.whl",
            ".whl",
            "",
        ] {
            let error = WheelName::parse(file).unwrap_err();
            assert!(error.to_string().contains(file), "{error}");
            assert!(error.hint().contains("NAME-VERSION"), "{error}");
        }
    }
}
