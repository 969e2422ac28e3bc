//! The CUDA wheels PyTorch published for Linux, by series, CUDA release and processor, and the GPU code inside each.
//!
//! The architectures are those the release scripts passed to nvcc. They are a label, not the bytes: a rule that rests
//! on them is likely, never certain. Vendors' builds, conda's builds, nightlies and source builds are not here.

use super::Source;
use crate::gpu::Sm;
use crate::version::Minor;

/// One published CUDA build of one or more torch series.
#[derive(Debug)]
pub(crate) struct Build {
    /// torch series: major and minor number.
    pub(crate) torch: &'static [Minor],
    /// The CUDA release it was built with.
    pub(crate) cuda: Minor,
    /// Whether it is the aarch64 wheel (for server Arm, not for Jetson) or the x86-64 one.
    pub(crate) arm: bool,
    /// Compute capabilities with machine code, rising.
    pub(crate) sm: &'static [Sm],
    /// The compute capability of embedded PTX, which a driver can compile for newer GPUs.
    pub(crate) ptx: Option<Sm>,
    /// Whether the PyTorch project offers it on its install page, so that a remedy may name it.
    pub(crate) offered: bool,
    /// Where the architectures were read.
    pub(crate) source: Source,
}

impl Build {
    /// Whether code in this build runs on a GPU: machine code of X.y on X.z with z >= y, or PTX of anything older.
    /// Not valid on Tegra, where machine code runs only on its own architecture.
    pub(crate) fn runs_on(&self, gpu: Sm) -> bool {
        self.sm.iter().any(|sm| sm.0 == gpu.0 && sm.1 <= gpu.1)
            || self.ptx.is_some_and(|ptx| ptx <= gpu)
    }

    /// The oldest architecture with machine code.
    pub(crate) fn oldest(&self) -> Sm {
        self.sm.first().copied().unwrap_or((0, 0))
    }

    /// The newest architecture with machine code.
    pub(crate) fn newest(&self) -> Sm {
        self.sm.last().copied().unwrap_or((0, 0))
    }

    /// The list as torch prints it: `sm_80 sm_90 compute_120`.
    pub(crate) fn architectures(&self) -> String {
        let mut words: Vec<String> =
            self.sm.iter().map(|sm| format!("sm_{}{}", sm.0, sm.1)).collect();
        words.extend(self.ptx.map(|ptx| format!("compute_{}{}", ptx.0, ptx.1)));
        words.join(" ")
    }
}

const KEPLER_TO_HOPPER: &[Sm] = &[(3, 7), (5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)];
const MAXWELL_TO_HOPPER: &[Sm] = &[(5, 0), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (9, 0)];
const VOLTA_TO_BLACKWELL: &[Sm] = &[(7, 0), (7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)];
const TURING_TO_BLACKWELL: &[Sm] = &[(7, 5), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0)];
const ARM_HOPPER: &[Sm] = &[(9, 0)];
const ARM_AMPERE_HOPPER: &[Sm] = &[(8, 0), (9, 0)];
const ARM_HOPPER_BLACKWELL: &[Sm] = &[(9, 0), (10, 0), (12, 0)];
const ARM_TO_BLACKWELL: &[Sm] = &[(8, 0), (9, 0), (10, 0), (12, 0)];
const ARM_TO_BLACKWELL_THOR: &[Sm] = &[(8, 0), (9, 0), (10, 0), (11, 0), (12, 0)];

const BUILDER: Source = Source {
    what: "pytorch/builder manywheel/build_cuda.sh, branches release/2.1 to release/2.5",
    date: "2024-10-15",
};
const SCRIPTS: Source = Source {
    what: "pytorch/pytorch .ci/manywheel/build_cuda.sh at tags v2.6.0 to v2.11.0",
    date: "2026-11-21",
};
const ARM_SCRIPTS: Source = Source {
    what: "pytorch/pytorch .ci/aarch64_linux/aarch64_ci_build.sh of releases 2.6 to 2.9, pytorch#148169",
    date: "2026-11-21",
};
const MEASURED: Source = Source {
    what: "torch.cuda.get_arch_list() of the 2.10 and 2.11 wheels, pytorch#182250",
    date: "2026-05-03",
};
const MATRIX_29: Source = Source {
    what: "pytorch RELEASE.md, CUDA support matrix of 2.9, pytorch#164471",
    date: "2025-10-02",
};
const MATRIX_211: Source = Source {
    what: "pytorch RELEASE.md, CUDA support matrix of 2.11, pytorch#175253",
    date: "2026-02-18",
};
const MATRIX_212: Source = Source {
    what: "pytorch RELEASE.md, CUDA support matrix of 2.12 to 2.14, pytorch#182849 and #197555",
    date: "2026-09-18",
};
const PLAN_215: Source = Source {
    what: "PyTorch's announced CUDA support of release 2.15, pytorch#190385",
    date: "2026-07-17",
};

const fn x86(
    torch: &'static [Minor],
    cuda: Minor,
    sm: &'static [Sm],
    ptx: Option<Sm>,
    source: Source,
) -> Build {
    Build { torch, cuda, arm: false, sm, ptx, offered: true, source }
}

const fn arm(
    torch: &'static [Minor],
    cuda: Minor,
    sm: &'static [Sm],
    ptx: Option<Sm>,
    source: Source,
) -> Build {
    Build { torch, cuda, arm: true, sm, ptx, offered: true, source }
}

/// Published, but in a limited way: recognised, never advised.
const fn limited(build: Build) -> Build {
    Build { offered: false, ..build }
}

/// Every row, x86-64 first, by rising CUDA release.
#[rustfmt::skip]
pub(crate) const BUILDS: &[Build] = &[
    x86(&[(2, 1), (2, 2), (2, 3), (2, 4), (2, 5)], (11, 8), KEPLER_TO_HOPPER, None, BUILDER),
    x86(&[(2, 6), (2, 7)], (11, 8), KEPLER_TO_HOPPER, None, SCRIPTS),
    x86(&[(2, 1), (2, 2), (2, 3), (2, 4), (2, 5)], (12, 1), MAXWELL_TO_HOPPER, None, BUILDER),
    x86(&[(2, 4), (2, 5)], (12, 4), MAXWELL_TO_HOPPER, None, BUILDER),
    x86(&[(2, 6)], (12, 4), MAXWELL_TO_HOPPER, None, SCRIPTS),
    x86(&[(2, 6), (2, 7), (2, 8)], (12, 6), MAXWELL_TO_HOPPER, None, SCRIPTS),
    x86(&[(2, 9), (2, 10)], (12, 6), MAXWELL_TO_HOPPER, None, MATRIX_29),
    x86(&[(2, 11)], (12, 6), MAXWELL_TO_HOPPER, None, MEASURED),
    x86(&[(2, 12), (2, 13), (2, 14)], (12, 6), MAXWELL_TO_HOPPER, None, MATRIX_212),
    x86(&[(2, 7)], (12, 8), TURING_TO_BLACKWELL, Some((12, 0)), SCRIPTS),
    x86(&[(2, 8), (2, 9)], (12, 8), VOLTA_TO_BLACKWELL, None, SCRIPTS),
    x86(&[(2, 10)], (12, 8), VOLTA_TO_BLACKWELL, None, MEASURED),
    x86(&[(2, 11)], (12, 8), TURING_TO_BLACKWELL, None, MEASURED),
    x86(&[(2, 8)], (12, 9), VOLTA_TO_BLACKWELL, Some((12, 0)), SCRIPTS),
    limited(x86(&[(2, 9), (2, 10)], (12, 9), VOLTA_TO_BLACKWELL, Some((12, 0)), SCRIPTS)),
    x86(&[(2, 9), (2, 10)], (13, 0), TURING_TO_BLACKWELL, Some((12, 0)), SCRIPTS),
    x86(&[(2, 11)], (13, 0), TURING_TO_BLACKWELL, None, SCRIPTS),
    x86(&[(2, 12), (2, 13), (2, 14)], (13, 0), TURING_TO_BLACKWELL, Some((12, 0)), MATRIX_212),
    x86(&[(2, 15)], (13, 0), TURING_TO_BLACKWELL, Some((12, 0)), PLAN_215),
    x86(&[(2, 12), (2, 13), (2, 14)], (13, 2), TURING_TO_BLACKWELL, Some((12, 0)), MATRIX_212),
    x86(&[(2, 15)], (13, 2), TURING_TO_BLACKWELL, Some((12, 0)), PLAN_215),

    arm(&[(2, 4), (2, 5)], (12, 4), ARM_HOPPER, None, BUILDER),
    arm(&[(2, 6)], (12, 6), ARM_HOPPER, None, ARM_SCRIPTS),
    arm(&[(2, 9), (2, 10)], (12, 6), ARM_AMPERE_HOPPER, None, ARM_SCRIPTS),
    arm(&[(2, 11)], (12, 6), ARM_AMPERE_HOPPER, None, MATRIX_211),
    arm(&[(2, 12), (2, 13), (2, 14)], (12, 6), ARM_AMPERE_HOPPER, None, MATRIX_212),
    arm(&[(2, 7)], (12, 8), ARM_HOPPER_BLACKWELL, None, ARM_SCRIPTS),
    arm(&[(2, 9), (2, 10)], (12, 8), ARM_TO_BLACKWELL, None, ARM_SCRIPTS),
    arm(&[(2, 11)], (12, 8), ARM_TO_BLACKWELL, None, MATRIX_211),
    arm(&[(2, 8)], (12, 9), ARM_TO_BLACKWELL, None, ARM_SCRIPTS),
    limited(arm(&[(2, 9), (2, 10)], (12, 9), ARM_TO_BLACKWELL, None, ARM_SCRIPTS)),
    arm(&[(2, 9), (2, 10)], (13, 0), ARM_TO_BLACKWELL_THOR, Some((12, 0)), ARM_SCRIPTS),
    arm(&[(2, 11)], (13, 0), ARM_TO_BLACKWELL_THOR, Some((12, 0)), MATRIX_211),
    arm(&[(2, 12), (2, 13), (2, 14)], (13, 0), ARM_TO_BLACKWELL_THOR, Some((12, 0)), MATRIX_212),
    arm(&[(2, 15)], (13, 0), ARM_TO_BLACKWELL_THOR, Some((12, 0)), PLAN_215),
    arm(&[(2, 12), (2, 13), (2, 14)], (13, 2), ARM_TO_BLACKWELL_THOR, Some((12, 0)), MATRIX_212),
    arm(&[(2, 15)], (13, 2), ARM_TO_BLACKWELL_THOR, Some((12, 0)), PLAN_215),
];

/// The published build of a torch series for a CUDA release and a processor.
pub(crate) fn build(torch: Minor, cuda: Minor, arm: bool) -> Option<&'static Build> {
    BUILDS.iter().find(|row| row.torch.contains(&torch) && row.cuda == cuda && row.arm == arm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wheel_has_two_rows_and_every_row_is_cited_and_rising() {
        let mut seen = std::collections::HashSet::new();
        for row in BUILDS {
            crate::data::assert_cited(&row.source);
            assert!(row.sm.windows(2).all(|pair| pair[0] < pair[1]), "{row:?}");
            assert!(!row.torch.is_empty() && !row.sm.is_empty(), "{row:?}");
            for torch in row.torch {
                assert!(seen.insert((*torch, row.cuda, row.arm)), "{torch:?} twice: {row:?}");
            }
        }
    }

    #[test]
    fn what_runs_on_which_gpu() {
        let check = |torch, cuda, arm, gpu, expect| {
            let row = build(torch, cuda, arm).expect("a published build");
            assert_eq!(row.runs_on(gpu), expect, "torch {torch:?} cu{cuda:?} on {gpu:?}");
        };
        // An RTX 4090 (8.9) runs the code of 8.6; a B300 (10.3) that of 10.0; GB10 (12.1) that of 12.0.
        check((2, 5), (12, 1), false, (8, 9), true);
        check((2, 9), (12, 8), false, (10, 3), true);
        check((2, 9), (12, 8), true, (12, 1), true);
        // RTX 50 (12.0) has no code before cu128; Thor (11.0) has none before cu130.
        check((2, 6), (12, 6), false, (12, 0), false);
        check((2, 11), (12, 8), true, (11, 0), false);
        check((2, 11), (13, 0), true, (11, 0), true);
        // Volta is in the cu128 builds of 2.8 to 2.10 only; Pascal in no cu128 build.
        check((2, 7), (12, 8), false, (7, 0), false);
        check((2, 10), (12, 8), false, (7, 0), true);
        check((2, 11), (12, 8), false, (7, 0), false);
        check((2, 8), (12, 8), false, (6, 1), false);
        check((2, 14), (12, 6), false, (6, 1), true);
        // PTX of 12.0 is no help to an older GPU.
        check((2, 12), (13, 0), false, (6, 0), false);
        check((2, 12), (13, 0), false, (13, 0), true);
        check((2, 11), (13, 0), false, (13, 0), false);
    }

    #[test]
    fn architectures_print_as_torch_prints_them() {
        let row = build((2, 9), (13, 0), true).expect("published");
        assert_eq!(row.architectures(), "sm_80 sm_90 sm_100 sm_110 sm_120 compute_120");
    }
}
