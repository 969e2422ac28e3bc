//! A stage as the kernel reads it: `Phase` of `phase.cuh`. A test compares the fields.

use super::experts::Experts;
use crate::arguments;
use device::cuda::{Args, Parameter, ParameterLayout};

/// The operation of a record, as in `phase.cuh`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Linear,
    Scan,
    Norm,
    Up,
    Down,
}

arguments! {
    /// `Linear` of `phase.cuh`, and parameters of `persistent_chain`.
    #[derive(Default)]
    pub(crate) Linear {
        x: Nullable, w: Nullable, w_scale: Nullable, w_offset: Nullable, norm: Nullable, residual: Nullable, o0: Nullable, o1: Nullable,
        o2: Nullable, o3: Nullable, o4: Nullable, o5: Nullable, conv_weight: Nullable, conv_bias: Nullable, initial_state: Nullable,
        final_state: Nullable, state_indices: Nullable, x_packets: Nullable, packets: Nullable, form: i32, inputs: i32, start1: i32, start2: i32,
        start3: i32, start4: i32, start5: i32, columns: i32, swiglu: i32, out_f32: i32, stored: i32, factor_bits: i32, scale: f32,
        eps: f32, conv_silu: i32, conv_first: i32, conv_channels: i32,
    }
}

arguments! {
    /// `Scan` of `phase.cuh`, and the parameters of `ssd_persistent`.
    #[derive(Default)]
    pub(crate) Scan {
        x: Nullable, z: Nullable, dt: Nullable, b: Nullable, c: Nullable, rate: Nullable, d: Nullable, dt_bias: Nullable,
        initial_state: Nullable, final_state: Nullable, state_indices: Nullable, o: Nullable, x_packets: Nullable, z_packets: Nullable,
        dt_packets: Nullable, b_packets: Nullable, c_packets: Nullable, packets: Nullable, heads: i32, head_dim: i32, head_magic: i32,
        heads_of_group: i32, softplus: i32, stored: i32, dt_min: f32, dt_max: f32,
    }
}

arguments! {
    /// `Norm` of `phase.cuh`: a norm, a router, or both.
    #[derive(Default)]
    pub(crate) Norm {
        x: Nullable, weight: Nullable, o: Nullable, w: Nullable, logits: Nullable, x_packets: Nullable, packets: Nullable, inputs: i32,
        columns: i32, eps: f32, scale: f32,
    }
}

arguments! {
    /// `Up` of `phase.cuh`: the gate and up projections of a token's experts.
    #[derive(Default)]
    pub(crate) Up {
        x: Nullable, w: Nullable, w_scale: Nullable, logits: Nullable, correction: Nullable, logits_packets: Nullable, packets: Nullable,
        inputs: i32, local: i32, sigmoid: i32, renormalise: i32, sum_eps: f32, weight_scale: f32,
    }
}

arguments! {
    /// `Down` of `phase.cuh`: the down projection of a token's experts, and their sum.
    #[derive(Default)]
    pub(crate) Down {
        w: Nullable, w_scale: Nullable, residual: Nullable, o: Nullable, x_packets: Nullable, packets: Nullable, columns: i32, scale: f32,
    }
}

/// Offset of the fields of a kind, bytes: after the kind, aligned for pointers.
pub(super) const FIRST: usize = 8;

/// Size of a record, bytes: the kind and the largest fields, in whole pieces of 16 bytes, which blocks read.
pub(super) const BYTES: usize = {
    let sizes = [
        size_of::<Linear<'static>>(),
        size_of::<Scan<'static>>(),
        size_of::<Norm<'static>>(),
        size_of::<Up<'static>>(),
        size_of::<Down<'static>>(),
    ];
    let (mut largest, mut at) = (0, 0);
    while at < sizes.len() {
        largest = if sizes[at] > largest { sizes[at] } else { largest };
        at += 1;
    }
    (FIRST + largest).next_multiple_of(16)
};

/// A record and its kind.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// The experts of an `Up`; they are compiled into its kernel and not part of the record.
    pub(super) experts: Experts,
    bytes: Vec<u8>,
}

impl Record {
    /// A record with the current addresses of the operands.
    pub(super) fn new(kind: Kind, of: Args) -> Self {
        let mut bytes = (kind as i32).to_ne_bytes().to_vec();
        bytes.resize(FIRST, 0);
        bytes.extend(of.bytes());
        bytes.resize(BYTES, 0);
        Self { kind, experts: Experts::default(), bytes }
    }

    /// The gate and up projections of experts.
    pub(super) fn up(of: Args, experts: Experts) -> Self {
        Self { experts, ..Self::new(Kind::Up, of) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The address in a field; 0 for an absent operand.
    pub(super) fn address(&self, field: &str) -> u64 {
        self.bytes[self.at(field)..].first_chunk().copied().map_or(0, u64::from_ne_bytes)
    }

    /// The value of an integer field, none of which is negative.
    pub(super) fn number(&self, field: &str) -> usize {
        let number =
            self.bytes[self.at(field)..].first_chunk().copied().map_or(0, i32::from_ne_bytes);
        usize::try_from(number).unwrap_or(0)
    }

    /// Writes an address.
    pub(super) fn point(&mut self, field: &str, to: u64) {
        let at = self.at(field);
        self.bytes[at..at + 8].copy_from_slice(&to.to_ne_bytes());
    }

    /// Writes an integer.
    pub(super) fn set(&mut self, field: &str, to: i32) {
        let at = self.at(field);
        self.bytes[at..at + 4].copy_from_slice(&to.to_ne_bytes());
    }

    /// Copies fields from another record of the same kind.
    pub(super) fn take(&mut self, fields: &[&str], from: &Self) {
        for field in fields {
            let Parameter { offset, bytes, .. } = self.field(field);
            let range = FIRST + offset..FIRST + offset + bytes;
            self.bytes[range.clone()].copy_from_slice(&from.bytes[range]);
        }
    }

    /// Offset of a field of this kind, bytes.
    fn at(&self, field: &str) -> usize {
        FIRST + self.field(field).offset
    }

    /// A field of this kind.
    ///
    /// # Panics
    /// If the kind has no field of this name.
    fn field(&self, field: &str) -> &'static Parameter {
        let ParameterLayout { parameters, .. } = match self.kind {
            Kind::Linear => Linear::LAYOUT,
            Kind::Scan => Scan::LAYOUT,
            Kind::Norm => Norm::LAYOUT,
            Kind::Up => Up::LAYOUT,
            Kind::Down => Down::LAYOUT,
        };
        parameters.iter().find(|of| of.name == field).expect("a field of the record")
    }
}
