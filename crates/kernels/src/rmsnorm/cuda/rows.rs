//! `rows`: a team of threads a row, any size and storage type. The contract stands in `rows.cu`.

use crate::DType;
use crate::cuda::{CudaVariant, Planner, arguments, int};
use crate::rmsnorm::{Activation, RmsNormProblem};
use device::cuda::{
    Args, Buffer, BundledArch, ComputeCapability, CudaCapabilities, CudaError, GpuArch,
    KernelSource, Launch,
};

pub(super) const VARIANT: CudaVariant<RmsNormProblem> = CudaVariant { name: "rows", why_not, plan };

const PARTS: &[&str] = &[
    include_str!("../../cuda/order.cuh"),
    include_str!("../../cuda/storage.cuh"),
    include_str!("rows.cu"),
];

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
pub(crate) struct Form {
    /// Type of o, and of x unless that is f32.
    pub(crate) out: DType,
    pub(crate) channels: usize,
    pub(crate) norm_before_gate: bool,
    /// Whether x is f32 and o is not.
    pub(crate) wide: bool,
    /// Whether tokens of x or of the gate lie apart.
    pub(crate) strided: bool,
}

impl Form {
    fn launch(self, rows: usize) -> Launch {
        let tile = Tile::of(self.channels, self.out);
        Launch::new([rows.div_ceil(tile.rows) as u32, 1, 1], (tile.rows * tile.team) as u32, 0)
    }
}

arguments! {
    RmsnormRows: rmsnorm_rows {
        x: Pointer, gate: Nullable, weight: Nullable, o: Pointer, rows: i32, groups: i32, x_row: i32, gate_row: i32,
        weight_f32: i32, weight_per_group: i32, use_sigmoid: i32, eps: f32,
    }
}

/// What the kernel is given.
pub(crate) struct Rows<'a> {
    pub(crate) x: &'a Buffer,
    pub(crate) gate: Option<&'a Buffer>,
    /// Elements from one token to the next of x and of the gate; read where the form is strided.
    pub(crate) apart: [i32; 2],
    pub(crate) weight: Option<&'a Buffer>,
    /// 1 where the weight is f32.
    pub(crate) weight_f32: i32,
    pub(crate) weight_per_group: bool,
    /// Whether the gate's activation is a sigmoid, not silu.
    pub(crate) sigmoid: bool,
    /// Groups of all tokens.
    pub(crate) count: usize,
    /// Groups of a token.
    pub(crate) groups: usize,
    pub(crate) eps: f64,
}

impl Rows<'_> {
    fn args(&self, o: &Buffer) -> Result<Args, CudaError> {
        let args = RmsnormRows {
            x: self.x,
            gate: self.gate,
            weight: self.weight,
            o,
            rows: int(self.count)?,
            groups: int(self.groups)?,
            x_row: self.apart[0],
            gate_row: self.apart[1],
            weight_f32: self.weight_f32,
            weight_per_group: i32::from(self.weight_per_group),
            use_sigmoid: i32::from(self.sigmoid),
            eps: self.eps as f32,
        };
        Ok(args.into())
    }
}

fn source(form: Form, arch: GpuArch) -> KernelSource {
    let Form { out, channels, norm_before_gate, wide, strided } = form;
    let tile = Tile::of(channels, out);
    let source = KernelSource::new("rmsnorm_rows", PARTS, arch)
        .define("DTYPE", out)
        .define("WIDE_X", u8::from(wide))
        .define("SIZE", channels)
        .define("VECTOR", tile.vector)
        .define("TEAM", tile.team)
        .define("ROWS", tile.rows)
        .define("NORM_BEFORE_GATE", u8::from(norm_before_gate))
        // o is not read again: 50 us with this where it takes 54 without (README.md).
        .define("STORE_GLOBAL", "\"st.global.cs\"");
    if strided { source.define("STRIDED", 1) } else { source }
}

/// The mixers of Granite 4.0-H tiny, micro and small, the heads of Kimi-Linear, and the residual streams of tiny, micro and
/// Kimi-Linear.
pub(super) fn bundled(arch: &BundledArch) -> Vec<KernelSource> {
    let form = |channels, norm_before_gate, wide| Form {
        out: DType::Bf16,
        channels,
        norm_before_gate,
        wide,
        strided: false,
    };
    let mixers = [3072, 4096, 8192].map(|channels| form(channels, false, false));
    // Their gates are parts of a projection in transformers.
    let strided = mixers.map(|form| Form { strided: true, ..form });
    let streams = [1536, 2048, 2304].map(|channels| form(channels, false, true));
    let forms = mixers.into_iter().chain(strided).chain([form(128, true, false)]).chain(streams);
    forms.map(|form| source(form, arch.arch())).collect()
}

fn plan(problem: &RmsNormProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let width = problem.groups * problem.channels;
    let apart = [planner.row("x", width)?, planner.row("gate", width)?];
    let vector = Tile::of(problem.channels, problem.out).vector;
    for (tensor, apart) in ["x", "gate"].into_iter().zip(apart) {
        if !(apart as usize).is_multiple_of(vector) {
            return Err(CudaError::Layout {
                tensor,
                wanted: "with tokens at multiples of 16 bytes",
            });
        }
    }
    let form = Form {
        out: problem.out,
        channels: problem.channels,
        norm_before_gate: problem.norm_before_gate,
        wide: problem.out != problem.x_dtype,
        strided: apart != [int(width)?; 2],
    };
    let kernel = planner.kernel(&source(form, planner.arch()))?;
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
    let args = rows.args(&*planner.output("o")?)?;
    let launch = planner.overlapping(form.launch(rows.count));
    planner.launch(kernel, launch, args);
    Ok(())
}

/// The norm of x (as `form` says: no gate) as what makes ready the input of another op's kernel: `count` groups of
/// `form.channels`, `groups` to a row, into `o`.
///
/// # Errors
/// As [`Planner::kernel`].
pub(crate) fn plan_ahead(
    form: Form,
    rows: &Rows<'_>,
    o: &Buffer,
    planner: &mut Planner<'_>,
) -> Result<(), CudaError> {
    let kernel = planner.kernel(&source(form, planner.arch()))?;
    let launch = planner.overlapping(form.launch(rows.count));
    planner.launch_ahead(kernel, launch, rows.args(o)?);
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
