//! Operands that all kernels of the op share: tensors on the GPU and the sizes of the problem.

use crate::{Planner, arguments, int};
use device::cuda::{Buffer, ComputeCapability, CudaCapabilities, DeviceError};
use ops::ssd::SsdProblem;
use std::sync::Arc;

arguments! {
    /// The types of the small tensors for steps and outputs, and the step size parameters.
    pub(super) Settings {
        dt_f32: i32, rate_f32: i32, d_f32: i32, bias_f32: i32, d_per_channel: i32, softplus: i32, dt_min: f32, dt_max: f32,
    }
}

/// The operands of one call.
pub(super) struct Operands {
    pub(super) x: Arc<Buffer>,
    pub(super) dt: Arc<Buffer>,
    pub(super) rate: Arc<Buffer>,
    pub(super) b: Arc<Buffer>,
    pub(super) c: Arc<Buffer>,
    pub(super) d: Option<Arc<Buffer>>,
    pub(super) z: Option<Arc<Buffer>>,
    pub(super) dt_bias: Option<Arc<Buffer>>,
    pub(super) initial_state: Option<Arc<Buffer>>,
    pub(super) cu_seqlens: Option<Arc<Buffer>>,
    pub(super) state_indices: Option<Arc<Buffer>>,
    pub(super) o: Arc<Buffer>,
    pub(super) final_state: Arc<Buffer>,
    pub(super) sequences: i32,
    /// Tokens of a dense sequence, or of the longest packed one.
    pub(super) tokens: i32,
    pub(super) heads: i32,
    pub(super) groups: i32,
    pub(super) head_dim: i32,
    /// Elements from one token to the next.
    pub(super) strides: TokenStrides,
    pub(super) dt_f32: i32,
    pub(super) rate_f32: i32,
    d_f32: i32,
    pub(super) bias_f32: i32,
    /// Whether D has a weight for each channel of a head.
    d_per_channel: i32,
    pub(super) softplus: i32,
    pub(super) dt_min: f32,
    pub(super) dt_max: f32,
}

impl Operands {
    /// Uploads the inputs.
    pub(super) fn new(
        problem: &SsdProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let strides = TokenStrides::of(problem, planner)?;
        planner.widest("dt", 2);
        Ok(Self {
            strides,
            x: planner.required("x")?,
            dt: planner.required("dt")?,
            rate: planner.required("A")?,
            b: planner.required("B")?,
            c: planner.required("C")?,
            d: planner.input("D")?,
            z: planner.input("z")?,
            dt_bias: planner.input("dt_bias")?,
            initial_state: planner.input("initial_state")?,
            cu_seqlens: planner.input("cu_seqlens")?,
            state_indices: planner.input("state_indices")?,
            o: planner.output("o")?,
            final_state: planner.output("final_state")?,
            sequences: int(problem.sequences.count())?,
            tokens: int(problem.sequences.longest())?,
            heads: int(problem.heads)?,
            groups: int(problem.groups)?,
            head_dim: int(problem.head_dim)?,
            dt_f32: planner.is_f32("dt"),
            rate_f32: planner.is_f32("A"),
            d_f32: planner.is_f32("D"),
            bias_f32: planner.is_f32("dt_bias"),
            d_per_channel: i32::from(planner.shape("D").len() == 2),
            softplus: i32::from(problem.dt_softplus),
            dt_min: problem.dt_min as f32,
            dt_max: problem.dt_max.min(f64::from(f32::MAX)) as f32,
        })
    }

    pub(super) fn settings(&self) -> Settings<'_> {
        let Self { dt_f32, rate_f32, d_f32, bias_f32, d_per_channel, softplus, .. } = *self;
        let Self { dt_min, dt_max, .. } = *self;
        Settings { dt_f32, rate_f32, d_f32, bias_f32, d_per_channel, softplus, dt_min, dt_max }
    }
}

/// Elements from one token to the next in the inputs that have tokens; the values of one token are contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenStrides {
    pub(super) x: i32,
    pub(super) dt: i32,
    pub(super) b: i32,
    pub(super) c: i32,
    pub(super) z: i32,
}

impl TokenStrides {
    /// Strides of contiguous tensors.
    pub(super) fn dense(problem: &SsdProblem) -> Result<Self, DeviceError> {
        let width = int(problem.heads * problem.head_dim)?;
        let projection = int(problem.groups * problem.state_dim)?;
        Ok(Self { x: width, dt: int(problem.heads)?, b: projection, c: projection, z: width })
    }

    fn of(problem: &SsdProblem, planner: &mut Planner<'_>) -> Result<Self, DeviceError> {
        let Self { x, dt, b, c, z } = Self::dense(problem)?;
        let mut stride = |name, width| planner.row(name, width as usize);
        Ok(Self {
            x: stride("x", x)?,
            dt: stride("dt", dt)?,
            b: stride("B", b)?,
            c: stride("C", c)?,
            z: stride("z", z)?,
        })
    }
}

/// Maximum number of blocks along y and z of a grid.
pub(super) const MAX_GRID_YZ: usize = 65535;

/// Why no kernel of the op runs the problem on this GPU.
pub(super) fn unfit(problem: &SsdProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    (problem.heads > MAX_GRID_YZ)
        .then(|| format!("needs up to {MAX_GRID_YZ} heads, got {}", problem.heads))
}
