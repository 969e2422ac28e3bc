//! Wheels of extensions that are published outside PyPI.

use crate::indexes::{Index, WheelVariables, index};
use crate::packed::table;
use crate::table::{minors, parse_minor, rows};
use crate::{Arch, Citation, Minor, Sm, minor_of};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::sync::LazyLock;

/// The wheels of one release: one for each combination of torch, CUDA, ABI, Python and processor in the lists.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheels {
    /// Normalised name.
    pub package: String,
    /// The version of the release.
    pub version: String,
    /// The name of its row in [`crate::indexes`].
    pub index: String,
    /// torch releases that it was compiled against: `2.8.0`.
    pub torch: Vec<String>,
    /// CUDA versions that it is built for.
    pub cuda: Vec<CudaVersion>,
    /// C++ ABIs: `TRUE` for the new one, otherwise `FALSE`.
    pub abi: Vec<String>,
    /// Python versions.
    #[serde(deserialize_with = "minors")]
    pub python: Vec<Minor>,
    /// Processor architectures.
    pub arch: Vec<Arch>,
    /// Compute capabilities for which the build script requests machine code, in ascending order.
    #[serde(deserialize_with = "minors")]
    pub sm: Vec<Sm>,
    /// The release's Git tag, if it is not `v` and the version.
    pub tag: Option<String>,
    /// Source of the row.
    pub source: Citation,
}

/// The CUDA version that a wheel is built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CudaVersion {
    /// Any release of this major version: the file name has no minor number.
    Major(u32),
    /// The release whose index has it.
    Release(Minor),
}

impl CudaVersion {
    /// Whether it works with a torch build of this CUDA release.
    pub fn allows(self, cuda: Minor) -> bool {
        match self {
            Self::Major(major) => major == cuda.0,
            Self::Release(release) => release == cuda,
        }
    }
}

/// From `12` or `12.8`.
impl<'de> Deserialize<'de> for CudaVersion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let read = match parse_minor(&text) {
            Some(release) => Some(Self::Release(release)),
            None => text.parse().ok().map(Self::Major),
        };
        read.ok_or_else(|| D::Error::custom(format!("`{text}` is not like 12 or 12.8")))
    }
}

impl Wheels {
    /// The torch release of this series that it was compiled against.
    pub fn torch_of(&self, series: Minor) -> Option<&str> {
        self.torch.iter().map(String::as_str).find(|torch| minor_of(torch) == Some(series))
    }

    /// The index with its files.
    pub fn index(&self) -> &'static Index {
        index(&self.index)
    }

    /// The release's Git tag.
    pub fn tag(&self) -> String {
        self.tag.clone().unwrap_or_else(|| format!("v{}", self.version))
    }

    /// The version with its local label and the file name of the wheel for one combination.
    pub fn file(&self, named: &WheelVariables, python: Minor) -> (String, String) {
        let index = self.index();
        let label = index.local.as_deref().map(|label| format!("+{}", named.fill(label)));
        let version = format!("{}{}", self.version, label.unwrap_or_default());
        let platform = named.fill(index.platform.as_deref().unwrap_or("any"));
        let tag = format!("cp{}{}", python.0, python.1);
        let name =
            format!("{}-{version}-{tag}-{tag}-{platform}.whl", self.package.replace('-', "_"));
        (version, name)
    }
}

static WHEELS: LazyLock<Vec<Wheels>> = LazyLock::new(|| rows(table!("wheels.toml"), "wheels"));

/// Every row.
pub fn wheels() -> &'static [Wheels] {
    &WHEELS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_complete_and_match_published_file_names() {
        for row in wheels() {
            let index = row.index();
            assert!(index.local.is_some() && index.platform.is_some(), "{row:?}");
            assert!(row.sm.windows(2).all(|pair| pair[0] < pair[1]), "{row:?}");
            let lists = [row.torch.len(), row.cuda.len(), row.abi.len(), row.python.len()];
            assert!(lists.iter().all(|length| *length > 0) && !row.arch.is_empty(), "{row:?}");
            assert!(row.abi.iter().all(|abi| abi == "TRUE" || abi == "FALSE"), "{row:?}");
        }
        let check =
            |package: &str, version: &str, place: &str, named: WheelVariables, expect: &str| {
                let row = wheels().iter().find(|row| {
                    row.package == package
                        && row.version == version
                        && row.index == place
                        && row.torch_of(named.series).is_some()
                        && row.arch.contains(&named.arch)
                });
                assert_eq!(row.expect(expect).file(&named, (3, 12)).1, expect);
            };
        let named = WheelVariables {
            torch: "2.8.0",
            series: (2, 8),
            cuda: (12, 8),
            new_abi: true,
            arch: Arch::X86_64,
            tag: "v2.8.3",
        };
        check(
            "flash-attn",
            "2.8.3",
            "flash-attn-releases",
            named.clone(),
            "flash_attn-2.8.3+cu12torch2.8cxx11abiTRUE-cp312-cp312-linux_x86_64.whl",
        );
        let named = WheelVariables { torch: "2.10.0", series: (2, 10), ..named };
        check(
            "causal-conv1d",
            "1.6.2.post1",
            "astral",
            named.clone(),
            "causal_conv1d-1.6.2.post1+cu.12.8.torch.2.10-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        );
        let named = WheelVariables { torch: "2.13.0", series: (2, 13), cuda: (13, 0), ..named };
        check(
            "flash-attn",
            "2.8.3",
            "mjun0812",
            named,
            "flash_attn-2.8.3+cu130torch2.13-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        );
    }
}
