//! Wheels of extensions that are published outside PyPI.

use crate::indexes::{Index, Named, index};
use crate::packed::table;
use crate::table::{minors, parse_minor, rows};
use crate::{Arch, Minor, Sm, Source, minor_of};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::sync::LazyLock;

/// A product of lists: every torch with every CUDA, ABI, Python and processor has a wheel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheels {
    /// Normalised name.
    pub package: String,
    /// Its release.
    pub version: String,
    /// The row of [`crate::indexes`] that has it.
    pub index: String,
    /// torch releases it was compiled against: `2.8.0`.
    pub torch: Vec<String>,
    /// CUDA releases it is for.
    pub cuda: Vec<Cuda>,
    /// C++ ABIs: `TRUE` is the new one.
    pub abi: Vec<String>,
    /// Pythons.
    #[serde(deserialize_with = "minors")]
    pub python: Vec<Minor>,
    /// Processors.
    pub arch: Vec<Arch>,
    /// Compute capabilities the build script asks machine code for, rising.
    #[serde(deserialize_with = "minors")]
    pub sm: Vec<Sm>,
    /// The release's tag where it is not `v` and the version.
    pub tag: Option<String>,
    /// Where it was read.
    pub source: Source,
}

/// The CUDA a wheel is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cuda {
    /// Any release of a major version: its name says no more.
    Major(u32),
    /// The release whose index has it.
    Release(Minor),
}

impl Cuda {
    /// Whether it goes with a torch of this CUDA release.
    pub fn allows(self, cuda: Minor) -> bool {
        match self {
            Self::Major(major) => major == cuda.0,
            Self::Release(release) => release == cuda,
        }
    }
}

/// `12`, or `12.8`.
impl<'de> Deserialize<'de> for Cuda {
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
    /// The release it was compiled against, of those of this series.
    pub fn torch_of(&self, series: Minor) -> Option<&str> {
        self.torch.iter().map(String::as_str).find(|torch| minor_of(torch) == Some(series))
    }

    /// The index that has it.
    pub fn index(&self) -> &'static Index {
        index(&self.index)
    }

    /// The release's tag.
    pub fn tag(&self) -> String {
        self.tag.clone().unwrap_or_else(|| format!("v{}", self.version))
    }

    /// The version with its local label, and the file's name, for one member of the product.
    pub fn file(&self, named: &Named, python: Minor) -> (String, String) {
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
    fn rows_are_whole_and_name_files_as_they_are_published() {
        for row in wheels() {
            let index = row.index();
            assert!(index.local.is_some() && index.platform.is_some(), "{row:?}");
            assert!(row.sm.windows(2).all(|pair| pair[0] < pair[1]), "{row:?}");
            let lists = [row.torch.len(), row.cuda.len(), row.abi.len(), row.python.len()];
            assert!(lists.iter().all(|length| *length > 0) && !row.arch.is_empty(), "{row:?}");
            assert!(row.abi.iter().all(|abi| abi == "TRUE" || abi == "FALSE"), "{row:?}");
        }
        let check = |package: &str, version: &str, place: &str, named: Named, expect: &str| {
            let row = wheels().iter().find(|row| {
                row.package == package
                    && row.version == version
                    && row.index == place
                    && row.torch_of(named.series).is_some()
                    && row.arch.contains(&named.arch)
            });
            assert_eq!(row.expect(expect).file(&named, (3, 12)).1, expect);
        };
        let named = Named {
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
        let named = Named { torch: "2.10.0", series: (2, 10), ..named };
        check(
            "causal-conv1d",
            "1.6.2.post1",
            "astral",
            named.clone(),
            "causal_conv1d-1.6.2.post1+cu.12.8.torch.2.10-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        );
        let named = Named { torch: "2.13.0", series: (2, 13), cuda: (13, 0), ..named };
        check(
            "flash-attn",
            "2.8.3",
            "mjun0812",
            named,
            "flash_attn-2.8.3+cu130torch2.13-cp312-cp312-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        );
    }
}
