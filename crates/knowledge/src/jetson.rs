//! The torch builds of NVIDIA's index for Jetson. PyTorch's own Arm wheels have no code for these GPUs.

use crate::packed::table;
use crate::table::{minor, minors, rows};
use crate::{Citation, Minor, Sm};
use serde::Deserialize;
use std::sync::LazyLock;

/// One version on that index.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JetsonTorchBuild {
    /// The version in the index: `2.10.0`.
    pub version: String,
    /// The only Python version it is built for.
    #[serde(deserialize_with = "minor")]
    pub python: Minor,
    /// The CUDA release of JetPack it was built with.
    #[serde(deserialize_with = "minor")]
    pub cuda: Minor,
    /// Compute capabilities with machine code.
    #[serde(deserialize_with = "minors")]
    pub sm: Vec<Sm>,
    /// SHA-256 of each file that was published under its name, in lower-case hexadecimal.
    pub sha256: Vec<String>,
    /// Source of the row.
    pub source: Citation,
}

static TORCH: LazyLock<Vec<JetsonTorchBuild>> =
    LazyLock::new(|| rows(table!("jetson.toml"), "torch"));

/// Every version, in ascending order.
pub fn torch() -> &'static [JetsonTorchBuild] {
    &TORCH
}

#[cfg(test)]
mod tests {
    use super::torch;
    use crate::minor_of;

    #[test]
    fn versions_ascend_and_hashes_are_complete() {
        assert!(
            torch().windows(2).all(|pair| minor_of(&pair[0].version) < minor_of(&pair[1].version))
        );
        for row in torch() {
            let hexadecimal = |hash: &String| {
                hash.len() == 64
                    && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            };
            assert!(!row.sha256.is_empty() && row.sha256.iter().all(hexadecimal), "{row:?}");
        }
    }
}
