//! The gradient in float64, straight from its formulas.

use super::problem::SPEC as FORWARD;
use super::{Activation, Conv1dProblem, Layout};
use crate::spec::tensor;
use crate::{Inputs, OpSpec, Tensor, TensorMap};

/// The gradient's table. Pools and ring buffers, which are for inference, are not supported.
pub(super) const SPEC: OpSpec = OpSpec {
    name: "conv1d_backward",
    summary: "gradients of conv1d",
    inputs: &[
        FORWARD.inputs[0],
        FORWARD.inputs[1],
        FORWARD.inputs[2],
        FORWARD.inputs[3],
        FORWARD.inputs[4],
        tensor("do", "like x", true, "gradient of o, in its type"),
        tensor("dfinal_state", "like final_state", false, "gradient of final_state, in its type"),
    ],
    outputs: &[
        tensor("dx", "like x", true, "gradient of x, in its type"),
        tensor("dweight", "[C, W]", true, "gradient of weight, in its type"),
        tensor("dbias", "[C]", false, "gradient of bias, in its type"),
        tensor("dinitial_state", "like initial_state", false, "gradient of it, in its type"),
    ],
    settings: FORWARD.settings,
};

/// Every gradient in float64.
///
/// With u = bias + sum over w of weight_w x_(t-W+1+w) and du = do act'(u), a token's gradient is the sum over w of weight_w du_(t+W-1-w).
pub(super) fn gradient(problem: &Conv1dProblem, inputs: Inputs<'_>) -> TensorMap {
    let (channels, width, state_len) = (problem.channels, problem.width, problem.state_len);
    let x = inputs.tensor("x").to_f64(); // [total, C] or [B, C, T]
    let weight = inputs.tensor("weight").to_f64(); // [C, W]
    let bias = inputs.get("bias").map_or_else(|| vec![0.0; channels], Tensor::to_f64); // [C]
    let initial = inputs.get("initial_state").map(Tensor::to_f64); // [Nseq, C, S]
    let d_o = inputs.tensor("do").to_f64(); // like x
    let dfinal = inputs.get("dfinal_state").map(Tensor::to_f64); // [Nseq, C, S]
    let mut dx = vec![0.0; x.len()]; // like x
    let mut dweight = vec![0.0; weight.len()]; // [C, W]
    let mut dbias = vec![0.0; channels]; // [C]
    let mut dinitial = vec![0.0; initial.as_ref().map_or(0, Vec::len)]; // [Nseq, C, S]

    for (sequence, tokens) in problem.sequences.iter().enumerate() {
        let len = tokens.len();
        for channel in 0..channels {
            let at = |token: usize| match problem.layout {
                Layout::ChannelLast => (tokens.start + token) * channels + channel,
                Layout::ChannelFirst => (sequence * channels + channel) * len + token,
            };
            let taps = &weight[channel * width..][..width];
            let states = (sequence * channels + channel) * state_len..;
            // Tokens before the sequence have t < 0; the newest is the last column of the state.
            let column = |token: isize| states.start + (state_len as isize + token) as usize;
            let value = |token: isize| match (usize::try_from(token), &initial) {
                (Ok(token), _) => x[at(token)],
                (Err(_), Some(initial)) => initial[column(token)],
                (Err(_), None) => 0.0,
            };
            let age = |tap: usize| (width - 1 - tap) as isize;
            let mut du = vec![0.0; len];
            for (token, du) in du.iter_mut().enumerate() {
                let before = |tap: usize| value(token as isize - age(tap));
                let products = (0..width).map(|tap| taps[tap] * before(tap));
                let u = bias[channel] + products.sum::<f64>();
                let slope = match problem.activation {
                    Activation::None => 1.0,
                    Activation::Silu => {
                        let sigmoid = 1.0 / (1.0 + (-u).exp());
                        sigmoid * (1.0 + u / (1.0 + u.exp()))
                    }
                };
                *du = d_o[at(token)] * slope;
                dbias[channel] += *du;
                for tap in 0..width {
                    dweight[channel * width + tap] += *du * before(tap);
                }
            }
            for token in -(state_len as isize)..len as isize {
                let read = |tap: usize| {
                    let by = usize::try_from(token + age(tap)).ok();
                    by.and_then(|by| du.get(by)).map_or(0.0, |du| taps[tap] * du)
                };
                // The final state's column of this token; it has the last S tokens.
                let kept = usize::try_from(token - (len as isize - state_len as isize));
                let kept = match (kept, &dfinal) {
                    (Ok(column), Some(dfinal)) => dfinal[states.start + column],
                    _ => 0.0,
                };
                let gradient = kept + (0..width).map(read).sum::<f64>();
                match usize::try_from(token) {
                    Ok(token) => dx[at(token)] = gradient,
                    Err(_) if initial.is_some() => dinitial[column(token)] = gradient,
                    Err(_) => {}
                }
            }
        }
    }

    let like =
        |of: &str, values| Some((format!("d{of}"), Tensor::new(inputs.get(of)?.shape(), values)));
    let all = [
        like("x", dx),
        like("weight", dweight),
        like("bias", dbias),
        like("initial_state", dinitial),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use crate::Settings;
    use crate::conv1d::Conv1dOp;
    use crate::gradient::differences::{check, integers, uniform};

    /// Sequences of `lengths` tokens, packed or dense, that start from states of `state` tokens (0: no states).
    fn conv(lengths: &[usize], dense: bool, width: usize, state: usize, settings: &Settings) {
        const CHANNELS: usize = 3;
        let total = lengths.iter().sum();
        let first = settings.iter().any(|(_, value)| value == "channel_first");
        let shape = match (dense, first) {
            (true, true) => vec![lengths.len(), CHANNELS, lengths[0]],
            (true, false) => vec![lengths.len(), lengths[0], CHANNELS],
            (false, _) => vec![total, CHANNELS],
        };
        let mut inputs = vec![
            ("x", uniform("x", &shape, 2.0)),
            ("weight", uniform("weight", &[CHANNELS, width], 2.0)),
            ("bias", uniform("bias", &[CHANNELS], 1.0)),
        ];
        if state > 0 {
            let shape = [lengths.len(), CHANNELS, state];
            inputs.push(("initial_state", uniform("initial_state", &shape, 2.0)));
        }
        if !dense {
            let ends = lengths.iter().scan(0, |end, length| {
                *end += *length as i32;
                Some(*end)
            });
            let offsets: Vec<i32> = std::iter::once(0).chain(ends).collect();
            inputs.push(("cu_seqlens", integers(&offsets)));
        }
        let what = format!("{lengths:?} dense {dense} W {width} S {state} {settings:?}");
        check::<Conv1dOp>(&what, &inputs, settings);
    }

    #[test]
    fn gradient_equals_finite_differences() {
        let [plain, silu] = ["none", "silu"].map(|name| Settings::new().with("activation", name));
        let first = silu.clone().with("layout", "channel_first");
        for width in [2, 3, 4] {
            for state in [0, width - 1, width + 2] {
                for lengths in [&[5][..], &[1], &[7, 7], &[2, 2, 2], &[0, 0]] {
                    for settings in [&plain, &silu, &first] {
                        conv(lengths, true, width, state, settings);
                    }
                }
                for lengths in [&[3, 0, 6, 1][..], &[0], &[1, 2]] {
                    conv(lengths, false, width, state, &silu);
                }
            }
        }
    }
}
