//! Operands that both kernels of the op share: tensors on the GPU and the sizes of the problem.

use crate::{Planner, arguments, int};
use device::cuda::{Buffer, ComputeCapability, CudaCapabilities, DeviceError};
use ops::selective_scan::SelectiveScanProblem;
use std::sync::Arc;

arguments! {
    /// The parameters of both kernels.
    pub(super) ScanArguments {
        u: Pointer, delta: Pointer, rates: Pointer, b: Pointer, c: Pointer, d: Nullable, z: Nullable, delta_bias: Nullable,
        initial_state: Nullable, cu_seqlens: Nullable, state_indices: Nullable, o: Pointer, final_state: Pointer, sequences: i32,
        tokens: i32, channels: i32, groups: i32, u_row: i32, delta_row: i32, b_row: i32, c_row: i32, z_row: i32, delta_f32: i32,
        rate_f32: i32, d_f32: i32, bias_f32: i32, delta_softplus: i32,
    }
}

/// Elements from one token to the next in the inputs that have tokens; the values of one token are contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TokenStrides {
    u: i32,
    delta: i32,
    b: i32,
    c: i32,
    z: i32,
}

impl TokenStrides {
    pub(super) fn of(
        problem: &SelectiveScanProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let (width, projection) = (problem.channels, problem.groups * problem.state_dim);
        Ok(Self {
            u: planner.row("u", width)?,
            delta: planner.row("delta", width)?,
            b: planner.row("B", projection)?,
            c: planner.row("C", projection)?,
            z: planner.row("z", width)?,
        })
    }

    /// The widest vector, a power of two of up to `most` elements, to which the channels of each token and group are
    /// aligned.
    pub(super) fn channel_piece(&self, problem: &SelectiveScanProblem, most: usize) -> usize {
        piece(&[self.u, self.delta, self.z], problem.channels_per_group(), most)
    }

    /// The same for the states of B and C.
    pub(super) fn state_piece(&self, problem: &SelectiveScanProblem, most: usize) -> usize {
        piece(&[self.b, self.c], problem.state_dim, most)
    }
}

fn piece(rows: &[i32], count: usize, most: usize) -> usize {
    let zeros = rows.iter().map(|row| row.trailing_zeros()).chain([count.trailing_zeros()]);
    // A stride of 0 has as many trailing zeros as bits: it belongs to an absent tensor.
    zeros.fold(most, |piece, zeros| piece.min(1 << zeros.min(16)))
}

/// The operands of one call.
pub(super) struct Operands {
    u: Arc<Buffer>,
    delta: Arc<Buffer>,
    rates: Arc<Buffer>,
    b: Arc<Buffer>,
    c: Arc<Buffer>,
    d: Option<Arc<Buffer>>,
    z: Option<Arc<Buffer>>,
    delta_bias: Option<Arc<Buffer>>,
    initial_state: Option<Arc<Buffer>>,
    cu_seqlens: Option<Arc<Buffer>>,
    state_indices: Option<Arc<Buffer>>,
    o: Arc<Buffer>,
    final_state: Arc<Buffer>,
    strides: TokenStrides,
    sizes: [i32; 4],
    wide: [i32; 4],
    softplus: bool,
}

impl Operands {
    /// Uploads the inputs.
    pub(super) fn new(
        problem: &SelectiveScanProblem,
        strides: TokenStrides,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        // Kernels count a slot's states, and all tokens, in 32 bits.
        int(problem.channels * problem.state_dim)?;
        int(problem.sequences.total())?;
        Ok(Self {
            u: planner.required("u")?,
            delta: planner.required("delta")?,
            rates: planner.required("A")?,
            b: planner.required("B")?,
            c: planner.required("C")?,
            d: planner.input("D")?,
            z: planner.input("z")?,
            delta_bias: planner.input("delta_bias")?,
            initial_state: planner.input("initial_state")?,
            cu_seqlens: planner.input("cu_seqlens")?,
            state_indices: planner.input("state_indices")?,
            o: planner.output("o")?,
            final_state: planner.output("final_state")?,
            strides,
            sizes: [
                int(problem.sequences.count())?,
                int(problem.sequences.longest())?,
                int(problem.channels)?,
                int(problem.groups)?,
            ],
            wide: ["delta", "A", "D", "delta_bias"].map(|name| planner.is_f32(name)),
            softplus: problem.delta_softplus,
        })
    }

    pub(super) fn arguments(&self) -> ScanArguments<'_> {
        let Self { strides, sizes, wide, .. } = self;
        let [sequences, tokens, channels, groups] = *sizes;
        let [delta_f32, rate_f32, d_f32, bias_f32] = *wide;
        ScanArguments {
            u: &self.u,
            delta: &self.delta,
            rates: &self.rates,
            b: &self.b,
            c: &self.c,
            d: self.d.as_deref(),
            z: self.z.as_deref(),
            delta_bias: self.delta_bias.as_deref(),
            initial_state: self.initial_state.as_deref(),
            cu_seqlens: self.cu_seqlens.as_deref(),
            state_indices: self.state_indices.as_deref(),
            o: &self.o,
            final_state: &self.final_state,
            sequences,
            tokens,
            channels,
            groups,
            u_row: strides.u,
            delta_row: strides.delta,
            b_row: strides.b,
            c_row: strides.c,
            z_row: strides.z,
            delta_f32,
            rate_f32,
            d_f32,
            bias_f32,
            delta_softplus: i32::from(self.softplus),
        }
    }
}

/// Maximum number of blocks along y of a grid.
pub(super) const MAX_GRID_YZ: usize = 65535;
/// Widest state whose rates and values fit in a lane's registers.
const WIDEST: usize = 256;

/// Why no kernel of the op runs the problem on this GPU.
pub(super) fn unfit(problem: &SelectiveScanProblem, here: &CudaCapabilities) -> Option<String> {
    if here.compute < ComputeCapability::new(8, 0) {
        return Some(format!("needs compute capability 8.0, this GPU has {}", here.compute));
    }
    let n = problem.state_dim;
    (!(1..=WIDEST).contains(&n)).then(|| format!("needs N from 1 to {WIDEST}, got {n}"))
}

#[cfg(test)]
mod tests {
    use super::piece;

    #[test]
    fn vectors_divide_every_stride() {
        for (rows, count, most, expect) in [
            (&[8192, 8192, 16384][..], 8192, 8, 8),
            (&[8192, 8192, 16384], 8192, 4, 4),
            (&[48, 48, 48], 24, 8, 8),
            (&[48, 50, 48], 24, 8, 2),
            (&[33, 33, 33], 33, 8, 1),
            (&[20, 20, 20], 1, 8, 1),
            (&[34, 34], 17, 8, 1),
            (&[0, 0], 0, 8, 8),
        ] {
            assert_eq!(piece(rows, count, most), expect, "{rows:?} {count} {most}");
        }
    }
}
