//! A phase as the kernel reads it: `Phase` of `cuda/phase.cuh`, whose fields a test holds against these.

use crate::cuda::arguments;
use device::cuda::Args;

/// Kinds of phases, as in `phase.cuh`.
pub(super) const LINEAR: i32 = 0;
pub(super) const SCAN: i32 = 1;

arguments! {
    /// `Linear` of `phase.cuh`, and the parameters of `linear_persistent`.
    pub(crate) Linear {
        x: Pointer, w: Pointer, w_scale: Pointer, norm: Nullable, bias: Nullable, residual: Nullable, o0: Nullable, o1: Nullable,
        o2: Nullable, o3: Nullable, o4: Nullable, o5: Nullable, conv_weight: Nullable, conv_bias: Nullable, initial_state: Nullable,
        final_state: Nullable, state_indices: Nullable, start1: i32, start2: i32, start3: i32, start4: i32, start5: i32, inputs: i32,
        columns: i32, x_f32: i32, swiglu: i32, bias_f32: i32, out_f32: i32, scale: f32, eps: f32, conv_weight_f32: i32,
        conv_bias_f32: i32, conv_silu: i32, conv_first: i32, conv_channels: i32,
    }
}

arguments! {
    /// `Scan` of `phase.cuh`, and the parameters of `ssd_persistent`.
    pub(crate) Scan {
        x: Pointer, dt: Pointer, rate: Pointer, b: Pointer, c: Pointer, d: Nullable, z: Nullable, dt_bias: Nullable,
        initial_state: Pointer, final_state: Pointer, state_indices: Nullable, o: Pointer, heads: i32, groups: i32, head_dim: i32,
        dt_f32: i32, rate_f32: i32, d_f32: i32, bias_f32: i32, d_per_channel: i32, softplus: i32, dt_min: f32, dt_max: f32,
    }
}

/// Where what belongs to a kind begins, bytes: behind the kind, where pointers may.
pub(super) const FIRST: usize = 8;

/// A record, bytes: a kind, room for the larger of both, and whole pieces of 16 bytes, by which blocks read it.
pub(super) const BYTES: usize = {
    let (linear, scan) = (size_of::<Linear<'static>>(), size_of::<Scan<'static>>());
    let larger = if linear > scan { linear } else { scan };
    (FIRST + larger).next_multiple_of(16)
};

/// A record of one kind, its pointers where they lie now.
pub(super) fn bytes(kind: i32, of: Args) -> Vec<u8> {
    let mut record = kind.to_ne_bytes().to_vec();
    record.resize(FIRST, 0);
    record.extend(of.bytes());
    record.resize(BYTES, 0);
    record
}
