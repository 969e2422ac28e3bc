//! What differs between one decay a channel and one a head.

use super::{Prepare, per_channel, per_head};
use crate::Planner;
use crate::kda::operands::storage_macros;
use device::cuda::{Buffer, GpuArch, Kernel, KernelSource, Launch, Part};
use ops::DType;
use ops::kda::{Decays, KdaProblem};

/// A kernel behind what all that make packages share.
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

/// What the kernels make of a chunk, as `package.cuh` has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Package {
    /// `OF_KEYS`: what value heads of a key head share, bytes.
    pub(super) of_keys: usize,
    /// `PACKAGE_BYTES`, of a value head.
    pub(super) own: usize,
}

impl Package {
    /// Of all heads: `chunk_bytes`.
    pub(super) fn of_chunk(self, problem: &KdaProblem) -> usize {
        problem.heads * self.of_keys + problem.value_heads * self.own
    }
}

/// One of the two.
pub(super) struct Kind {
    /// The kernel that makes packages of all chunks, its parts, and the threads of a block.
    pub(super) prepare: (&'static str, &'static [Part]),
    pub(super) threads: u32,
    /// Its blocks for a chunk of a sequence; and, by K, `SHARED_BYTES` and what it leaves.
    pub(super) blocks: fn(&KdaProblem) -> usize,
    pub(super) bytes: fn(usize) -> usize,
    pub(super) package: fn(usize) -> Package,
    /// Launches it, with marks for what is made beside the walk and their number.
    pub(super) launch: for<'a> fn(&mut Planner<'_>, (Kernel, Launch), Prepare<'a>, Marks<'a>),
    /// `PER_HEAD`.
    pub(super) per_head: bool,
    /// Chunks in shared memory at once beside two warpgroups that walk.
    pub(super) stages_of_two: usize,
    /// Whether packages may be made beside the walk.
    pub(super) beside: bool,
    /// Whether the walk is launched while these are prepared.
    pub(super) overlaps: bool,
}

/// Marks, where there are some, and how many words.
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
        parts: &'static [Part],
        (dtype, key_dim): (DType, usize),
        arch: GpuArch,
    ) -> KernelSource {
        let source =
            storage_macros(KernelSource::new(name, parts, arch), dtype).define("KD", key_dim);
        if self.per_head { source.define("PER_HEAD", 1) } else { source }
    }
}
