//! The C++ ABI of PyTorch's Linux wheels.

use crate::packed::table;
use crate::table::{minor, optional_minor, rows};
use crate::{Arch, Citation, Minor};
use serde::Deserialize;
use std::sync::LazyLock;

/// One change of the ABI: the row holds from its torch series up to the next row of the same processor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abi {
    /// The processor.
    pub arch: Arch,
    /// The first torch series.
    #[serde(deserialize_with = "minor")]
    pub from: Minor,
    /// If set, the row is for builds of this CUDA release and this series only.
    #[serde(default, deserialize_with = "optional_minor")]
    pub cuda: Option<Minor>,
    /// Whether it is the new ABI, `_GLIBCXX_USE_CXX11_ABI` = 1.
    pub new: bool,
    /// Source of the row.
    pub source: Citation,
}

static ROWS: LazyLock<Vec<Abi>> = LazyLock::new(|| rows(table!("abi.toml"), "abi"));

/// The row with the ABI of a torch build; `None` if no row covers it, as for aarch64 before torch 2.6, whose builds differ.
pub fn abi(torch: Minor, cuda: Minor, arch: Arch) -> Option<&'static Abi> {
    let of_arch = || ROWS.iter().filter(move |row| row.arch == arch);
    let exact = of_arch().find(|row| row.cuda == Some(cuda) && row.from == torch);
    exact.or_else(|| of_arch().rfind(|row| row.cuda.is_none() && row.from <= torch))
}

/// The value in file names: `TRUE` in `cxx11abiTRUE`.
pub fn label(new: bool) -> &'static str {
    if new { "TRUE" } else { "FALSE" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arch::{Aarch64, X86_64};

    #[test]
    fn published_builds_have_their_abi() {
        let check = |torch, cuda, arch, expect| {
            assert_eq!(abi(torch, cuda, arch).map(|row| row.new), expect, "{torch:?} {cuda:?}");
        };
        check((2, 5), (12, 4), X86_64, Some(false));
        check((2, 6), (12, 4), X86_64, Some(false));
        check((2, 6), (12, 6), X86_64, Some(true));
        check((2, 7), (12, 6), X86_64, Some(true));
        check((2, 15), (13, 2), X86_64, Some(true));
        check((2, 5), (12, 4), Aarch64, None);
        check((2, 6), (12, 6), Aarch64, Some(true));
        check((2, 11), (13, 0), Aarch64, Some(true));
    }
}
