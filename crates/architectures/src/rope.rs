//! Rotary embedding (RoPE), plain or scaled for contexts longer than those of training.

use crate::{Config, ConfigError};
use serde_json::Value;
use std::f64::consts::{PI, TAU};

/// Rotary embedding of the first channels of a head: pair `(i, i + width / 2)` by the angle `position *
/// frequencies[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Number of rotated channels, even.
    pub width: usize,
    /// Radians per position for each pair.
    pub frequencies: Vec<f64>,
    /// Multiplier of cosines and sines, above 1 for YaRN.
    pub factor: f64,
}

/// The share of a head's channels with rotary embedding.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RotaryFraction {
    /// All: transformers' code for the family ignores the config's share, so a config that names one is refused.
    All,
    /// The config's share, with this default.
    Named(f64),
}

impl Rope {
    /// DeepSeek's factor of queries and keys for a scaling with `mscale_all_dim`.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key.
    pub(crate) fn growth(config: &Config) -> Result<f64, ConfigError> {
        let key = config.present_key(&["rope_scaling", "rope_parameters"]);
        let Some(scaling) = config.part(key)? else { return Ok(1.0) };
        let by = scaling.number_or("mscale_all_dim", 0.0)?;
        match scaling.text(scaling.present_key(&["rope_type", "type"]))? {
            None | Some("default") => Ok(1.0),
            Some(_) => Ok(grown(scaling.number("factor")?, by)),
        }
    }

    /// Reads a config in the format before or since transformers 5.
    ///
    /// Formulas are those of transformers' `modeling_rope_utils.py`. Other scalings are refused: dynamic and longrope
    /// depend on the length of each sequence.
    ///
    /// # Errors
    /// [`ConfigError`] naming the key.
    pub(crate) fn of(
        config: &Config,
        head_dim: usize,
        share: RotaryFraction,
    ) -> Result<Self, ConfigError> {
        const PARTIAL: &str = "partial_rotary_factor";
        // The file overrides the default of its class.
        let written = ["rope_parameters", "rope_scaling"].into_iter();
        let key = written.into_iter().find(|key| config.is_written(key));
        let key = key.unwrap_or("rope_parameters");
        let part = config.part(key)?;
        let of_layers =
            |part: &Config| part.keys().any(|key| part.get(key).is_some_and(Value::is_object));
        if part.as_ref().is_some_and(of_layers) {
            return Err(config.wrong(key, "one rotation for all layers"));
        }
        let from =
            |key: &str| part.as_ref().filter(|part| part.get(key).is_some()).unwrap_or(config);
        let usual = match share {
            RotaryFraction::All => 1.0,
            RotaryFraction::Named(usual) => usual,
        };
        let partial = from(PARTIAL).number_or(PARTIAL, usual)?;
        if matches!(share, RotaryFraction::All) && partial != 1.0 {
            return Err(
                from(PARTIAL).wrong(PARTIAL, "1: models of this family rotate all channels")
            );
        }
        let width = head_dim as f64 * partial;
        if width < 2.0 || width > head_dim as f64 || width % 2.0 != 0.0 {
            let wanted = format!("an even number of a head's {head_dim} channels to be rotated");
            let key = if from(PARTIAL).get(PARTIAL).is_some() { PARTIAL } else { "head_dim" };
            return Err(from(PARTIAL).wrong(key, wanted));
        }
        let theta = from("rope_theta").number_or("rope_theta", 10_000.0)?;
        let width = width as usize;
        if let Some(scaling) = &part
            && scaling.text(scaling.present_key(&["rope_type", "type"]))? == Some("proportional")
        {
            // The frequencies of the whole head, of which the last ones are 0.
            let factor = scaling.number_or("factor", 1.0)?;
            let of_whole = |i: usize| match i < width / 2 {
                true => theta.powf(-2.0 * i as f64 / head_dim as f64) / factor,
                false => 0.0,
            };
            let frequencies = (0..head_dim / 2).map(of_whole).collect();
            return Ok(Self { width: head_dim, frequencies, factor: 1.0 });
        }
        let plain = |i: usize| theta.powf(-2.0 * i as f64 / width as f64);
        let plain: Vec<f64> = (0..width / 2).map(plain).collect();
        let of = |frequencies| Self { width, frequencies, factor: 1.0 };
        let Some(scaling) = part else { return Ok(of(plain)) };
        let key = scaling.present_key(&["rope_type", "type"]);
        match scaling.text(key)? {
            None | Some("default") => Ok(of(plain)),
            Some("linear") => {
                let factor = scaling.number("factor")?;
                Ok(of(plain.into_iter().map(|frequency| frequency / factor).collect()))
            }
            Some("llama3") => {
                let slower = llama3(&scaling)?;
                Ok(of(plain.into_iter().map(slower).collect()))
            }
            Some("yarn") => yarn(&scaling, theta, of(plain)),
            // GGUF's form of any scaling that is independent of the length: a divisor per pair.
            Some("divisors") => {
                let divisors = scaling.numbers("divisors", plain.len())?;
                Ok(of(plain.iter().zip(divisors).map(|(plain, by)| plain / by).collect()))
            }
            Some(_) => Err(scaling.wrong(key, "default, linear, llama3, yarn or proportional")),
        }
    }
}

impl Config {
    /// The config with the rotation of layers with a sliding window (`sliding`) or without one (`full`): separate
    /// parameters of transformers 5, or in older files a scaling of the second alone.
    pub(crate) fn with_rope_of(&self, layers: &str) -> Self {
        const KEYS: [&str; 2] = ["rope_parameters", "rope_scaling"];
        let part = |key| self.get(key).and_then(|part| part.get(format!("{layers}_attention")));
        let own = KEYS.into_iter().find_map(part).and_then(Value::as_object).cloned();
        if own.is_none() && layers == "full" {
            return self.clone();
        }
        let mut own = own.unwrap_or_default();
        if let Some(base) = self.get("rope_local_base_freq").filter(|_| layers == "sliding") {
            own.entry("rope_theta").or_insert_with(|| base.clone());
        }
        let own = Value::Object(own);
        KEYS.into_iter().fold(self.clone(), |config, key| config.with(key, own.clone()))
    }

    /// The config with another base of the rotation.
    pub(crate) fn with_rope_base(&self, base: f64) -> Self {
        const BASE: &str = "rope_theta";
        let part = self.get("rope_parameters").and_then(Value::as_object).cloned();
        let config = self.clone().with(BASE, base.into());
        part.into_iter().fold(config, |config, mut part| {
            part.insert(BASE.to_owned(), base.into());
            config.with("rope_parameters", Value::Object(part))
        })
    }
}

/// Llama 3.1's scaling: wavelengths that are long relative to the training context are stretched, short ones stay, with
/// interpolation between them.
fn llama3(scaling: &Config) -> Result<impl Fn(f64) -> f64 + use<>, ConfigError> {
    let factor = scaling.number("factor")?;
    let (low, high) = (scaling.number("low_freq_factor")?, scaling.number("high_freq_factor")?);
    let context = scaling.number("original_max_position_embeddings")?;
    if high <= low {
        return Err(scaling.wrong("high_freq_factor", "more than low_freq_factor"));
    }
    Ok(move |frequency: f64| {
        let waves = context * frequency / TAU;
        let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - kept) * frequency / factor + kept * frequency
    })
}

/// YaRN (arXiv 2309.00071): pairs with many rotations within the training context stay, those with less than one are
/// interpolated, with a ramp between; cosines and sines grow with the logarithm of the factor.
fn yarn(scaling: &Config, theta: f64, plain: Rope) -> Result<Rope, ConfigError> {
    let factor = scaling.number("factor")?;
    let context = scaling.number("original_max_position_embeddings")?;
    let width = plain.width as f64;
    // The pair with this number of rotations within the context.
    let pair = |turns: f64| width * (context / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
    // transformers treats 0 as a missing value.
    let beta = |key: &str, usual: f64| {
        let beta = scaling.number_or(key, usual)?;
        Ok::<_, ConfigError>(pair(if beta == 0.0 { usual } else { beta }))
    };
    let (first, last) = (beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?);
    let (first, last) = match scaling.flag_or("truncate", true)? {
        true => (first.floor(), last.ceil()),
        false => (first, last),
    };
    let (first, last) = (first.max(0.0), last.min(width - 1.0));
    let last = if first == last { last + 0.001 } else { last };
    let mixed = |(i, frequency): (usize, &f64)| {
        let interpolated = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
        interpolated * frequency / factor + (1.0 - interpolated) * frequency
    };
    let frequencies = plain.frequencies.iter().enumerate().map(mixed).collect();
    let grown = |by: f64| grown(factor, by);
    let has = |key: &str| scaling.get(key).is_some();
    let factor = match has("attention_factor") {
        true => scaling.number("attention_factor")?,
        false => {
            let of = |key: &str| scaling.number_or(key, 0.0);
            match [of("mscale")?, of("mscale_all_dim")?] {
                [0.0, _] | [_, 0.0] => grown(1.0),
                [own, all] => grown(own) / grown(all),
            }
        }
    };
    Ok(Rope { frequencies, factor, ..plain })
}

/// YaRN's factor of cosines and sines.
fn grown(factor: f64, by: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 }
}
