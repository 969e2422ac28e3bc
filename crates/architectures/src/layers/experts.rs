use super::GatedMlp;
use crate::params::{ParamId, Params, Projection, RowRange, fan_in};

/// Routed experts: the sum over the chosen of `weight_e expert_e(x)`.
#[derive(Debug, Clone)]
pub struct Experts {
    /// One logit per expert.
    pub router: Projection,
    /// How logits determine the chosen experts and their weights.
    pub score: RouterScore,
    /// Experts per token.
    pub per_token: usize,
    /// Projections to a narrower vector that the experts work on, and back from their sum; `None` if they work on the
    /// router's input.
    pub latent: Option<[Projection; 2]>,
    /// Biases and limits, if any.
    pub clamped: Option<ClampedExperts>,
    /// The experts of this rank.
    pub experts: Vec<Expert>,
    /// Index of the first one among all.
    pub first: usize,
}

/// Experts with biases and clamping: `down(g sigmoid(alpha g) (u + 1)) + bias`, with `g = min(gate, limit)` and u the
/// up projection clamped to `-limit..limit`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClampedExperts {
    /// All experts, `[experts, 2 inner]`: gates first.
    pub gate_up_bias: ParamId,
    /// `[experts, hidden]`.
    pub down_bias: ParamId,
    /// The limit.
    pub limit: f64,
    /// The factor in the sigmoid.
    pub alpha: f64,
}

/// One expert.
pub type Expert = GatedMlp;

impl Experts {
    /// The number of additional experts that a shared part is equivalent to: its channels are a multiple of an
    /// expert's, and it is otherwise like one. `None` if it is not, or if other ranks have some of the experts.
    pub fn experts_in(&self, shared: &GatedMlp) -> Option<usize> {
        let expert = self.experts.first()?;
        let count = shared.down.inputs.checked_div(expert.down.inputs)?;
        let widths = |of: &GatedMlp| [of.gate_up.inputs, of.down.outputs()];
        let alike = [shared.gated, shared.gelu] == [expert.gated, expert.gelu]
            && shared.down.inputs == count * expert.down.inputs
            && shared.gate_up.outputs() == count * expert.gate_up.outputs()
            && widths(shared) == widths(expert);
        let plain = shared.token_gate.is_none()
            && self.clamped.is_none()
            && shared.multipliers == [1.0; 2]
            && [&shared.gate_up, &shared.down].iter().all(|of| of.bias.is_empty());
        let whole = self.latent.is_none() && self.experts.len() == self.router.outputs();
        (count > 0 && alike && plain && whole).then_some(count)
    }

    /// Whether a token's experts come from some groups only.
    pub(crate) fn has_groups(&self) -> bool {
        matches!(self.score, RouterScore::Sigmoid { groups: Some(_), .. })
    }

    /// Every parameter that it reads; some occur several times.
    pub(crate) fn params(&self) -> Vec<ParamId> {
        let Self { router, score, latent, clamped, experts, .. } = self;
        let each = experts.iter().flat_map(|of| [&of.gate_up, &of.down]);
        let all = each.chain([router]).chain(latent.iter().flatten());
        let of = |of: &Projection| {
            let rows = of.rows.iter().map(|rows| rows.param);
            rows.chain(of.bias.iter().copied()).collect::<Vec<_>>()
        };
        let mut params: Vec<_> = all.flat_map(of).collect();
        params.extend(clamped.iter().flat_map(|of| [of.gate_up_bias, of.down_bias]));
        match score {
            RouterScore::Sigmoid { correction, .. } => params.push(*correction),
            RouterScore::ScaledSoftmax { norm, scales } => params.extend([*norm, *scales]),
            RouterScore::SoftmaxOfChosen | RouterScore::SoftmaxOfAll => {}
        }
        params
    }
}

/// Experts whose weights are stacked in two parameters: `[experts, 2 inner, hidden]`, the gate's rows first, and
/// `[experts, hidden, inner]`.
pub(crate) fn stacked(
    params: &mut Params,
    names: [String; 2],
    count: usize,
    [hidden, inner]: [usize; 2],
) -> Vec<Expert> {
    let mut fused = |name: String, outputs: usize, inputs: usize| {
        let param = params.add(name, &[count, outputs, inputs], fan_in(inputs));
        move |expert: usize| {
            Projection::of(RowRange { param, first: expert * outputs, count: outputs }, inputs)
        }
    };
    let [gate_up, down] = names;
    let (gate_up, down) = (fused(gate_up, 2 * inner, hidden), fused(down, hidden, inner));
    let expert = |e| GatedMlp {
        gate_up: gate_up(e),
        down: down(e),
        gated: true,
        gelu: false,
        token_gate: None,
        multipliers: [1.0; 2],
    };
    (0..count).map(expert).collect()
}

/// How a router's logits determine k experts and their weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RouterScore {
    /// The k largest logits, with softmax over these.
    SoftmaxOfChosen,
    /// The k largest of a softmax over all logits, without renormalization: weights add up to less than 1.
    SoftmaxOfAll,
    /// The k largest logits, with softmax over these, times a scale of each expert; the router reads the residual stream
    /// with a separate norm.
    ScaledSoftmax {
        /// The norm, which the inverse root of its width multiplies as well.
        norm: ParamId,
        /// `[experts]`.
        scales: ParamId,
    },
    /// Sigmoid scores. Experts are chosen by score plus a correction bias and weighted by the score without it, as in
    /// transformers (Moonshot's remote code adds the bias in place and so weights by biased scores).
    Sigmoid {
        /// Added to the scores for the choice only, one per expert.
        correction: ParamId,
        /// Whether the weights of the chosen are divided by their sum.
        renormalise: bool,
        /// Added to that sum.
        sum_eps: f64,
        /// Scale of the weights.
        scale: f64,
        /// Groups of experts, if a token's experts come from some of them only.
        groups: Option<ExpertGroups>,
    },
}

/// Groups of consecutive experts, of which a router chooses the best: those with the largest sum of their two largest
/// biased scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// How many there are.
    pub count: usize,
    /// From how many of them a token's experts come.
    pub chosen: usize,
}

#[cfg(test)]
mod tests {
    use crate::{Architecture, shape};

    #[track_caller]
    fn check(name: &str, keys: &[(&str, usize)], expect: Option<usize>) {
        let config = shape(name).unwrap();
        let config = keys
            .iter()
            .fold(config, |config, (key, value)| config.with(key, serde_json::Value::from(*value)));
        let architecture = Architecture::of(&config).unwrap();
        let layer = architecture.layers.iter().find(|layer| layer.experts.is_some()).unwrap();
        let (experts, shared) = (layer.experts.as_ref().unwrap(), layer.mlp.as_ref().unwrap());
        assert_eq!(experts.experts_in(shared), expect, "{name}");
        let Some(count) = expect else { return };
        let inner = shared.down.inputs / count;
        for piece in 0..count {
            let ups = shared.ups(piece * inner..(piece + 1) * inner);
            assert_eq!(ups.outputs(), experts.experts[0].gate_up.outputs(), "{name}");
            assert_eq!(ups.rows[0].first, piece * inner, "{name}");
        }
    }

    #[test]
    fn shared_experts_with_biases_are_refused_as_one() {
        for (name, expect) in [("gpt-oss-mini", None), ("granite-moe-mini", Some(1))] {
            let architecture = Architecture::of(&shape(name).unwrap()).unwrap();
            let experts = architecture.layers.iter().find_map(|layer| layer.experts.as_ref());
            let experts = experts.unwrap();
            assert_eq!(experts.experts_in(&experts.experts[0]), expect, "{name}");
        }
    }

    #[test]
    fn shared_experts_count_as_routed_ones() {
        check("granite-4.0-h-tiny", &[], Some(2));
        check("granite-4.0-h-small", &[], Some(2));
        check("kimi-linear-48b-a3b", &[], Some(1));
        check("nemotron-3-nano-30b-a3b", &[], Some(2));
        // It has a token gate.
        check("qwen3-next-80b-a3b", &[], None);
        check("nemotron-mini", &[], None);
        check("granite-4.0-h-tiny", &[("shared_intermediate_size", 1000)], None);
        check("granite-4.0-h-tiny", &[("shared_intermediate_size", 256)], None);
        check("nemotron-mini", &[("moe_shared_expert_intermediate_size", 120)], Some(3));
        // Experts on a narrower vector.
        let latent = [("moe_shared_expert_intermediate_size", 80), ("moe_latent_size", 32)];
        check("nemotron-mini", &latent, None);
    }
}
