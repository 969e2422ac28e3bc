//! `rows`: a team of threads per row, any size and storage type. The contract is in `rows.cu`.

use crate::{CudaVariant, Planner, arguments, int, source};
use device::cuda::{
    Args, Buffer, BundledArch, ComputeCapability, CudaCapabilities, DeviceError, GpuArch,
    KernelSource, Launch, SourcePart,
};
use ops::DType;
use ops::rmsnorm::{Activation, RmsNormProblem};

pub(super) const VARIANT: CudaVariant<RmsNormProblem> = CudaVariant { name: "rows", why_not, plan };

const PARTS: &[SourcePart] =
    &[source!("../include/order.cuh"), source!("../include/storage.cuh"), source!("rows.cu")];

/// Elements of a row per thread, for rows that are short enough.
const OF_THREAD: usize = 8;
/// Threads of a block of short rows, and most threads of a long one.
const BLOCK: usize = 256;
const MAX_THREADS: usize = 1024;

/// Mapping of a row to threads. It is the same for all rows of up to [`OF_THREAD`] elements per thread of a team, so
/// that they share a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Elements of an access.
    pub(super) vector: usize,
    /// Threads of a row.
    pub(super) team: usize,
    /// Accesses of a thread.
    pub(super) pieces: usize,
    /// Rows of a block.
    pub(super) rows: usize,
}

impl Tile {
    pub(super) fn of(channels: usize, dtype: DType) -> Self {
        let widest = 16 / dtype.bytes();
        let divides = |wide: &usize| *wide <= widest && channels.is_multiple_of(*wide);
        let vector = [8, 4, 2, 1].into_iter().find(divides).unwrap_or(1);
        let team = channels.div_ceil(OF_THREAD).next_power_of_two().min(MAX_THREADS);
        let pieces = channels.max(OF_THREAD * team).div_ceil(team * vector);
        let rows = if team > 32 { 1 } else { BLOCK / team };
        Self { vector, team, pieces, rows }
    }
}

pub(super) fn why_not(problem: &RmsNormProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.channels == 0 {
        return Some("needs groups of one channel or more".to_owned());
    }
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    None
}

/// Compile-time parameters of the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsParams {
    /// Type of o, and of x unless that is f32.
    pub(crate) out: DType,
    pub(crate) channels: usize,
    pub(crate) norm_before_gate: bool,
    /// Whether x is f32 and o is not.
    pub(crate) wide: bool,
    /// Whether tokens of x or of the gate are strided.
    pub(crate) strided: bool,
}

impl RowsParams {
    fn launch(self, rows: usize) -> Launch {
        let tile = Tile::of(self.channels, self.out);
        Launch::new([rows.div_ceil(tile.rows) as u32, 1, 1], (tile.rows * tile.team) as u32, 0)
    }
}

arguments! {
    RmsnormRows: rmsnorm_rows {
        x: Pointer, gate: Nullable, weight: Nullable, o: Pointer, rows: i32, groups: i32, channels: i32, x_row: i32, gate_row: i32,
        weight_f32: i32, weight_per_group: i32, use_sigmoid: i32, per_size: f32, eps: f32,
    }
}

/// Operands of the kernel.
pub(crate) struct Rows<'a> {
    pub(crate) x: &'a Buffer,
    pub(crate) gate: Option<&'a Buffer>,
    /// Elements from one token to the next of x and of the gate; only read if tokens are strided.
    pub(crate) apart: [i32; 2],
    pub(crate) weight: Option<&'a Buffer>,
    /// 1 if the weight is f32.
    pub(crate) weight_f32: i32,
    pub(crate) weight_per_group: bool,
    /// Whether the gate's activation is a sigmoid instead of silu.
    pub(crate) sigmoid: bool,
    /// Groups of all tokens.
    pub(crate) count: usize,
    /// Groups of a token.
    pub(crate) groups: usize,
    pub(crate) eps: f64,
}

impl Rows<'_> {
    fn args(&self, channels: usize, o: &Buffer) -> Result<Args, DeviceError> {
        let args = RmsnormRows {
            x: self.x,
            gate: self.gate,
            weight: self.weight,
            o,
            rows: int(self.count)?,
            groups: int(self.groups)?,
            channels: int(channels)?,
            x_row: self.apart[0],
            gate_row: self.apart[1],
            weight_f32: self.weight_f32,
            weight_per_group: i32::from(self.weight_per_group),
            use_sigmoid: i32::from(self.sigmoid),
            per_size: 1.0 / channels as f32,
            eps: self.eps as f32,
        };
        Ok(args.into())
    }
}

fn source(params: RowsParams, arch: GpuArch) -> KernelSource {
    let RowsParams { out, channels, norm_before_gate, wide, strided } = params;
    let tile = Tile::of(channels, out);
    let source = KernelSource::new("rmsnorm_rows", PARTS, arch)
        .define("DTYPE", out)
        .define("WIDE_X", u8::from(wide))
        .define("VECTOR", tile.vector)
        .define("TEAM", tile.team)
        .define("PIECES", tile.pieces)
        .define("ROWS", tile.rows)
        .define("NORM_BEFORE_GATE", u8::from(norm_before_gate))
        // o is not read again: 50 us with this, 54 us without (README.md of `ops::rmsnorm`).
        .define("STORE_GLOBAL", "\"st.global.cs\"");
    let source = if strided { source.define("STRIDED", 1) } else { source };
    let whole = channels == tile.pieces * tile.team * tile.vector;
    let exact = whole && (norm_before_gate || strided);
    if exact { source.define("EXACT", 1) } else { source }
}

/// Kernels of calls from Python and from models. A kernel takes all sizes from half of the listed one up to it.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let plain = |out, channels| RowsParams {
        out,
        channels,
        norm_before_gate: false,
        wide: false,
        strided: false,
    };
    let bf16 = |channels| plain(DType::Bf16, channels);
    let param_sets = [64, 128, 256, 512, 1024, 2048, 4096, 8192]
        .into_iter()
        .flat_map(|channels| [bf16(channels), plain(DType::F16, channels)])
        // Heads of a projection that holds queries, keys and values; mixers, whose gates are parts of a projection.
        .chain([128, 256, 3072, 4096, 8192].map(|size| RowsParams { strided: true, ..bf16(size) }))
        // The output norms of delta rules.
        .chain([64, 128].map(|size| RowsParams { norm_before_gate: true, ..bf16(size) }))
        // Residual streams.
        .chain([1024, 2048, 4096, 8192].map(|size| RowsParams { wide: true, ..bf16(size) }));
    param_sets.map(|params| source(params, arch.arch())).collect()
}

fn plan(problem: &RmsNormProblem, planner: &mut Planner<'_>) -> Result<(), DeviceError> {
    let width = problem.groups * problem.channels;
    let apart = [planner.row("x", width)?, planner.row("gate", width)?];
    let vector = Tile::of(problem.channels, problem.out).vector;
    for (tensor, apart) in ["x", "gate"].into_iter().zip(apart) {
        if !(apart as usize).is_multiple_of(vector) {
            return Err(DeviceError::Layout {
                tensor,
                wanted: "with tokens at multiples of 16 bytes",
            });
        }
    }
    let params = RowsParams {
        out: problem.out,
        channels: problem.channels,
        norm_before_gate: problem.norm_before_gate,
        wide: problem.out != problem.x_dtype,
        strided: apart != [int(width)?; 2],
    };
    let kernel = planner.kernel(&source(params, planner.arch()))?;
    let (x, gate, weight) =
        (planner.required("x")?, planner.input("gate")?, planner.input("weight")?);
    let rows = Rows {
        x: &x,
        gate: gate.as_deref(),
        apart,
        weight: weight.as_deref(),
        weight_f32: planner.is_f32("weight"),
        weight_per_group: problem.weight_per_group,
        sigmoid: problem.gate == Some(Activation::Sigmoid),
        count: problem.rows(),
        groups: problem.groups,
        eps: problem.eps,
    };
    let args = rows.args(params.channels, &*planner.output("o")?)?;
    let launch = planner.overlapping(params.launch(rows.count));
    planner.launch(kernel, launch, args);
    Ok(())
}

/// Adds a preceding launch that writes the norm of x to `o`, the input of another op's kernel. `params` has no gate;
/// `count` groups of `params.channels`, `groups` per row.
///
/// # Errors
/// As [`Planner::kernel`].
pub(crate) fn plan_ahead(
    params: RowsParams,
    rows: &Rows<'_>,
    o: &Buffer,
    planner: &mut Planner<'_>,
) -> Result<(), DeviceError> {
    let kernel = planner.kernel(&source(params, planner.arch()))?;
    let launch = planner.overlapping(params.launch(rows.count));
    planner.launch_auxiliary(kernel, launch, rows.args(params.channels, o)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_distributed_over_as_many_threads_as_they_fill() {
        for (channels, dtype, vector, team, pieces, rows) in [
            (128, DType::Bf16, 8, 16, 1, 16),
            (4096, DType::Bf16, 8, 512, 1, 1),
            (4096, DType::F32, 4, 512, 2, 1),
            (3072, DType::F16, 8, 512, 1, 1),
            (100, DType::Bf16, 4, 16, 2, 16),
            (33, DType::F32, 1, 8, 8, 32),
            (1, DType::Bf16, 1, 1, 8, 256),
            (8200, DType::Bf16, 8, 1024, 2, 1),
            (100_000, DType::Bf16, 8, 1024, 13, 1),
        ] {
            let tile = Tile { vector, team, pieces, rows };
            assert_eq!(Tile::of(channels, dtype), tile, "{channels}");
            assert!(vector * team * pieces >= channels, "{channels}");
        }
    }

    #[test]
    fn sizes_of_a_team_share_a_kernel() {
        let of = |channels, dtype| {
            let params = RowsParams {
                out: dtype,
                channels,
                norm_before_gate: false,
                wide: false,
                strided: false,
            };
            source(params, GpuArch::of(ComputeCapability::new(9, 0))).key()
        };
        for channels in [2056, 2304, 2560, 2880, 3072, 3584, 4088] {
            assert_eq!(of(channels, DType::Bf16), of(4096, DType::Bf16), "{channels}");
        }
        assert_ne!(of(2048, DType::Bf16), of(4096, DType::Bf16));
        assert_ne!(of(2308, DType::Bf16), of(4096, DType::Bf16));
    }
}
