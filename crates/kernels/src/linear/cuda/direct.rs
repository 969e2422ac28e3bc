//! `direct`: up to 32 rows of x by weights in e4m3, which go straight to registers. The contract stands in `direct.cu`.

use super::operands::{OUTPUTS, firsts, in_storage};
use super::stream::{FEW, blocks};
use crate::DType;
use crate::cuda::{CudaVariant, Planner, arguments, int, slots};
use crate::linear::{LinearProblem, Scales};
use device::cuda::{ComputeCapability, CudaCapabilities, CudaError, GpuArch, KernelSource, Launch};

pub(super) const VARIANT: CudaVariant<LinearProblem> =
    CudaVariant { name: "direct", why_not, plan };

const PARTS: &[&str] = &[
    include_str!("../../cuda/ampere.cuh"),
    include_str!("../../cuda/storage.cuh"),
    include_str!("convolution.cuh"),
    include_str!("stream.cuh"),
    include_str!("direct.cu"),
];

/// As in `direct.cu` and `stream.cuh`.
const WARPS: usize = 8;
const ROWS: usize = 16;
const ROUND: usize = WARPS * 128;
const RING: usize = 4;
const SEGMENT: usize = 256;
const SUM_STRIDE: usize = 20;

/// Most rows of x that kernels are compiled for, and of all.
const ROWS_OF_X: [usize; 4] = [1, FEW, 16, MOST];
const MOST: usize = 32;

/// Times that a block may read x from the second cache.
const AGAIN: usize = 2;

/// Shared memory that leaves the first cache room for the weights on their way, bytes.
const LITTLE: usize = 80 << 10;

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    grouped: bool,
    /// Most rows of x.
    tokens: usize,
    normed: bool,
    x_f32: bool,
    /// Whether x is read where it is multiplied.
    through: bool,
    residual: bool,
    swiglu: bool,
    /// Of a convolution, 0 for none.
    taps: usize,
}

impl Form {
    fn of(problem: &LinearProblem, scales: Scales, share: Share) -> Self {
        let few = problem.tokens <= FEW;
        Self {
            grouped: scales == Scales::Groups,
            tokens: ROWS_OF_X.into_iter().find(|most| problem.tokens <= *most).unwrap_or(MOST),
            normed: few && problem.norm.is_some(),
            x_f32: few && problem.x_dtype == DType::F32,
            through: share.through,
            residual: problem.residual,
            swiglu: problem.swiglu,
            taps: problem.convolution.as_ref().map_or(0, |of| of.width),
        }
    }

    fn source(self, arch: GpuArch) -> KernelSource {
        let Self { grouped, tokens, normed, x_f32, through, residual, swiglu, taps } = self;
        let flags = [
            ("GROUPED", grouped),
            ("NORMED", normed),
            ("X_F32", x_f32),
            ("THROUGH", through),
            ("RESIDUAL", residual),
            ("SWIGLU", swiglu),
        ];
        let source = KernelSource::new("linear_direct", PARTS, arch)
            .define("DTYPE", DType::Bf16)
            .define("WEIGHT_BITS", 8)
            .define("TOKENS", tokens)
            .define("TAPS", taps);
        flags.into_iter().fold(source, |source, (name, flag)| source.define(name, u8::from(flag)))
    }
}

fn why_not(problem: &LinearProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    if problem.scales.is_none() {
        return Some(format!("needs weights in e4m3, got {}", problem.dtype));
    }
    if problem.tokens > MOST {
        return Some(format!("is for up to {MOST} rows of x, got {}", problem.tokens));
    }
    if problem.convolution.is_some() && problem.tokens > FEW {
        return Some(format!("convolves up to {FEW} rows of x, got {}", problem.tokens));
    }
    if !problem.inputs.is_multiple_of(16) {
        return Some(format!("needs K a multiple of 16, got {}", problem.inputs));
    }
    if let Some(norm) = problem.norm.filter(|norm| problem.tokens <= FEW && norm.groups > 1) {
        return Some(format!("normalises x as a whole, not in {} groups", norm.groups));
    }
    if Share::of(problem, here).is_none() {
        return Some(format!("has no room in shared memory for {} rows of x", problem.tokens));
    }
    problem.not_float()
}

/// What a block has in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    /// Tiles whose sums lie there at once.
    held: usize,
    /// Whether x does not lie there.
    through: bool,
    bytes: usize,
}

impl Share {
    /// All tiles' sums, or as many as take little, or as there is room for. Rows of x that have no room beside them are read where
    /// they are multiplied, if a block has so few tiles that it reads them as few times.
    fn of(problem: &LinearProblem, here: &CudaCapabilities) -> Option<Self> {
        let LinearProblem { tokens, inputs, .. } = *problem;
        let few = tokens <= FEW;
        let segments = if few && problem.norm.is_some() { inputs.div_ceil(SEGMENT) } else { 0 };
        let rounds = inputs.div_ceil(ROUND);
        let x = (tokens * (2 * rounds * ROUND + 64 + 4 * segments)).next_multiple_of(16);
        let sums = tokens.max(1) * 4 * WARPS * SUM_STRIDE;
        let tile = if problem.swiglu { ROWS / 2 } else { ROWS };
        let tiles = problem.columns().div_ceil(blocks(problem, here).max(1)).div_ceil(tile).max(1);
        // What threads park of their own is not dynamic, and a block takes a KiB more than it asks for.
        let parked = if problem.convolution.is_some() { 20 << 10 } else { 10 << 10 };
        let most = (here.shared_bytes as usize).checked_sub(parked)?;
        let beside = |x: usize, through: bool| {
            [LITTLE.min(most), most].into_iter().find_map(|room| {
                let fit = room.checked_sub(x)? / sums;
                let whole = (1..=fit).rev().find(|held| (held * rounds).is_multiple_of(RING));
                let held = if fit >= tiles { tiles } else { whole? };
                Some(Self { held, through, bytes: x + held * sums })
            })
        };
        let through = || (!few && tiles <= AGAIN).then(|| beside(0, true)).flatten();
        beside(x, false).or_else(through)
    }
}

/// What calls of models come to on Hopper.
pub(super) fn bundled() -> Vec<KernelSource> {
    let from = Form {
        grouped: false,
        tokens: 1,
        normed: true,
        x_f32: true,
        through: false,
        residual: false,
        swiglu: false,
        taps: 0,
    };
    let normed_rows = Form { x_f32: false, ..from };
    let rows = Form { normed: false, ..normed_rows };
    let onto = |form: Form| Form { residual: true, ..form };
    let gated = |form: Form| Form { swiglu: true, ..form };
    let through = |form: Form| Form { through: true, ..form };
    let convolved = Form { taps: 4, ..from };
    let any = [rows, gated(rows), onto(rows)];
    let few = [&any[..], &[from, gated(from), convolved, normed_rows, onto(normed_rows)]].concat();
    let batch = [&any[..], &[through(rows), through(onto(rows))]].concat();
    let of = |forms: &[Form], sizes: [usize; 2]| {
        let each = |form: &Form| sizes.map(|tokens| Form { tokens, ..*form });
        forms.iter().flat_map(each).collect::<Vec<_>>()
    };
    let forms = [of(&few, [1, FEW]), of(&batch, [16, MOST])].concat();
    let arch = || GpuArch::of(ComputeCapability::new(9, 0));
    forms.into_iter().map(|form| form.source(arch())).collect()
}

arguments! {
    LinearDirect: linear_direct {
        x: Pointer, w: Pointer, norm: Nullable, bias: Nullable, residual: Nullable, o0: Nullable, o1: Nullable, o2: Nullable,
        o3: Nullable, o4: Nullable, o5: Nullable, start1: i32, start2: i32, start3: i32, start4: i32, start5: i32, tokens: i32,
        inputs: i32, columns: i32, norm_f32: i32, bias_f32: i32, out_f32: i32, scale: f32, eps: f32, held: i32,
        conv_weight: Nullable, conv_bias: Nullable, initial_state: Nullable, final_state: Nullable, state_indices: Nullable,
        conv_weight_f32: i32, conv_bias_f32: i32, conv_silu: i32, conv_first: i32, conv_channels: i32, w_scale: Pointer,
    }
}

fn plan(problem: &LinearProblem, planner: &mut Planner<'_>) -> Result<(), CudaError> {
    let no_room = || CudaError::Refused { what: "no room in shared memory".to_owned() };
    let share = Share::of(problem, planner.here()).ok_or_else(no_room)?;
    let scales = problem.scales.ok_or_else(no_room)?;
    let kernel = planner.kernel(&Form::of(problem, scales, share).source(planner.arch()))?;
    let few = problem.tokens <= FEW;
    let x = if few { planner.required("x")? } else { in_storage(problem, planner)? };
    let norm = if few { planner.input("norm")? } else { None };
    let (w, bias) = (planner.required("w")?, planner.input("bias")?);
    let residual = planner.input("residual")?;
    planner.widest("w_scale", 4);
    let w_scale = planner.required("w_scale")?;
    let mut outputs = [const { None }; OUTPUTS.len()];
    for ((output, name), _) in outputs.iter_mut().zip(OUTPUTS).zip(&problem.widths) {
        *output = Some(planner.output(name)?);
    }
    let [o0, o1, o2, o3, o4, o5] = outputs.each_ref().map(Option::as_deref);
    let [start1, start2, start3, start4, start5] = firsts(problem)?;
    let convolution = problem.convolution.as_ref();
    let (conv_weight, conv_bias) = (planner.input("conv_weight")?, planner.input("conv_bias")?);
    let initial_state = planner.input("initial_state")?;
    let final_state = convolution.map(|_| planner.output("final_state")).transpose()?;
    let state_indices = planner.input("state_indices")?;
    let args = LinearDirect {
        x: &x,
        w: &w,
        norm: norm.as_deref(),
        bias: bias.as_deref(),
        residual: residual.as_deref(),
        o0,
        o1,
        o2,
        o3,
        o4,
        o5,
        start1,
        start2,
        start3,
        start4,
        start5,
        tokens: int(problem.tokens)?,
        inputs: int(problem.inputs)?,
        columns: int(problem.columns())?,
        norm_f32: planner.is_f32("norm"),
        bias_f32: planner.is_f32("bias"),
        out_f32: (problem.out == DType::F32).into(),
        scale: problem.scale as f32,
        eps: problem.norm.map_or(0.0, |norm| norm.eps) as f32,
        held: int(share.held)?,
        conv_weight: conv_weight.as_deref(),
        conv_bias: conv_bias.as_deref(),
        initial_state: initial_state.as_deref(),
        final_state: final_state.as_deref(),
        state_indices: state_indices.as_deref(),
        conv_weight_f32: planner.is_f32("conv_weight"),
        conv_bias_f32: planner.is_f32("conv_bias"),
        conv_silu: convolution.is_some_and(|of| of.silu).into(),
        conv_first: int(convolution.map_or(0, |of| of.first))?,
        conv_channels: int(convolution.map_or(0, |of| of.channels))?,
        w_scale: &w_scale,
    };
    let blocks = blocks(problem, planner.here());
    int(problem.columns() * blocks)?;
    let mut launch = Launch::new([blocks as u32, 1, 1], 32 * WARPS as u32, share.bytes as u32);
    // Its weights come while the kernel ahead ends; it waits for that one itself before it reads x.
    launch.overlaps = planner.here().compute >= ComputeCapability::new(9, 0);
    planner.launch(kernel, launch, args);
    let Some(of) = convolution else { return Ok(()) };
    slots::hand_on(planner, &of.slots, problem.tokens, of.channels * (of.width - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::cuda::stream::tests::gpu;
    use crate::linear::{LinearOp, LinearOptions, SCALED};
    use crate::{Family, Inputs, Tensor, TensorMap};
    use device::cuda::BundledArch;

    fn call(tokens: usize, inputs: usize, outputs: usize, groups: usize) -> LinearProblem {
        let tensor =
            |name: &str, shape: &[usize], dtype| (name.to_owned(), Tensor::poisoned(shape, dtype));
        let tensors = TensorMap::from([
            tensor("x", &[tokens, inputs], DType::Bf16),
            tensor("w", &[outputs, inputs], DType::E4m3),
            tensor("w_scale", &[groups, outputs], DType::F32),
        ]);
        LinearOp::parse(Inputs::of_map(LinearOp::SPEC, &tensors), &LinearOptions::default())
            .unwrap()
    }

    #[test]
    fn tiles_that_do_not_fit_at_once_come_in_whole_rings() {
        let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
        for tokens in 0..=MOST {
            for inputs in [16, 2048, 4096, 8192_usize] {
                for (outputs, tiles) in [(2048, 1), (8512, 5), (100_352, 48)] {
                    for groups in [1, inputs.div_ceil(SCALED)] {
                        let problem = call(tokens, inputs, outputs, groups);
                        let Some(share) = Share::of(&problem, &gpu(hopper)) else {
                            assert!(tokens > FEW && tiles > AGAIN, "{tokens} of {inputs}");
                            continue;
                        };
                        assert_eq!(why_not(&problem, &gpu(hopper)), None, "{tokens} of {inputs}");
                        assert!(share.bytes + (10 << 10) <= hopper.shared_bytes as usize);
                        assert!(!share.through || tokens > FEW && tiles <= AGAIN);
                        let batches = share.held * inputs.div_ceil(ROUND);
                        if tokens > 0 {
                            assert!(
                                share.held == tiles || batches % RING == 0 && share.held < tiles,
                                "{tokens} of {inputs} to {outputs}: {share:?}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn one_sentence_says_why_not() {
        let hopper = BundledArch::ALL.iter().find(|arch| arch.compute.major == 9).unwrap();
        let refusal = |problem: &LinearProblem| why_not(problem, &gpu(hopper)).unwrap();
        assert_eq!(refusal(&call(33, 2048, 64, 1)), "is for up to 32 rows of x, got 33");
        assert_eq!(refusal(&call(1, 24, 64, 1)), "needs K a multiple of 16, got 24");
        let wide = refusal(&call(8, 32_768, 64, 1));
        assert_eq!(wide, "has no room in shared memory for 8 rows of x");
    }
}
