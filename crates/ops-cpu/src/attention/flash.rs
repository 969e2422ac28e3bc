//! Tiled attention with online softmax (FlashAttention) on the CPU. `crates/ops/src/attention/README.md` has the derivation and the
//! layouts.

mod buffer;
mod output;
mod panel;
mod plan;
mod scheme;
mod softmax;
mod storage;
mod stream;

use crate::simd::dispatch;
use device::{Device, Isa, SharedMut};
use half::{bf16, f16};
use ops::attention::AttentionProblem;
use ops::{DType, Inputs, TensorMap};
use output::Output;
use plan::{Item, Plan, Tiling};
#[cfg(target_arch = "x86_64")]
use scheme::Pairs;
use scheme::Widened;
use softmax::Logits;

/// The tensors of one call, shared by all its blocks.
struct Operands<'a, E> {
    problem: &'a AttentionProblem,
    logits: Logits,
    q: &'a [E],
    k: &'a [E],
    v: &'a [E],
    output: Output<'a, E>,
}

impl<E> Operands<'_, E> {
    /// The query of a stacked row, [D].
    fn q_row(&self, item: &Item, kv_head: usize, row: usize) -> &[E] {
        let (heads, dim, group) = (self.problem.heads, self.problem.head_dim, self.problem.group());
        let token = self.problem.queries.range(item.sequence).start + row / group;
        let head = kv_head * group + row % group;
        &self.q[(token * heads + head) * dim..][..dim]
    }

    /// A key, [D].
    fn k_row(&self, row: usize, kv_head: usize) -> &[E] {
        let dim = self.problem.head_dim;
        &self.k[(row * self.problem.kv_heads + kv_head) * dim..][..dim]
    }

    /// A value, [Dv].
    fn v_row(&self, row: usize, kv_head: usize) -> &[E] {
        let at = (row * self.problem.kv_heads + kv_head) * self.problem.value_stride();
        &self.v[at..][..self.problem.value_dim]
    }
}

/// Computes `o` and `lse` with the vectors of `isa`.
pub(super) fn run(
    isa: Isa,
    problem: &AttentionProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    match problem.dtype {
        #[cfg(target_arch = "x86_64")]
        DType::Bf16 if isa == Isa::Avx512Bf16 => {
            run_with::<Pairs>(isa, problem, inputs, device, outputs);
        }
        DType::Bf16 => run_with::<Widened<bf16>>(isa, problem, inputs, device, outputs),
        DType::F16 => run_with::<Widened<f16>>(isa, problem, inputs, device, outputs),
        _ => run_with::<Widened<f32>>(isa, problem, inputs, device, outputs),
    }
}

fn run_with<P: panel::Products + stream::Products>(
    isa: Isa,
    problem: &AttentionProblem,
    inputs: Inputs<'_>,
    device: &Device,
    outputs: &mut TensorMap,
) {
    let (dim, value_dim) = (problem.head_dim, problem.value_dim);
    let tiling = Tiling {
        panel_rows: panel::panel_rows(isa),
        most_panels: panel::panels(isa, dim, value_dim),
        stream_rows: stream::MAX_ROWS,
    };
    let plan = Plan::new(problem, tiling);
    let mut partial_o = vec![0.0; plan.partial_rows * value_dim];
    let mut partial_lse = vec![0.0; plan.partial_rows];
    let (mut o, mut lse) = (None, None);
    for (name, tensor) in outputs {
        match name.as_str() {
            "o" => o = tensor.view_mut::<P::Element>(),
            _ => lse = tensor.view_mut::<f32>(),
        }
    }
    let view = |name| inputs.tensor(name).view::<P::Element>().unwrap_or_default();
    let operands = Operands {
        problem,
        logits: Logits::new(problem.scale, problem.softcap),
        q: view("q"),
        k: view("k"),
        v: view(problem.values()),
        output: Output {
            problem,
            o: SharedMut::new(o.unwrap_or_default()),
            lse: SharedMut::new(lse.unwrap_or_default()),
            partial_o: SharedMut::new(&mut partial_o),
            partial_lse: SharedMut::new(&mut partial_lse),
        },
    };

    let kernel = format!("attention.flash.{isa}");
    let scratch = || {
        let panels = panel::Scratch::new(isa, plan.panels, dim, value_dim);
        (panels, stream::Scratch::new(plan.heads, dim, value_dim))
    };
    let streams = |item: &Item| item.rows.len() <= tiling.stream_rows;
    let body = |(panels, stream): &mut (panel::Scratch, stream::Scratch), block: usize| {
        let (operands, item) = (&operands, &plan.items[block]);
        if streams(item) {
            dispatch(isa, stream::Block::<P> { operands, item, scratch: stream });
        } else {
            dispatch(isa, panel::Block::<P> { operands, item, scratch: panels });
        }
    };
    if plan.items.iter().all(streams) {
        device.launch_streaming(&kernel, plan.items.len(), scratch, body);
    } else {
        device.launch(&kernel, plan.items.len(), scratch, body);
    }
    if !plan.merges.is_empty() {
        let merge = |values: &mut Vec<f32>, block: usize| {
            operands.output.merge(&plan.merges[block], values)
        };
        device.launch(&format!("{kernel}.merge"), plan.merges.len(), Vec::new, merge);
    }
}
