//! Operands of the kernels for many rows: x in the storage type, dequantized weights, and the operands of the
//! epilogue.

use crate::rmsnorm::rows;
use crate::{Expand, Planner, arguments, expand, int, source};
use device::cuda::{
    Buffer, ComputeCapability, CudaCapabilities, DeviceError, GpuArch, KernelSource, Launch, Part,
};
use ops::DType;
use ops::linear::{LinearProblem, Scales};
use std::sync::Arc;

const ROUND: &[Part] = &[source!("../include/storage.cuh"), source!("round.cu")];

/// Elements that a block of `round.cu` rounds.
const ROUNDED: usize = 2048;

/// Outputs that a kernel can write.
pub(super) const OUTPUTS: [&str; 6] = ["o", "o1", "o2", "o3", "o4", "o5"];

/// Compile-time parameters of a kernel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) dtype: DType,
    pub(super) swiglu: bool,
    pub(super) squared: bool,
    /// Whether o is f32.
    pub(super) float: bool,
    pub(super) bias: bool,
}

impl Form {
    /// Common epilogues of model layers: none, a bias, SwiGLU, squared ReLU, and sums onto the residual stream.
    pub(super) const COMMON: [Self; 5] = [
        Self::bf16(false, false),
        Self { bias: true, ..Self::bf16(false, false) },
        Self::bf16(true, false),
        Self { squared: true, ..Self::bf16(false, false) },
        Self::bf16(false, true),
    ];

    const fn bf16(swiglu: bool, float: bool) -> Self {
        Self { dtype: DType::Bf16, swiglu, squared: false, float, bias: false }
    }

    pub(super) fn of(problem: &LinearProblem) -> Self {
        Self {
            dtype: problem.dtype,
            swiglu: problem.swiglu,
            squared: problem.squared,
            float: problem.out != problem.dtype,
            bias: problem.bias,
        }
    }

    /// Type of the outputs.
    pub(super) fn out(self) -> DType {
        if self.float { DType::F32 } else { self.dtype }
    }

    /// Adds the macros that both kernels have.
    pub(super) fn define(self, source: KernelSource) -> KernelSource {
        squared(source, self.squared)
            .define("DTYPE", self.dtype)
            .define("SWIGLU", u8::from(self.swiglu))
            .define("FLOAT_OUT", u8::from(self.float))
            .define("BIAS", u8::from(self.bias))
    }
}

/// Adds the macro of squared ReLU only if it is used, so that other kernels keep their source.
pub(super) fn squared(source: KernelSource, squared: bool) -> KernelSource {
    if squared { source.define("SQUARED", 1) } else { source }
}

arguments! {
    /// The last parameters of both kernels.
    pub(super) Rest {
        residual: Nullable, bias: Nullable, bias_f32: i32, first1: i32, first2: i32, first3: i32, first4: i32, first5: i32,
        rows: i32, columns: i32, channels: i32, group: i32, scale: f32,
    }
}

/// The operands of one call.
pub(super) struct Operands {
    /// In the storage type, normalized if requested.
    pub(super) x: Arc<Buffer>,
    pub(super) w: Arc<Buffer>,
    pub(super) residual: Option<Arc<Buffer>>,
    /// One to six, with their widths.
    pub(super) outputs: Vec<(Arc<Buffer>, usize)>,
    bias: Option<Arc<Buffer>>,
    bias_f32: i32,
    /// First column of the second to sixth output; the number of columns for absent ones.
    firsts: [i32; 5],
    rows: i32,
    columns: i32,
    channels: i32,
    scale: f32,
}

impl Operands {
    /// Uploads the inputs and plans the prologue launches for x.
    pub(super) fn new(
        problem: &LinearProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let columns = int(problem.columns())?;
        let output = |(name, width): (&&str, &usize)| Ok((planner.output(name)?, *width));
        let outputs =
            OUTPUTS.iter().zip(&problem.widths).map(output).collect::<Result<_, DeviceError>>()?;
        Ok(Self {
            x: in_storage(problem, planner)?,
            w: weights(problem, planner)?,
            residual: planner.input("residual")?,
            outputs,
            bias: planner.input("bias")?,
            bias_f32: planner.is_f32("bias"),
            firsts: firsts(problem)?,
            rows: int(problem.tokens)?,
            columns,
            channels: int(problem.inputs)?,
            scale: problem.scale as f32,
        })
    }

    /// One value for each output parameter; absent outputs repeat the first, which the kernel does not write through
    /// them.
    pub(super) fn each_output<T: Copy>(&self, of: impl Fn(usize) -> T) -> [T; 6] {
        std::array::from_fn(|output| of(if output < self.outputs.len() { output } else { 0 }))
    }

    pub(super) fn rest(&self, group: usize) -> Result<Rest<'_>, DeviceError> {
        let [first1, first2, first3, first4, first5] = self.firsts;
        let Self { bias_f32, rows, columns, channels, scale, .. } = *self;
        let (residual, bias) = (self.residual.as_deref(), self.bias.as_deref());
        Ok(Rest {
            residual,
            bias,
            bias_f32,
            first1,
            first2,
            first3,
            first4,
            first5,
            rows,
            columns,
            channels,
            group: int(group)?,
            scale,
        })
    }
}

/// First column of the second to sixth output; the number of columns for absent ones.
pub(super) fn firsts(problem: &LinearProblem) -> Result<[i32; 5], DeviceError> {
    let (mut firsts, mut first) = ([int(problem.columns())?; 5], 0);
    for (begin, width) in firsts.iter_mut().zip(&problem.widths) {
        first += width;
        *begin = int(first)?;
    }
    Ok(firsts)
}

arguments! {
    LinearRound: linear_round {
        x: Pointer, o: Pointer, count: i64,
    }
}

/// x in the storage type: a separate launch normalizes or rounds it if needed.
pub(super) fn in_storage(
    problem: &LinearProblem,
    planner: &mut Planner<'_>,
) -> Result<Arc<Buffer>, DeviceError> {
    let x = planner.required("x")?;
    let wide = problem.x_dtype != problem.dtype;
    if problem.norm.is_none() && !wide {
        return Ok(x);
    }
    let elements = problem.tokens * problem.inputs;
    let ready = planner.scratch(elements.div_ceil(2))?;
    if let Some(norm) = problem.norm {
        let form = rows::Form {
            out: problem.dtype,
            channels: problem.inputs / norm.groups,
            norm_before_gate: false,
            wide,
            strided: false,
        };
        let weight = planner.input("norm")?;
        let rows = rows::Rows {
            x: &x,
            gate: None,
            weight: weight.as_deref(),
            weight_f32: planner.is_f32("norm"),
            weight_per_group: norm.groups > 1,
            sigmoid: false,
            apart: [int(problem.inputs)?; 2],
            count: problem.tokens * norm.groups,
            groups: norm.groups,
            eps: norm.eps,
        };
        rows::plan_ahead(form, &rows, &ready, planner)?;
    } else {
        let source = KernelSource::new("linear_round", ROUND, planner.arch());
        let kernel = planner.kernel(&source.define("DTYPE", problem.dtype))?;
        let args = LinearRound { x: &x, o: &ready, count: elements as i64 };
        let blocks = elements.div_ceil(ROUNDED) as u32;
        planner.launch_auxiliary(kernel, Launch::new([blocks, 1, 1], 256, 0), args);
    }
    Ok(ready)
}

/// The bundled dequantize kernels: only for Hopper, where `direct` is bundled too.
pub(super) fn bundled() -> Vec<KernelSource> {
    let hopper = || GpuArch::of(ComputeCapability::new(9, 0));
    [DType::E4m3, DType::I8, DType::U4].map(|weights| expand::source(weights, hopper())).to_vec()
}

/// Bits of a scale as kernels encode its type: 16 for f16, 17 for bf16, 32 for f32.
pub(super) fn factor_bits(planner: &mut Planner<'_>) -> i32 {
    let bits = match planner.dtype("w_scale") {
        Some(DType::F16) => 16,
        Some(DType::Bf16) => 17,
        _ => 32,
    };
    planner.widest("w_scale", bits / 8);
    planner.widest("w_zero", 1);
    planner.widest("w_offset", 4);
    bits as i32
}

/// w in the storage type: as given, or dequantized by a preceding launch. A kernel that reads w before it waits must
/// not overlap that launch.
fn weights(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<Arc<Buffer>, DeviceError> {
    let w = planner.required("w")?;
    let Some(scales) = problem.scales else { return Ok(w) };
    let factor_bits = factor_bits(planner);
    let w_scale = planner.required("w_scale")?;
    let (w_zero, w_offset) = (planner.input("w_zero")?, planner.input("w_offset")?);
    let order = planner.input("x_order")?;
    Expand {
        dtype: problem.w_dtype,
        w: &w,
        scale: &w_scale,
        factor_bits,
        zero: w_zero.as_deref(),
        offset: w_offset.as_deref(),
        order: order.as_deref(),
        shape: [1, problem.outputs, problem.inputs],
        group: if scales == Scales::Rows { problem.inputs } else { problem.w_group },
    }
    .plan(planner)
}

/// Why kernels for many rows cannot take this call.
pub(super) fn not_many(problem: &LinearProblem) -> Option<String> {
    let convolution = "convolves no columns: `stream` does, of few rows".to_owned();
    // Weights dequantized to bf16 are rounded once more, which is visible if K is no multiple of 16.
    let whole = problem.scales.is_none() || problem.inputs.is_multiple_of(16);
    let ragged = (!whole).then(|| format!("needs K a multiple of 16 of {}", problem.w_dtype));
    problem.convolution.as_ref().map(|_| convolution).or(ragged).or_else(|| not_half(problem))
}

/// Why kernels that multiply 16 bits cannot take this call.
pub(super) fn not_half(problem: &LinearProblem) -> Option<String> {
    match problem.dtype {
        DType::Bf16 | DType::F16 => None,
        other => Some(format!("needs bf16 or f16 weights, got {other}")),
    }
}

/// Tiles of `columns` columns next to each other: each output has separate tiles.
pub(super) fn across(problem: &LinearProblem, columns: usize) -> usize {
    problem.widths.iter().map(|width| width.div_ceil(columns)).sum()
}

/// Vertically adjacent tiles whose rows of x, `tile_rows` each, fit in a third of L2 while weights stream through.
pub(super) fn group(problem: &LinearProblem, here: &CudaCapabilities, tile_rows: usize) -> usize {
    let bytes = problem.dtype.bytes() * problem.inputs * tile_rows;
    (here.l2_bytes as usize / 3 / bytes).max(1)
}
