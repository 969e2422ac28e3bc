//! PyTorch's CUDA wheels for Linux, by series, CUDA release and processor, and the GPU code inside each.
//!
//! The architectures are those that the release scripts passed to nvcc, not read from the binaries: a rule based on them is
//! likely, never certain. The table has no builds of vendors or conda, no nightlies and no source builds.

use crate::packed::table;
use crate::table::{minor, minors, optional_minor, rows};
use crate::{Arch, Citation, Minor, Sm};
use serde::Deserialize;
use std::sync::LazyLock;

/// One published CUDA build of one or more torch series.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The torch series: major and minor number.
    #[serde(deserialize_with = "minors")]
    pub torch: Vec<Minor>,
    /// The CUDA release it was built with.
    #[serde(deserialize_with = "minor")]
    pub cuda: Minor,
    /// The processor it is for.
    pub arch: Arch,
    /// Compute capabilities with machine code (SASS), in ascending order.
    #[serde(deserialize_with = "minors")]
    pub sm: Vec<Sm>,
    /// The compute capability of embedded PTX, which a driver can compile for the same and newer GPUs.
    #[serde(default, deserialize_with = "optional_minor")]
    pub ptx: Option<Sm>,
    /// Whether PyTorch's install page offers it, so that a remedy may name it.
    #[serde(default = "yes")]
    pub offered: bool,
    /// Source of the architectures.
    pub source: Citation,
}

fn yes() -> bool {
    true
}

impl Build {
    /// Whether code in this build runs on a GPU: machine code of X.y on X.z with z >= y, or PTX of the same or an older compute
    /// capability. Not valid on Tegra, where machine code runs only on its own architecture.
    pub fn runs_on(&self, gpu: Sm) -> bool {
        runs_on(&self.sm, gpu) || self.ptx.is_some_and(|ptx| ptx <= gpu)
    }

    /// The oldest architecture with machine code.
    pub fn oldest(&self) -> Sm {
        self.sm.first().copied().unwrap_or((0, 0))
    }

    /// The newest architecture with machine code.
    pub fn newest(&self) -> Sm {
        self.sm.last().copied().unwrap_or((0, 0))
    }

    /// The architectures as torch prints them: `sm_80 sm_90 compute_120`.
    pub fn architectures(&self) -> String {
        let mut words: Vec<String> =
            self.sm.iter().map(|sm| format!("sm_{}{}", sm.0, sm.1)).collect();
        words.extend(self.ptx.map(|ptx| format!("compute_{}{}", ptx.0, ptx.1)));
        words.join(" ")
    }
}

/// Whether machine code of one of these compute capabilities runs on a GPU other than a Tegra: X.y runs on X.z with z >= y.
pub fn runs_on(sm: &[Sm], gpu: Sm) -> bool {
    sm.iter().any(|sm| sm.0 == gpu.0 && sm.1 <= gpu.1)
}

static BUILDS: LazyLock<Vec<Build>> = LazyLock::new(|| rows(table!("torch_builds.toml"), "build"));

/// Every row, x86-64 first, in ascending order of CUDA release.
pub fn builds() -> &'static [Build] {
    &BUILDS
}

/// The published build of a torch series for a CUDA release and a processor.
pub fn build(torch: Minor, cuda: Minor, arch: Arch) -> Option<&'static Build> {
    builds().iter().find(|row| row.torch.contains(&torch) && row.cuda == cuda && row.arch == arch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Arch::{Aarch64, X86_64};

    #[test]
    fn builds_are_unique_and_their_architectures_ascend() {
        let mut seen = std::collections::HashSet::new();
        for row in builds() {
            assert!(row.sm.windows(2).all(|pair| pair[0] < pair[1]), "{row:?}");
            assert!(!row.torch.is_empty() && !row.sm.is_empty(), "{row:?}");
            for torch in &row.torch {
                assert!(seen.insert((*torch, row.cuda, row.arch)), "{torch:?} twice: {row:?}");
            }
        }
    }

    #[test]
    fn builds_run_on_the_gpus_that_they_have_code_for() {
        let check = |torch, cuda, arch, gpu, expect| {
            let row = build(torch, cuda, arch).expect("a published build");
            assert_eq!(row.runs_on(gpu), expect, "torch {torch:?} cu{cuda:?} on {gpu:?}");
        };
        // An RTX 4090 (8.9) runs the code of 8.6; a B300 (10.3) that of 10.0; GB10 (12.1) that of 12.0.
        check((2, 5), (12, 1), X86_64, (8, 9), true);
        check((2, 9), (12, 8), X86_64, (10, 3), true);
        check((2, 9), (12, 8), Aarch64, (12, 1), true);
        // RTX 50 (12.0) has no code before cu128; Thor (11.0) has none before cu130.
        check((2, 6), (12, 6), X86_64, (12, 0), false);
        check((2, 11), (12, 8), Aarch64, (11, 0), false);
        check((2, 11), (13, 0), Aarch64, (11, 0), true);
        // Volta is in the cu128 builds of 2.8 to 2.10 only; Pascal in no cu128 build.
        check((2, 7), (12, 8), X86_64, (7, 0), false);
        check((2, 10), (12, 8), X86_64, (7, 0), true);
        check((2, 11), (12, 8), X86_64, (7, 0), false);
        check((2, 8), (12, 8), X86_64, (6, 1), false);
        check((2, 14), (12, 6), X86_64, (6, 1), true);
        // PTX of 12.0 does not run on an older GPU.
        check((2, 12), (13, 0), X86_64, (6, 0), false);
        check((2, 12), (13, 0), X86_64, (13, 0), true);
        check((2, 11), (13, 0), X86_64, (13, 0), false);
    }

    #[test]
    fn architectures_print_as_torch_prints_them() {
        let row = build((2, 9), (13, 0), Aarch64).expect("published");
        assert_eq!(row.architectures(), "sm_80 sm_90 sm_100 sm_110 sm_120 compute_120");
    }
}
