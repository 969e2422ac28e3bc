//! NVIDIA's container images of CUDA.

use crate::packed::table;
use crate::table::{minor, rows};
use crate::{Citation, Minor};
use serde::Deserialize;
use std::sync::LazyLock;

/// The images of one CUDA release.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CudaImage {
    /// The CUDA release.
    #[serde(deserialize_with = "minor")]
    pub cuda: Minor,
    /// The tag, with `{kind}` and `{ubuntu}`.
    pub tag: String,
    /// Ubuntu releases it is published for, in ascending order.
    pub ubuntu: Vec<String>,
    /// Source of the row.
    pub source: Citation,
}

/// Ubuntu releases with their glibc versions, in ascending order.
pub const UBUNTU: &[(&str, Minor)] = &[("22.04", (2, 35)), ("24.04", (2, 39))];

static IMAGES: LazyLock<Vec<CudaImage>> =
    LazyLock::new(|| rows(table!("cuda_images.toml"), "image"));

/// Every row, in ascending order of CUDA release.
pub fn images() -> &'static [CudaImage] {
    &IMAGES
}

/// The oldest Ubuntu release with this glibc or a newer one.
pub fn ubuntu(glibc: Minor) -> Option<&'static str> {
    UBUNTU.iter().find(|(_, has)| *has >= glibc).map(|(name, _)| *name)
}

/// The name and tag of the image of a CUDA release with this glibc or a newer one. A `devel` image has nvcc and headers.
/// `None` if there is none.
pub fn image(cuda: Minor, glibc: Minor, devel: bool) -> Option<String> {
    let row = images().iter().find(|row| row.cuda == cuda)?;
    let has = |name: &&String| UBUNTU.iter().any(|(known, has)| known == name && *has >= glibc);
    let ubuntu = row.ubuntu.iter().find(has)?;
    let kind = if devel { "devel" } else { "runtime" };
    Some(format!("nvidia/cuda:{}", row.tag.replace("{kind}", kind).replace("{ubuntu}", ubuntu)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_14_returns_tags_that_exist() {
        let check = |cuda, glibc, devel, expect: Option<&str>| {
            assert_eq!(image(cuda, glibc, devel).as_deref(), expect, "{cuda:?} {glibc:?}");
        };
        check((12, 8), (2, 35), true, Some("nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04"));
        check((12, 8), (2, 39), false, Some("nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04"));
        check((12, 1), (2, 28), true, Some("nvidia/cuda:12.1.1-cudnn8-devel-ubuntu22.04"));
        check((12, 1), (2, 39), true, None);
        check((12, 2), (2, 35), true, None);
        assert_eq!([(2, 28), (2, 36), (2, 40)].map(ubuntu), [Some("22.04"), Some("24.04"), None]);
        for row in images() {
            assert!(!row.tag.contains("cudnn9"), "{row:?}");
            assert!(row.ubuntu.iter().all(|name| UBUNTU.iter().any(|(known, _)| known == name)));
        }
    }

    #[test]
    fn every_cuda_release_of_torch_has_an_image() {
        let missing: Vec<_> = crate::torch_builds::builds()
            .iter()
            .filter(|build| build.cuda >= (11, 8) && image(build.cuda, (2, 35), true).is_none())
            .map(|build| build.cuda)
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
