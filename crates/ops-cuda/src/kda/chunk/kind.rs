//! The differences between one decay per channel and one per head.

use super::{Prepare, per_channel, per_head};
use crate::Planner;
use crate::kda::operands::storage_macros;
use device::cuda::{Buffer, GpuArch, Kernel, KernelSource, Launch, SourcePart};
use ops::DType;
use ops::kda::{Decays, KdaProblem};

/// The parts of a kernel that computes packages: the shared headers, then the kernel's own files.
macro_rules! prepare_parts {
    ($($own:literal),+) => {
        &[
            source!("../../include/hopper.cuh"),
            source!("../../include/order.cuh"),
            source!("../gates.cuh"),
            source!("../package.cuh"),
            source!("../prepare_gates.cuh"),
            source!("../prepare_load.cuh"),
            source!("../prepare_solve.cuh"),
            source!("../prepare_parts.cuh"),
            $(source!($own)),+,
        ]
    };
}
pub(super) use prepare_parts;

/// Sizes of the state-independent results of a chunk, in bytes, as in `package.cuh`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Package {
    /// `OF_KEYS`: bytes per key head, shared by its value heads.
    pub(super) of_keys: usize,
    /// `PACKAGE_BYTES`: bytes per value head.
    pub(super) own: usize,
}

impl Package {
    /// `chunk_bytes`: bytes of all heads.
    pub(super) fn of_chunk(self, problem: &KdaProblem) -> usize {
        problem.heads * self.of_keys + problem.value_heads * self.own
    }
}

/// The kernels and sizes of one kind of decay.
pub(super) struct Kind {
    /// The kernel that computes packages, its parts, and its threads per block.
    pub(super) prepare: (&'static str, &'static [SourcePart]),
    pub(super) threads: u32,
    /// Its blocks per chunk and sequence; and, as functions of K, `SHARED_BYTES` and the package sizes.
    pub(super) blocks: fn(&KdaProblem) -> usize,
    pub(super) bytes: fn(usize) -> usize,
    pub(super) package: fn(usize) -> Package,
    /// Launches it, with the flags of the packages that are computed concurrently with `walk.cu`.
    pub(super) launch: for<'a> fn(&mut Planner<'_>, (Kernel, Launch), Prepare<'a>, Marks<'a>),
    /// `PER_HEAD`.
    pub(super) per_head: bool,
    /// Pipeline stages of `walk.cu` with two consumer warpgroups.
    pub(super) stages_of_two: usize,
    /// Whether packages may be computed concurrently with `walk.cu`.
    pub(super) concurrent: bool,
    /// Whether `walk.cu` may start before the preparation ends (PDL).
    pub(super) overlaps: bool,
}

/// Flags, if there are any, and their number of words.
pub(super) type Marks<'a> = (Option<&'a Buffer>, i32);

impl Kind {
    pub(super) fn of(decays: Decays) -> &'static Self {
        match decays {
            Decays::PerChannel => &per_channel::KIND,
            Decays::PerHead => &per_head::KIND,
        }
    }

    pub(super) fn prepare_source(
        &self,
        dtype: DType,
        key_dim: usize,
        arch: GpuArch,
    ) -> KernelSource {
        let (name, parts) = self.prepare;
        self.source(name, parts, (dtype, key_dim), arch)
    }

    /// A kernel of this kind.
    pub(super) fn source(
        &self,
        name: &'static str,
        parts: &'static [SourcePart],
        (dtype, key_dim): (DType, usize),
        arch: GpuArch,
    ) -> KernelSource {
        let source =
            storage_macros(KernelSource::new(name, parts, arch), dtype).define("KD", key_dim);
        if self.per_head { source.define("PER_HEAD", 1) } else { source }
    }
}
