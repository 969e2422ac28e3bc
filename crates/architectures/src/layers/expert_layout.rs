//! Routed experts in the layouts of checkpoints: separate projections of each expert, or stacked ones of all experts.

use super::{Expert, GatedMlp};
use crate::params::{MatrixLayout, Params, Projection, RowRange, fan_in};
use crate::tensor_names::{TensorShapes, spellings};

/// The layout in which a family was published.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ExpertLayout {
    /// `experts.N.GATE.weight` and so on: the names of gate, up and down.
    Each([&'static str; 3]),
    /// The names of gate and up, and of down, of all experts.
    Stacked([&'static str; 2]),
}

/// Names of an expert's gate, up and down.
const EACH: [[&str; 3]; 2] = [["gate_proj", "up_proj", "down_proj"], ["w1", "w3", "w2"]];

/// Names of all experts' gate and up (or up alone without gates), and down.
const STACKED: [[[&str; 2]; 2]; 3] = [
    [["experts.gate_up_proj", "experts.down_proj"], ["experts.up_proj", "experts.down_proj"]],
    [
        ["experts.gate_up_proj.weight", "experts.down_proj.weight"],
        ["experts.up_proj.weight", "experts.down_proj.weight"],
    ],
    [
        ["input_linear.weight", "output_linear.weight"],
        ["input_linear.weight", "output_linear.weight"],
    ],
];

/// Names of all experts' gate, up and down, each stacked.
const SEPARATE_STACKS: [[&str; 3]; 2] = [
    ["experts.gate_proj", "experts.up_proj", "experts.down_proj"],
    ["experts.gate_proj.weight", "experts.up_proj.weight", "experts.down_proj.weight"],
];

/// The experts under a prefix.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertsShape<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) count: usize,
    pub(crate) hidden: usize,
    pub(crate) inner: usize,
    /// Whether an expert has a gate.
    pub(crate) gated: bool,
}

impl ExpertsShape<'_> {
    /// Declares the experts in the checkpoint's layout, or in the published one if the checkpoint's is unknown.
    pub(crate) fn declare(self, params: &mut Params, published: ExpertLayout) -> Vec<Expert> {
        let found = params.tensors().and_then(|tensors| self.find(&tensors.clone()));
        match (found, published) {
            (Some(FoundExperts::Each(prefix, names)), _) => self.each(params, &prefix, names),
            (Some(FoundExperts::Stacked(names)), _) => self.stacked(params, names),
            (Some(FoundExperts::SeparateStacks(names)), _) => self.separate_stacks(params, names),
            (None, ExpertLayout::Each(names)) => self.each(params, self.prefix, names),
            (None, ExpertLayout::Stacked(names)) => {
                self.stacked(params, names.map(|name| format!("{}.{name}", self.prefix)))
            }
        }
    }

    /// The first layout for which the checkpoint has the down projections.
    fn find(self, tensors: &TensorShapes) -> Option<FoundExperts> {
        let there = |name: &String| tensors.shape(name).is_some();
        spellings(&format!("{}.", self.prefix)).into_iter().find_map(|prefix| {
            let each = EACH
                .into_iter()
                .find(|names| there(&format!("{prefix}experts.0.{}.weight", names[2])));
            if let Some(names) = each {
                return Some(FoundExperts::Each(prefix.trim_end_matches('.').to_owned(), names));
            }
            let gated = usize::from(!self.gated);
            let full = |name: &str| format!("{prefix}{name}");
            let stacked = STACKED.into_iter().map(|names| names[gated].map(full));
            if let Some(names) = stacked.into_iter().find(|names| names.iter().all(there)) {
                return Some(FoundExperts::Stacked(names));
            }
            let mut separate_stacks = SEPARATE_STACKS.into_iter().map(|names| names.map(full));
            separate_stacks
                .find(|names| self.gated && names.iter().all(there))
                .map(FoundExperts::SeparateStacks)
        })
    }

    fn each(self, params: &mut Params, prefix: &str, names: [&str; 3]) -> Vec<Expert> {
        let widths = [self.hidden, self.inner];
        let expert = |e: usize| {
            let prefix = format!("{prefix}.experts.{e}");
            match self.gated {
                true => GatedMlp::declare(params, &prefix, names, widths),
                false => {
                    GatedMlp::with_fused_gate(params, &prefix, [names[1], names[2]], widths, false)
                }
            }
        };
        (0..self.count).map(expert).collect()
    }

    fn stacked(self, params: &mut Params, [up, down]: [String; 2]) -> Vec<Expert> {
        let Self { hidden, inner, .. } = self;
        let ups = if self.gated { 2 * inner } else { inner };
        let transposed =
            self.is_transposed(params, [(&up, [ups, hidden]), (&down, [hidden, inner])]);
        let up = self.all(params, up, [ups, hidden], transposed);
        let down = self.all(params, down, [hidden, inner], transposed);
        let expert = |e| Expert {
            gate_up: up(e),
            down: down(e),
            gated: self.gated,
            gelu: false,
            token_gate: None,
            multipliers: [1.0; 2],
        };
        (0..self.count).map(expert).collect()
    }

    fn separate_stacks(self, params: &mut Params, [gate, up, down]: [String; 3]) -> Vec<Expert> {
        let Self { hidden, inner, .. } = self;
        let sides = [(&gate, [inner, hidden]), (&down, [hidden, inner])];
        let transposed = self.is_transposed(params, sides);
        let gate = self.all(params, gate, [inner, hidden], transposed);
        let up = self.all(params, up, [inner, hidden], transposed);
        let down = self.all(params, down, [hidden, inner], transposed);
        let expert = |e| Expert {
            gate_up: Projection::stacked([gate(e), up(e)]),
            down: down(e),
            gated: true,
            gelu: false,
            token_gate: None,
            multipliers: [1.0; 2],
        };
        (0..self.count).map(expert).collect()
    }

    /// One projection of all experts, `[experts, outputs, inputs]`.
    fn all(
        self,
        params: &mut Params,
        name: String,
        [outputs, inputs]: [usize; 2],
        transposed: bool,
    ) -> impl Fn(usize) -> Projection + use<> {
        let param = params.add(name, &[self.count, outputs, inputs], fan_in(inputs));
        if transposed {
            params.set_layout(param, MatrixLayout { transposed, ..MatrixLayout::default() });
        }
        move |expert| {
            let rows = RowRange { param, first: expert * outputs, count: outputs };
            Projection::of(rows, inputs)
        }
    }

    /// Whether the checkpoint's matrices are `[inputs, outputs]`. For a square matrix the other one decides.
    fn is_transposed(self, params: &Params, sides: [(&String, [usize; 2]); 2]) -> bool {
        let turned = |(name, [outputs, inputs]): (&String, [usize; 2])| {
            let found = params.tensors()?.shape(name)?;
            (outputs != inputs).then(|| found == [self.count, inputs, outputs])
        };
        let [first, second] = sides.map(turned);
        first.or(second).unwrap_or(false)
    }
}

/// The layout and names of a checkpoint.
enum FoundExperts {
    /// Names under a prefix.
    Each(String, [&'static str; 3]),
    Stacked([String; 2]),
    SeparateStacks([String; 3]),
}
