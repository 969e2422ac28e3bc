//! Operands that all kernels of nsa share: tensors on the GPU and the sizes of the problem.

use crate::{Planner, arguments, int};
use device::cuda::{Buffer, ComputeCapability, DeviceError, KernelSource};
use ops::DType;
use ops::nsa::{Gate, NsaProblem};
use std::sync::Arc;

/// Heads of one query that are the rows of one matrix product: `HEAD_ROWS` of `common.cuh`.
pub(super) const HEAD_ROWS: usize = 16;

/// Compute capability of the kernels that need Hopper's register count or `wgmma`.
pub(super) const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);

/// Bytes of a row of `channels` elements in shared memory: `Rows<channels>::stride` of `ampere.cuh`.
pub(super) const fn row_bytes(channels: usize) -> usize {
    let padded = channels.next_multiple_of(16);
    2 * padded + if padded.is_multiple_of(64) { 0 } else { 16 }
}

arguments! {
    /// Gates of the three branches.
    pub(super) Gates { g_cmp: Nullable, g_slc: Nullable, g_swa: Nullable, gates_f32: i32, gate_kind: i32 }
}
arguments! {
    /// Offsets of packed sequences and their longest lengths.
    pub(super) Sequences { cu_q: Nullable, cu_k: Nullable, tq: i32, tk: i32 }
}

/// The operands of one call.
pub(super) struct Operands {
    pub(super) q: Arc<Buffer>,
    pub(super) k: Arc<Buffer>,
    pub(super) v: Arc<Buffer>,
    pub(super) o: Arc<Buffer>,
    pub(super) indices: Arc<Buffer>,
    pub(super) reads: Arc<Buffer>,
    /// Gates of the compressed, the selected and the window branch.
    gates: [Option<Arc<Buffer>>; 3],
    gates_f32: i32,
    gate_kind: i32,
    /// Offsets of packed queries.
    cu_queries: Option<Arc<Buffer>>,
    /// Offsets of packed keys.
    pub(super) cu_keys: Option<Arc<Buffer>>,
    /// Queries of the longest sequence.
    pub(super) queries: usize,
    /// Keys of the longest sequence.
    pub(super) keys: usize,
    pub(super) batch: usize,
    pub(super) kv_heads: usize,
    /// Tiles of 16 heads of a key head's group.
    pub(super) slabs: usize,
    pub(super) heads: i32,
}

impl Operands {
    /// Uploads the inputs.
    pub(super) fn new(
        problem: &NsaProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let packed = problem.queries.batch_and_tokens().is_none();
        let offsets = match planner.shape("cu_seqlens_k") {
            [] => "cu_seqlens",
            _ => "cu_seqlens_k",
        };
        let names = ["g_cmp", "g_slc", "g_swa"];
        let mut gates = [None, None, None];
        let mut gates_f32 = 0;
        for (branch, name) in names.into_iter().enumerate() {
            gates_f32 |= planner.is_f32(name) << branch;
            gates[branch] = planner.input(name)?;
        }
        Ok(Self {
            q: planner.required("q")?,
            k: planner.required("k")?,
            v: planner.required("v")?,
            o: planner.output("o")?,
            indices: planner.output("indices")?,
            reads: planner.output("reads")?,
            gates,
            gates_f32,
            gate_kind: match problem.gate {
                Gate::Given => 0,
                Gate::Sigmoid => 1,
                Gate::Softmax => 2,
            },
            cu_queries: if packed { planner.input("cu_seqlens")? } else { None },
            cu_keys: if packed { planner.input(offsets)? } else { None },
            queries: problem.queries.longest(),
            keys: problem.keys.longest(),
            batch: problem.queries.count(),
            kv_heads: problem.kv_heads,
            slabs: problem.group().div_ceil(HEAD_ROWS),
            heads: int(problem.heads)?,
        })
    }

    pub(super) fn gates(&self) -> Gates<'_> {
        let [g_cmp, g_slc, g_swa] = self.gates.each_ref().map(Option::as_deref);
        let Self { gates_f32, gate_kind, .. } = *self;
        Gates { g_cmp, g_slc, g_swa, gates_f32, gate_kind }
    }

    pub(super) fn sequences(&self) -> Sequences<'_> {
        let (cu_q, cu_k) = (self.cu_queries.as_deref(), self.cu_keys.as_deref());
        Sequences { cu_q, cu_k, tq: self.queries as i32, tk: self.keys as i32 }
    }

    /// Blocks along y that cover the heads of a query.
    pub(super) fn head_slabs(&self) -> u32 {
        (self.kv_heads * self.slabs) as u32
    }
}

/// Adds the macros that all kernels of nsa have.
pub(super) fn shape_macros(
    source: KernelSource,
    dtype: DType,
    (head_dim, value_dim): (usize, usize),
) -> KernelSource {
    source.define("D", head_dim).define("DV", value_dim).define("DTYPE", dtype)
}
