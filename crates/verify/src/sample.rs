//! Checking a large call on a sample of it.
//!
//! A float64 reference of a benchmark's shape would take minutes. Heads and sequences do not mix in any op, so the
//! variant runs on the whole inputs and one drawn (sequence, head) part of its outputs is held against the reference
//! of that part alone. Attention rows do not mix either: there only the last tokens of the queries are recomputed.

use crate::judge::{Judgement, against, run, unbelievable};
use crate::{Draw, Verified};
use device::Device;
use facts::Status;
use kernels::{Call, DType, Op, Settings, Tensor, TensorMap};
use std::ops::Range;

/// What a dimension of a tensor runs over, as far as sampling cuts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Axis {
    /// Kept whole.
    Whole,
    /// Sequences.
    Batch,
    /// Query tokens, of which the last few are kept.
    QueryTokens,
    /// Heads of the first kind (queries; heads of an SSD; channels of a convolution).
    Head,
    /// Heads of the second kind, shared by or sharing those of the first.
    Shared,
}

use Axis::{Batch, Head, QueryTokens, Shared, Whole};

/// One op's axes: tensor names (inputs and outputs) with their dense shapes.
struct Layout {
    op: &'static str,
    /// Tensor whose shape gives the number of heads of the first kind, and the dimension.
    heads: (&'static str, usize),
    /// The same for the second kind.
    shared: (&'static str, usize),
    tensors: &'static [(&'static str, &'static [Axis])],
}

/// Query tokens recomputed where rows do not mix.
const QUERY_TOKENS: usize = 32;

const LAYOUTS: &[Layout] = &[
    Layout {
        op: "attention",
        heads: ("q", 2),
        shared: ("k", 2),
        tensors: &[
            ("q", &[Batch, QueryTokens, Head, Whole]),
            ("k", &[Batch, Whole, Shared, Whole]),
            ("v", &[Batch, Whole, Shared, Whole]),
            ("o", &[Batch, QueryTokens, Head, Whole]),
            ("lse", &[Batch, Head, QueryTokens]),
        ],
    },
    Layout {
        op: "kda",
        heads: ("v", 2),
        shared: ("q", 2),
        tensors: &[
            ("q", &[Batch, Whole, Shared, Whole]),
            ("k", &[Batch, Whole, Shared, Whole]),
            ("v", &[Batch, Whole, Head, Whole]),
            ("g", &[Batch, Whole, Head, Whole]),
            ("beta", &[Batch, Whole, Head]),
            ("A_log", &[Head]),
            ("dt_bias", &[Head, Whole]),
            ("initial_state", &[Batch, Head, Whole, Whole]),
            ("o", &[Batch, Whole, Head, Whole]),
            ("final_state", &[Batch, Head, Whole, Whole]),
        ],
    },
    Layout {
        op: "ssd",
        heads: ("x", 2),
        shared: ("B", 2),
        tensors: &[
            ("x", &[Batch, Whole, Head, Whole]),
            ("dt", &[Batch, Whole, Head]),
            ("A", &[Head]),
            ("B", &[Batch, Whole, Shared, Whole]),
            ("C", &[Batch, Whole, Shared, Whole]),
            ("D", &[Head]),
            ("z", &[Batch, Whole, Head, Whole]),
            ("dt_bias", &[Head]),
            ("initial_state", &[Batch, Head, Whole, Whole]),
            ("o", &[Batch, Whole, Head, Whole]),
            ("final_state", &[Batch, Head, Whole, Whole]),
        ],
    },
    Layout {
        op: "conv1d",
        heads: ("x", 2),
        shared: ("x", 2),
        tensors: &[
            ("x", &[Batch, Whole, Head]),
            ("weight", &[Head, Whole]),
            ("bias", &[Head]),
            ("initial_state", &[Batch, Head, Whole]),
            ("o", &[Batch, Whole, Head]),
            ("final_state", &[Batch, Head, Whole]),
        ],
    },
    Layout {
        op: "nsa",
        heads: ("q", 2),
        shared: ("k", 2),
        tensors: &[
            ("q", &[Batch, QueryTokens, Head, Whole]),
            ("k", &[Batch, Whole, Shared, Whole]),
            ("v", &[Batch, Whole, Shared, Whole]),
            ("g_cmp", &[Batch, QueryTokens, Head]),
            ("g_slc", &[Batch, QueryTokens, Head]),
            ("g_swa", &[Batch, QueryTokens, Head]),
            ("o", &[Batch, QueryTokens, Head, Whole]),
            ("indices", &[Batch, QueryTokens, Shared, Whole]),
            ("reads", &[Batch, QueryTokens, Shared, Whole]),
        ],
    },
];

/// One drawn part of a dense call: what to keep of each axis.
#[derive(Debug, Clone)]
pub struct Sample {
    op: &'static str,
    batch: Range<usize>,
    heads: Range<usize>,
    shared: Range<usize>,
}

impl Sample {
    /// Draws a sequence and a group of heads of a dense call.
    ///
    /// # Errors
    /// One sentence, when the call has a form that is not cut (packed, paged, slots) or no layout is known for the op.
    pub fn draw(op: &str, inputs: &TensorMap, draw: &mut Draw) -> Result<Self, String> {
        let layout = layout(op)?;
        for (name, tensor) in inputs {
            match layout.tensors.iter().find(|(known, _)| known == name) {
                Some((_, axes)) if axes.len() == tensor.shape().len() => {}
                _ => {
                    return Err(format!(
                        "tensor `{name}` {:?} is of a form that is not sampled",
                        tensor.shape()
                    ));
                }
            }
        }
        let size =
            |(name, at): (&str, usize)| inputs.get(name).map_or(0, |tensor| tensor.shape()[at]);
        let (batch, heads, shared) =
            (size((layout.heads.0, 0)), size(layout.heads), size(layout.shared));
        if batch == 0 || heads == 0 || shared == 0 {
            return Err("the call is empty".to_owned());
        }
        // Channels of a convolution are cheap and many: a strip of them. Otherwise all heads around one shared head.
        let (heads, shared) = if layout.heads == layout.shared {
            let count = heads.min(64);
            let start = draw.below(heads - count + 1);
            (start..start + count, start..start + count)
        } else if heads >= shared {
            let (pick, group) = (draw.below(shared), heads / shared);
            // NSA chooses blocks for a whole group at once; elsewhere one head of the group is enough.
            if op == "nsa" {
                (pick * group..(pick + 1) * group, pick..pick + 1)
            } else {
                let head = pick * group + draw.below(group);
                (head..head + 1, pick..pick + 1)
            }
        } else {
            return Err(format!("{heads} heads over {shared} shared ones"));
        };
        let sequence = draw.below(batch);
        Ok(Self { op: layout.op, batch: sequence..sequence + 1, heads, shared })
    }

    fn cut(&self, tensors: &TensorMap) -> Result<TensorMap, String> {
        let layout = layout(self.op)?;
        let mut cut = TensorMap::new();
        for (name, tensor) in tensors {
            let Some((_, axes)) = layout.tensors.iter().find(|(known, _)| known == name) else {
                return Err(format!("tensor `{name}` is of a form that is not sampled"));
            };
            let ranges: Vec<Range<usize>> = axes
                .iter()
                .zip(tensor.shape())
                .map(|(axis, size)| match axis {
                    Whole => 0..*size,
                    Batch => self.batch.clone(),
                    QueryTokens => size.saturating_sub(QUERY_TOKENS)..*size,
                    Head => self.heads.clone(),
                    Shared => self.shared.clone(),
                })
                .collect();
            cut.insert(name.clone(), slice(tensor, &ranges));
        }
        Ok(cut)
    }
}

fn layout(op: &str) -> Result<&'static Layout, String> {
    LAYOUTS
        .iter()
        .find(|layout| layout.op == op)
        .ok_or_else(|| format!("op `{op}` has no layout to sample by"))
}

/// The part of a tensor inside one range a dimension.
fn slice(tensor: &Tensor, ranges: &[Range<usize>]) -> Tensor {
    let shape: Vec<usize> = ranges.iter().map(ExactSizeIterator::len).collect();
    let values = tensor.to_f64();
    let mut out = Vec::with_capacity(shape.iter().product());
    copy(&values, tensor.shape(), ranges, 0, &mut out);
    let part = Tensor::new(&shape, out);
    if tensor.dtype() == DType::F64 { part } else { part.cast(tensor.dtype()) }
}

fn copy(values: &[f64], shape: &[usize], ranges: &[Range<usize>], base: usize, out: &mut Vec<f64>) {
    match (shape, ranges) {
        ([_], [range]) => out.extend_from_slice(&values[base + range.start..base + range.end]),
        ([_, inner @ ..], [range, rest @ ..]) => {
            let stride: usize = inner.iter().product();
            range.clone().for_each(|index| copy(values, inner, rest, base + index * stride, out));
        }
        _ => out.push(values[base]),
    }
}

/// Runs `variant` on the whole call and holds a drawn part of its outputs against the reference of that part.
///
/// # Errors
/// The failed judgement, when it may not be believed; its reason says why.
pub fn admit<'a>(
    op: &dyn Op,
    call: &'a dyn Call,
    (inputs, settings): (&TensorMap, &Settings),
    device: &'a Device,
    variant: &str,
    seed: u64,
) -> Result<Verified<'a>, String> {
    let sample = Sample::draw(op.spec().name, inputs, &mut Draw::new(seed))?;
    let mut execution = call.prepare(device, variant).map_err(|error| error.to_string())?;
    let ran = run(execution.as_mut(), device);
    if let Some(judgement) = unbelievable(&ran, execution.kernel()) {
        return Err(judgement.reason);
    }
    let (part_inputs, part_outputs) = (sample.cut(inputs)?, sample.cut(execution.outputs())?);
    let part = op
        .bind(&part_inputs, settings)
        .map_err(|error| format!("the sample does not bind: {error}"))?;
    let reference = part.reference_for(&part_outputs)?;
    match against(part.as_ref(), &part_outputs, &reference) {
        Judgement { status: Status::Pass, agreement: Some(agreement), .. } => {
            // Outside the sample nothing is compared, but nothing may be unwritten either.
            match execution
                .outputs()
                .iter()
                .find_map(|(name, tensor)| tensor.first_nan().map(|at| (name, at)))
            {
                Some((name, at)) => Err(format!("output `{name}` is NaN at element {at}")),
                None => Ok(Verified::new(execution, agreement)),
            }
        }
        judgement => Err(judgement.reason),
    }
}
