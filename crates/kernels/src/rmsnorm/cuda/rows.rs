//! `rows`: a team of threads a row, any size and storage type. The contract stands in `rows.cu`.

use crate::DType;
use crate::cuda::{CudaVariant, Planner, int};
use crate::rmsnorm::{Activation, RmsNormProblem};
use device::cuda::{
    Args, BundledArch, ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource,
    Launch,
};

pub(super) const VARIANT: CudaVariant<RmsNormProblem> = CudaVariant { name: "rows", why_not, plan };

const PARTS: &[&str] = &[include_str!("../../cuda/storage.cuh"), include_str!("rows.cu")];

/// Elements of a row that a thread takes, where the row is short enough for that.
const OF_THREAD: usize = 8;
/// Threads of a block of short rows, and most threads of a long one.
const BLOCK: usize = 256;
const MOST: usize = 1024;

/// How a row lies over threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    /// Elements of an access.
    vector: usize,
    /// Threads of a row.
    team: usize,
    /// Rows of a block.
    rows: usize,
}

impl Tile {
    fn of(channels: usize, dtype: DType) -> Self {
        let widest = 16 / dtype.bytes();
        let divides = |wide: &usize| *wide <= widest && channels.is_multiple_of(*wide);
        let vector = [8, 4, 2, 1].into_iter().find(divides).unwrap_or(1);
        let team = channels.div_ceil(OF_THREAD).next_power_of_two().min(MOST);
        let rows = if team > 32 { 1 } else { BLOCK / team };
        Self { vector, team, rows }
    }
}

fn why_not(problem: &RmsNormProblem, here: &CudaCapabilities) -> Option<String> {
    if problem.channels == 0 {
        return Some("needs groups of one channel or more".to_owned());
    }
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    None
}

/// What the kernel is compiled for.
#[derive(Debug, Clone, Copy)]
struct Form {
    /// Type of o, and of x unless that is f32.
    out: DType,
    channels: usize,
    norm_before_gate: bool,
    /// Whether x is f32 and o is not.
    wide: bool,
}

fn source(form: Form, arch: GpuArch) -> KernelSource {
    let Form { out, channels, norm_before_gate, wide } = form;
    let tile = Tile::of(channels, out);
    KernelSource::new("rmsnorm_rows", PARTS, arch)
        .define("DTYPE", out)
        .define("WIDE_X", u8::from(wide))
        .define("SIZE", channels)
        .define("VECTOR", tile.vector)
        .define("TEAM", tile.team)
        .define("ROWS", tile.rows)
        .define("NORM_BEFORE_GATE", u8::from(norm_before_gate))
        // o is not read again: 50 us with this where it takes 54 without (README.md).
        .define("STORE_GLOBAL", "\"st.global.cs\"")
}

/// The mixers of Granite 4.0-H tiny, micro and small, the heads of Kimi-Linear, and the residual streams of tiny, micro and
/// Kimi-Linear.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let form = |channels, norm_before_gate, wide| Form {
        out: DType::Bf16,
        channels,
        norm_before_gate,
        wide,
    };
    let mixers = [3072, 4096, 8192].map(|channels| form(channels, false, false));
    let streams = [1536, 2048, 2304].map(|channels| form(channels, false, true));
    let forms = mixers.into_iter().chain([form(128, true, false)]).chain(streams);
    forms.map(|form| source(form, arch.arch())).collect()
}

fn plan(problem: &RmsNormProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let form = Form {
        out: problem.out,
        channels: problem.channels,
        norm_before_gate: problem.norm_before_gate,
        wide: problem.out != problem.dtype,
    };
    let kernel = planner.kernel(&source(form, planner.arch()))?;
    let rows = problem.rows();
    let args = Args::new()
        .buffer(&*planner.required("x")?)
        .maybe(planner.input("gate")?.as_deref())
        .maybe(planner.input("weight")?.as_deref())
        .buffer(&*planner.output("o")?)
        .i32(int(rows)?)
        .i32(int(problem.groups)?)
        .i32(planner.is_f32("weight"))
        .i32(i32::from(problem.weight_per_group))
        .i32(i32::from(problem.gate == Some(Activation::Sigmoid)))
        .f32(problem.eps as f32);
    let tile = Tile::of(problem.channels, problem.out);
    let grid = [rows.div_ceil(tile.rows) as u32, 1, 1];
    planner.launch(kernel, Launch::new(grid, (tile.rows * tile.team) as u32, 0), args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_over_the_threads_that_fill_them() {
        for (channels, dtype, vector, team, rows) in [
            (128, DType::Bf16, 8, 16, 16),
            (4096, DType::Bf16, 8, 512, 1),
            (4096, DType::F32, 4, 512, 1),
            (3072, DType::F16, 8, 512, 1),
            (100, DType::Bf16, 4, 16, 16),
            (33, DType::F32, 1, 8, 32),
            (1, DType::Bf16, 1, 1, 256),
            (100_000, DType::Bf16, 8, 1024, 1),
        ] {
            assert_eq!(Tile::of(channels, dtype), Tile { vector, team, rows }, "{channels}");
        }
    }
}
