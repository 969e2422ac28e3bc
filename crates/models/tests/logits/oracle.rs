//! The models in float64, from the formulas of their papers and of transformers' code, token by token and head by head.
//!
//! Nothing is shared with the crate under test: other code reads config.json and the weight files.

mod bamba;
mod falcon;
mod gpt;
mod granite;
mod integers;
mod jamba;
mod kimi;
mod lfm;
mod mamba;
mod mamba2;
mod nemotron;
mod olmo;
mod plain;
mod qwen_next;

use safetensors::SafeTensors;
use safetensors::tensor::Dtype;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// A model's folder.
pub(crate) struct Oracle {
    config: Value,
    tensors: HashMap<String, Vec<f64>>,
}

impl Oracle {
    pub(crate) fn read(folder: &Path) -> Self {
        let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
        let (mut tensors, mut shapes, mut narrow) = (HashMap::new(), HashMap::new(), Vec::new());
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "safetensors") {
                let bytes = std::fs::read(&path).unwrap();
                for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                    let name = name.replace("model.language_model.", "model.");
                    if view.dtype() == Dtype::F8_E4M3 {
                        narrow.push((name.clone(), view.shape().to_vec()));
                    }
                    shapes.insert(name.clone(), view.shape().to_vec());
                    tensors.insert(name, widen(view.dtype(), view.data()));
                }
            }
        }
        for (name, shape) in narrow {
            let names = ["_scale", "_scale_inv"].map(|end| format!("{name}{end}"));
            let scale = names.iter().find(|name| shapes.contains_key(*name)).unwrap();
            let (scales, of) = (tensors[scale].clone(), &shapes[scale]);
            let columns = shape[shape.len() - 1];
            for (at, weight) in tensors.get_mut(&name).unwrap().iter_mut().enumerate() {
                let (row, column) = (at / columns, at % columns);
                *weight *= match (scales.len(), of[of.len() - 1]) {
                    (1, _) => scales[0],
                    (count, 1) if count == shape.iter().product::<usize>() / columns => scales[row],
                    (_, across) => scales[row / 128 * across + column / 128],
                };
            }
        }
        let config: Value = serde_json::from_str(&config).unwrap();
        integers::unpack(&config, &mut tensors, &shapes);
        // A vision-language model nests its language model, in the config and in names.
        Self { config: config.get("text_config").cloned().unwrap_or(config), tensors }
    }

    /// Logits of every token, `[tokens, vocabulary]`.
    pub(crate) fn logits(&self, tokens: &[u32]) -> Vec<f64> {
        match self.config["model_type"].as_str().unwrap() {
            "granitemoehybrid" => granite::logits(self, tokens),
            "kimi_linear" => kimi::logits(self, tokens),
            "qwen3_next" | "qwen3_5_text" | "qwen3_5_moe_text" => qwen_next::logits(self, tokens),
            "mamba2" => mamba2::logits(self, tokens),
            "mamba" | "falcon_mamba" => mamba::logits(self, tokens),
            "jamba" => jamba::logits(self, tokens),
            "bamba" => bamba::logits(self, tokens),
            "lfm2" | "lfm2_moe" => lfm::logits(self, tokens),
            "gpt_oss" => gpt::logits(self, tokens),
            "falcon_h1" => falcon::logits(self, tokens),
            "nemotron_h" => nemotron::logits(self, tokens),
            "olmo_hybrid" => olmo::logits(self, tokens),
            _ => plain::logits(self, tokens),
        }
    }

    fn tensor(&self, name: &str) -> &[f64] {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    fn count(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("no count {key}")) as usize
    }

    fn number(&self, key: &str) -> f64 {
        self.config[key].as_f64().unwrap_or_else(|| panic!("{key} is not a number"))
    }

    fn word(&self, key: &str, index: usize) -> &str {
        self.config[key][index].as_str().unwrap()
    }

    /// `W x` for the named `[outputs, inputs]` matrix.
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        product(self.tensor(name), x)
    }

    fn embedding(&self, token: u32, width: usize) -> Vec<f64> {
        self.tensor("model.embed_tokens.weight")[token as usize * width..][..width].to_vec()
    }
}

fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    match dtype {
        Dtype::F32 => {
            bytes.as_chunks().0.iter().map(|x| f64::from(f32::from_le_bytes(*x))).collect()
        }
        Dtype::BF16 => {
            let widen = |x: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*x)) << 16);
            bytes.as_chunks().0.iter().map(|x| f64::from(widen(x))).collect()
        }
        Dtype::U8 => bytes.iter().map(|x| f64::from(*x)).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|x| float8(*x)).collect(),
        Dtype::I32 => {
            bytes.as_chunks().0.iter().map(|x| f64::from(i32::from_le_bytes(*x))).collect()
        }
        Dtype::I64 => bytes.as_chunks().0.iter().map(|x| i64::from_le_bytes(*x) as f64).collect(),
        other => panic!("no values of type {other:?}"),
    }
}

/// `(-1)^s 2^(e - 7) (1 + m / 8)`, and `2^-6 m / 8` where e is 0.
fn float8(bits: u8) -> f64 {
    let (e, m) = (i32::from(bits >> 3 & 15), f64::from(bits & 7) / 8.0);
    let magnitude = if e == 0 { m / 64.0 } else { 2f64.powi(e - 7) * (1.0 + m) };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn softplus(x: f64) -> f64 {
    (1.0 + x.exp()).ln()
}

/// `x / sqrt(mean(x^2) + eps) * weight`.
fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let norm = (dot(x, x) / x.len() as f64 + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x / norm * w).collect()
}

fn add(x: &mut [f64], y: &[f64], factor: f64) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += factor * y);
}

/// `sum_j softmax_j(logits) values_j`.
fn attend(logits: &[f64], values: &[&[f64]]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; values[0].len()];
    for (weight, value) in weights.iter().zip(values) {
        add(&mut out, value, weight / sum);
    }
    out
}

/// Causal convolution with weights `[channels, 1, taps]`, then SiLU: `y_t = sum_w k_w x_(t-taps+1+w)`.
fn convolve(xs: &[Vec<f64>], weight: &[f64], bias: Option<&[f64]>) -> Vec<Vec<f64>> {
    let channels = xs[0].len();
    let taps = weight.len() / channels;
    let at = |t: usize, c: usize| {
        let mut sum = bias.map_or(0.0, |bias| bias[c]);
        for w in 0..taps {
            if t + w + 1 >= taps {
                sum += weight[c * taps + w] * xs[t + w + 1 - taps][c];
            }
        }
        silu(sum)
    };
    (0..xs.len()).map(|t| (0..channels).map(|c| at(t, c)).collect()).collect()
}

/// Indices of the k largest values.
fn largest(values: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*b].partial_cmp(&values[*a]).unwrap());
    order.truncate(k);
    order
}
