//! Scales, zero points and offsets of quantized weights.

use ops::linear::{LinearProblem, Scales};
use ops::{DType, Inputs, elements, floats};
use std::borrow::Cow;

pub(super) struct Factors<'a> {
    /// `[G, N]`.
    scales: Cow<'a, [f32]>,
    /// `[G, N]`.
    zeros: Option<&'a [u8]>,
    /// Subtracted after scaling, `[G, N]`.
    offsets: Option<&'a [f32]>,
    /// The zero point without `zeros`.
    middle: f32,
    /// Columns of a group.
    size: usize,
    /// N.
    outputs: usize,
}

impl<'a> Factors<'a> {
    /// None when weights are not quantized.
    pub(super) fn new(problem: &LinearProblem, inputs: Inputs<'a>) -> Option<Self> {
        let size = match problem.scales? {
            Scales::Rows => problem.inputs,
            Scales::Groups => problem.w_group,
        };
        Some(Self {
            scales: floats(inputs.tensor("w_scale")),
            zeros: inputs.get("w_zero").map(elements),
            offsets: inputs.get("w_offset").map(elements),
            middle: if problem.w_dtype == DType::U4 && !problem.offsets { 8.0 } else { 0.0 },
            size,
            outputs: problem.outputs,
        })
    }

    /// Dequantizes neighbouring values of row `output` of w from column `first` on: `(number - zero) * scale - offset`.
    #[inline(always)]
    pub(super) fn apply(&self, output: usize, first: usize, numbers: &mut [f32]) {
        let mut at = 0;
        while at < numbers.len() {
            let group = (first + at) / self.size;
            let end = numbers.len().min((group + 1) * self.size - first);
            let place = group * self.outputs + output;
            let factor = self.scales[place];
            let zero = self.zeros.map_or(self.middle, |zeros| f32::from(zeros[place]));
            let offset = self.offsets.map_or(0.0, |offsets| offsets[place]);
            let weigh = |number: &mut f32| *number = (*number - zero) * factor - offset;
            numbers[at..end].iter_mut().for_each(weigh);
            at = end;
        }
    }
}
