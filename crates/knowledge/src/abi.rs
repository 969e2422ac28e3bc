//! Which C++ ABI PyTorch's Linux wheels have.

use crate::packed::table;
use crate::table::{minor, optional_minor, rows};
use crate::{Arch, Minor, Source};
use serde::Deserialize;
use std::sync::LazyLock;

/// One change of the ABI.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abi {
    /// The processor.
    pub arch: Arch,
    /// The first torch series.
    #[serde(deserialize_with = "minor")]
    pub from: Minor,
    /// For the builds of this CUDA release alone, and this series alone.
    #[serde(default, deserialize_with = "optional_minor")]
    pub cuda: Option<Minor>,
    /// Whether it is the new ABI, `_GLIBCXX_USE_CXX11_ABI` = 1.
    pub new: bool,
    /// Where it was read.
    pub source: Source,
}

static ROWS: LazyLock<Vec<Abi>> = LazyLock::new(|| rows(table!("abi.toml"), "abi"));

/// The row that says which ABI a torch build has; `None` where the builds differ among themselves.
pub fn abi(torch: Minor, cuda: Minor, arch: Arch) -> Option<&'static Abi> {
    let of_arch = || ROWS.iter().filter(move |row| row.arch == arch);
    let exact = of_arch().find(|row| row.cuda == Some(cuda) && row.from == torch);
    exact.or_else(|| of_arch().rfind(|row| row.cuda.is_none() && row.from <= torch))
}

/// What file names call it: `cxx11abiTRUE`.
pub fn label(new: bool) -> &'static str {
    if new { "TRUE" } else { "FALSE" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arch::{Aarch64, X86_64};

    #[test]
    fn the_abi_of_published_builds() {
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
