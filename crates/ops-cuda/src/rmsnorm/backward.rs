//! `rows` of the gradient: a team of threads per row, any size and storage type. The contract is in `backward.cu`.

use super::rows::{self, Tile};
use crate::gradient_sums::{self, GradientSums};
use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    BundledArch, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, SourcePart,
};
use ops::rmsnorm::{Activation, RmsNormProblem};
use ops::{DType, GradientProblem};

pub(super) const VARIANT: CudaVariant<GradientProblem<RmsNormProblem>> =
    CudaVariant { name: "rows", why_not, plan };

const PARTS: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("backward.cu")];

/// Rows that are in shared memory at a time: the one that is computed, and those being loaded.
const STAGES: usize = 2;
/// Elements of a row per thread, at most, that are read once.
const MOST_HELD: usize = 8;
/// Threads of a block of short rows.
const BLOCK: usize = 128;
/// Shared memory of a block, at most, in bytes: every GPU has it.
const SHARED_BYTES: usize = 96 << 10;

fn why_not(problem: &GradientProblem<RmsNormProblem>, here: &CudaCapabilities) -> Option<String> {
    rows::why_not(&problem.forward, here)
}

/// Compile-time parameters of the kernel.
#[derive(Debug, Clone, Copy)]
struct Params {
    /// Type of the gradient of o, and of x unless that is f32.
    out: DType,
    channels: usize,
    gate: Option<Activation>,
    norm_before_gate: bool,
    /// Whether x is f32 and o is not.
    wide: bool,
}

impl Params {
    fn tile(self) -> Tile {
        let tile = Tile::of(self.channels, self.out);
        Tile { rows: if tile.team > 32 { 1 } else { BLOCK / tile.team }, ..tile }
    }

    /// Threads per SM that the registers must allow: few enough that a row, its sums and a gate's derivative fit.
    fn resident(self) -> usize {
        match self.ring() {
            (0, _) => 512,
            _ if self.tile().team > 32 => 1024,
            _ => 768,
        }
    }

    fn threads(self) -> usize {
        let Tile { team, rows, .. } = self.tile();
        team * rows
    }

    /// Stages of the ring of rows in shared memory and its size in bytes; none for rows that are too long for it, and for vectors
    /// that are too short for asynchronous copies.
    fn ring(self) -> (usize, usize) {
        let Tile { vector, pieces, .. } = self.tile();
        let bytes = self.out.bytes();
        let given = if self.wide { DType::F32.bytes() } else { bytes };
        let of_element = given * (1 + usize::from(self.gate.is_some())) + bytes;
        let ring = STAGES * self.threads() * pieces * vector * of_element;
        let fits = pieces * vector <= MOST_HELD && vector * bytes >= 4 && ring <= SHARED_BYTES;
        if fits { (STAGES, ring) } else { (0, 0) }
    }
}

fn source(params: Params, arch: GpuArch) -> KernelSource {
    let Tile { vector, team, pieces, rows } = params.tile();
    KernelSource::new("rmsnorm_backward_rows", PARTS, arch)
        .define("DTYPE", params.out)
        .define("WIDE_X", u8::from(params.wide))
        .define("VECTOR", vector)
        .define("TEAM", team)
        .define("PIECES", pieces)
        .define("ROWS", rows)
        .define("STAGES", params.ring().0)
        .define("MOST_HELD", MOST_HELD)
        .define("RESIDENT", params.resident())
        .define("NORM_BEFORE_GATE", u8::from(params.norm_before_gate))
        .define(
            "GATE",
            match params.gate {
                None => 0,
                Some(Activation::Silu) => 1,
                Some(Activation::Sigmoid) => 2,
            },
        )
        // dx and dgate are not read again.
        .define("STORE_GLOBAL", "\"st.global.cs\"")
}

/// Kernels of the norms of mixers and of delta rules, and of those between layers. A kernel takes all sizes from half of the listed one
/// up to it.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let out = DType::Bf16;
    let of = |(gate, norm_before_gate, channels)| {
        source(Params { out, channels, gate, norm_before_gate, wide: false }, arch.arch())
    };
    let norms = [
        (Some(Activation::Sigmoid), true, 128),
        (Some(Activation::Silu), true, 128),
        (Some(Activation::Silu), false, 4096),
        (Some(Activation::Silu), false, 8192),
        (None, false, 128),
        (None, false, 2048),
        (None, false, 4096),
    ];
    norms.map(of).into_iter().chain([gradient_sums::source(out, arch.arch())]).collect()
}

arguments! {
    RmsnormBackwardRows: rmsnorm_backward_rows {
        x: Pointer, gate: Nullable, weight: Nullable, d_o: Pointer, dx: Pointer, dgate: Nullable, partial: Nullable, tokens: i32,
        groups: i32, channels: i32, weight_f32: i32, weight_per_group: i32, per_size: f32, eps: f32,
    }
}

fn plan(
    problem: &GradientProblem<RmsNormProblem>,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let problem = &problem.forward;
    let channels = problem.channels;
    let params = Params {
        out: problem.out,
        channels,
        gate: problem.gate,
        norm_before_gate: problem.norm_before_gate && problem.gate.is_some(),
        wide: problem.out != problem.x_dtype,
    };
    let kernel = planner.kernel(&source(params, planner.arch()))?;
    let (threads, (_, shared)) = (params.threads() as u32, params.ring());
    let shared = shared as u32;
    // Matrices of weights have their own blocks. All blocks are resident at once.
    let matrices = if problem.weight_per_group { problem.groups } else { 1 };
    let resident = kernel.blocks_per_multiprocessor(threads, shared)?.max(1);
    let resident = (resident * planner.here().multiprocessors) as usize;
    let rows = problem.rows() / matrices.max(1);
    let blocks = rows.div_ceil(params.tile().rows).min(resident.div_ceil(matrices.max(1)));

    let (x, gate, weight, d_o) = (
        planner.required("x")?,
        planner.input("gate")?,
        planner.input("weight")?,
        planner.required("do")?,
    );
    let dgate = gate.as_ref().map(|_| planner.output("dgate")).transpose()?;
    let partial = match &weight {
        Some(_) => Some(planner.scratch((matrices * blocks * channels).max(1))?),
        None => None,
    };
    let args = RmsnormBackwardRows {
        x: &x,
        gate: gate.as_deref(),
        weight: weight.as_deref(),
        d_o: &d_o,
        dx: &*planner.output("dx")?,
        dgate: dgate.as_deref(),
        partial: partial.as_deref(),
        tokens: int(problem.batch * problem.tokens)?,
        groups: int(problem.groups)?,
        channels: int(channels)?,
        weight_f32: planner.is_f32("weight"),
        weight_per_group: i32::from(problem.weight_per_group),
        per_size: 1.0 / channels as f32,
        eps: problem.eps as f32,
    };
    let launch =
        planner.overlapping(Launch::new([blocks as u32, matrices as u32, 1], threads, shared));
    planner.launch(kernel, launch, args);
    let Some(partial) = partial else { return Ok(()) };
    GradientSums {
        dtype: problem.out,
        partial: &partial,
        matrices,
        count: blocks,
        stride: channels,
        first: ("dweight", channels),
        second: None,
    }
    .plan(planner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_has_two_rows_where_they_fit() {
        for (channels, out, wide, ring) in [
            (128, DType::Bf16, false, (2, 128 * 8 * 6 * 2)),
            (4096, DType::Bf16, false, (2, 512 * 8 * 6 * 2)),
            (4096, DType::Bf16, true, (2, 512 * 8 * 10 * 2)),
            (4096, DType::F32, false, (2, 512 * 8 * 12 * 2)),
            (8192, DType::Bf16, false, (2, SHARED_BYTES)),
            (8192, DType::F32, false, (0, 0)),
            (8200, DType::Bf16, false, (0, 0)),
            (33, DType::Bf16, false, (0, 0)),
            (33, DType::F32, false, (2, 128 * 8 * 12 * 2)),
        ] {
            let gate = Some(Activation::Silu);
            let params = Params { out, channels, gate, norm_before_gate: false, wide };
            assert_eq!(params.ring(), ring, "{channels} {out}");
        }
    }
}
