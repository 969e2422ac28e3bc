//! Arguments that the kernels of kda and gated_delta share: device tensors and sizes.

use crate::{Planner, arguments, int};
use device::cuda::{Buffer, DeviceError, KernelSource};
use ops::DType;
use ops::kda::{Beta, Gate, KdaProblem};
use std::sync::Arc;

arguments! {
    /// Parameters of the gates and of beta, and the scale of q.
    pub(super) Gates { gate: i32, types: i32, l2norm: i32, lower_bound: f32, beta_factor: f32, scale: f32 }
}

/// Maximum grid size in y and z.
const LARGEST_GRID: usize = 65_535;

/// The operands of one call.
pub(super) struct Operands {
    pub(super) q: Arc<Buffer>,
    pub(super) k: Arc<Buffer>,
    pub(super) v: Arc<Buffer>,
    pub(super) g: Arc<Buffer>,
    pub(super) beta: Arc<Buffer>,
    pub(super) a_log: Option<Arc<Buffer>>,
    pub(super) dt_bias: Option<Arc<Buffer>>,
    pub(super) initial: Option<Arc<Buffer>>,
    pub(super) o: Arc<Buffer>,
    pub(super) final_state: Arc<Buffer>,
    /// Cumulative offsets of packed sequences.
    pub(super) offsets: Option<Arc<Buffer>>,
    pub(super) slots: Option<Arc<Buffer>>,
    /// Tokens of a dense sequence, or of the longest packed one.
    pub(super) tokens: i32,
    /// Bits of `gates.cuh` for tensors that are not stored like q.
    pub(super) types: i32,
}

impl Operands {
    /// Uploads the inputs.
    pub(super) fn new(
        problem: &KdaProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let packed = problem.sequences.batch_and_tokens().is_none();
        let mut types = 0;
        for (bit, name) in ["g", "beta", "A_log", "dt_bias"].into_iter().enumerate() {
            types |= planner.is_f32(name) << bit;
        }
        types |= i32::from(problem.state_dtype != DType::F32) << 4;
        planner.widest("beta", 2);
        Ok(Self {
            q: planner.required("q")?,
            k: planner.required("k")?,
            v: planner.required("v")?,
            g: planner.required("g")?,
            beta: planner.required("beta")?,
            a_log: planner.input("A_log")?,
            dt_bias: planner.input("dt_bias")?,
            initial: planner.input("initial_state")?,
            o: planner.output("o")?,
            final_state: planner.output("final_state")?,
            offsets: if packed { planner.input("cu_seqlens")? } else { None },
            slots: planner.input("state_indices")?,
            tokens: int(problem.sequences.longest())?,
            types,
        })
    }

    pub(super) fn gates(&self, problem: &KdaProblem) -> Gates<'_> {
        let (gate, lower_bound) = match problem.gate {
            Gate::LogDecay => (0, 0.0),
            Gate::Plain => (1, 0.0),
            Gate::Safe { lower_bound } => (2, lower_bound),
        };
        let factor = match problem.beta {
            Beta::AsGiven => 0.0,
            Beta::Sigmoid { factor } => factor,
        };
        Gates {
            gate,
            types: self.types,
            l2norm: i32::from(problem.l2norm),
            lower_bound: lower_bound as f32,
            beta_factor: factor as f32,
            scale: problem.scale as f32,
        }
    }
}

/// Macros of `gates.cuh`. MMA operands are always f16.
pub(super) fn storage_macros(source: KernelSource, dtype: DType) -> KernelSource {
    let storage = match dtype {
        DType::Bf16 => 0,
        DType::F16 => 1,
        _ => 2,
    };
    source.define("DTYPE", DType::F16).define("STORAGE", storage)
}

/// Why a launch cannot have this many sequences or heads; `None` if it can.
pub(super) fn too_many(problem: &KdaProblem) -> Option<String> {
    for (what, count) in [("sequences", problem.sequences.count()), ("HV", problem.value_heads)] {
        if count > LARGEST_GRID {
            return Some(format!("needs {what} up to {LARGEST_GRID}, got {count}"));
        }
    }
    None
}
