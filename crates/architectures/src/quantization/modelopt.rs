//! Reads modelopt's keys: one algorithm for all linear modules except the excluded ones, or one for each module.

use super::{Fp8, Fp8Scales, GroupQuantization, Kind, SCALE, StorageFormat};
use crate::{Config, ConfigError};
use serde_json::Value;
use std::collections::HashSet;

const ALGORITHM: &str = "quant_algo";

impl Config {
    /// The config with the quantization that modelopt writes to a separate file, unless it has one.
    #[must_use]
    pub fn with_hf_quant_config(self, file: &Value) -> Self {
        let found = file.get("quantization").and_then(Value::as_object);
        let Some(mut keys) = found.filter(|_| !self.is_quantised()).cloned() else { return self };
        keys.insert("quant_method".to_owned(), "modelopt".into());
        self.with("quantization_config", Value::Object(keys))
    }
}

/// Reads the keys in config.json, or those of hf_quant_config.json.
pub(super) fn modelopt(part: &Config) -> Result<Kind, ConfigError> {
    let mut ignored = Modules::default();
    if let Some((_, names)) = part.words(&["ignore", "exclude_modules"])? {
        names.iter().for_each(|name| ignored.add(name));
    }
    let mixed = part.text(ALGORITHM)? == Some("MIXED_PRECISION");
    let of_all = if mixed { None } else { Some(algorithm(part)?) };
    let listed = if mixed { listed(part)? } else { Vec::new() };
    Ok(Box::new(move |module| {
        let path = path(module);
        if ignored.have(path) {
            return None;
        }
        let listed = listed.iter().find(|(modules, _)| modules.have(path));
        let last = path.rsplit('.').next().unwrap_or(path);
        // Routers are no linear modules, and modelopt leaves the head as it is unless told otherwise.
        let linear = !["gate", "router", "shared_expert_gate", "lm_head"].contains(&last);
        listed.map(|(_, stored)| *stored).or(of_all.filter(|_| linear))
    }))
}

/// The storage format of an algorithm.
fn algorithm(config: &Config) -> Result<StorageFormat, ConfigError> {
    match config.text(ALGORITHM)? {
        Some("FP8") => Ok(StorageFormat::Fp8(Fp8 { scales: Fp8Scales::Tensor, suffix: SCALE })),
        Some("NVFP4" | "W4A16_NVFP4") => match config.count_or("group_size", 16)? {
            16 => Ok(GroupQuantization::NVFP4.into()),
            _ => Err(config.wrong("group_size", "16, of NVFP4")),
        },
        _ => Err(config.wrong(ALGORITHM, "FP8, NVFP4, W4A16_NVFP4 or MIXED_PRECISION")),
    }
}

/// The modules of a mixed checkpoint with their formats: `quantized_layers`, or groups with targets and weights.
fn listed(part: &Config) -> Result<Vec<(Modules, StorageFormat)>, ConfigError> {
    const LAYERS: &str = "quantized_layers";
    let mut found: Vec<(Modules, StorageFormat)> = Vec::new();
    let mut add = |name: &str, stored: StorageFormat| {
        let same = found.iter().position(|(_, other)| *other == stored);
        let place = same.unwrap_or_else(|| {
            found.push((Modules::default(), stored));
            found.len() - 1
        });
        found[place].0.add(name);
    };
    let by_layer = part.get(LAYERS).is_some();
    let key = if by_layer { LAYERS } else { "config_groups" };
    let Some(all) = part.part(key)? else {
        return Err(part.missing(key, "modules with their algorithms"));
    };
    for name in all.keys() {
        let Some(of) = all.part(name)? else { return Err(all.wrong(name, "an object")) };
        if !by_layer {
            let stored = weights(&of)?;
            let targets = of.words(&["targets"])?.map_or(Vec::new(), |(_, names)| names);
            targets.iter().for_each(|name| add(name, stored));
            continue;
        }
        add(name, algorithm(&of)?);
    }
    Ok(found)
}

/// The storage format of a group's weights.
fn weights(group: &Config) -> Result<StorageFormat, ConfigError> {
    let Some(weights) = group.part("weights")? else {
        return Err(group.missing("weights", "how weights are stored"));
    };
    if weights.text("type")? != Some("float") {
        return Err(weights.wrong("type", "float"));
    }
    match (weights.count("num_bits")?, weights.count_or("group_size", 0)?) {
        (8, 0) => Ok(StorageFormat::Fp8(Fp8 { scales: Fp8Scales::Tensor, suffix: SCALE })),
        (4, 16) => Ok(GroupQuantization::NVFP4.into()),
        (4, _) => Err(weights.wrong("group_size", "16, of NVFP4")),
        _ => Err(weights.wrong("num_bits", "8 without groups, or 4, of floats")),
    }
}

/// The path of a module below the root of the language model, which models and their files spell differently.
fn path(name: &str) -> &str {
    const ROOTS: [&str; 5] = [
        "model.language_model.",
        "language_model.model.",
        "language_model.",
        "model.",
        "backbone.",
    ];
    ROOTS.iter().find_map(|root| name.strip_prefix(root)).unwrap_or(name)
}

/// Modules by name, with everything inside them, or by a pattern with `*`.
#[derive(Default)]
struct Modules {
    names: HashSet<String>,
    patterns: Vec<String>,
}

impl Modules {
    fn add(&mut self, name: &str) {
        let name = path(name).to_owned();
        match name.contains('*') {
            true => self.patterns.push(name),
            false => drop(self.names.insert(name)),
        }
    }

    fn have(&self, module: &str) -> bool {
        let ends = module.match_indices('.').map(|(end, _)| end).chain([module.len()]);
        ends.into_iter().any(|end| self.names.contains(&module[..end]))
            || self.patterns.iter().any(|pattern| matches(pattern, module))
    }
}

/// Whether a name matches a pattern, in which `*` matches any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(first) else { return false };
    let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
    let mut name = match name.strip_suffix(last) {
        Some(name) => name,
        None => return false,
    };
    middle.split('*').all(|piece| match name.find(piece) {
        Some(at) => {
            name = &name[at + piece.len()..];
            true
        }
        None => false,
    })
}
