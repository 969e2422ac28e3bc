//! What a config's `quantization_config` says of weights: which are narrower than the rest, and how their scales lie.

use crate::{Architecture, Config, ConfigError, Mixer};
use fancy_regex::Regex;
use serde_json::Value;

/// How a checkpoint stores a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stored {
    /// In a floating-point type of 16 or 32 bits.
    #[default]
    Wide,
    /// float8 E4M3 beside scales in another tensor.
    Fp8(Fp8),
}

/// A parameter in float8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8 {
    /// How its scales lie.
    pub scales: Fp8Scales,
    /// What their name has behind the parameter's.
    pub suffix: &'static str,
}

/// The scales of a parameter in float8: what its numbers are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8Scales {
    /// One, `[1]`.
    Tensor,
    /// One a row, `[N, 1]`.
    Row,
    /// One for each block of 128 by 128, `[N / 128, K / 128]` rounded up.
    Block,
}

/// Rows and columns of a block, the only size that is published.
pub const BLOCK: usize = 128;

/// What names of scales have behind those of weights. Both are multiplied with.
pub const SCALE: &str = "_scale";
/// The same by DeepSeek's name: the inverse of what the weights were divided by, which is what all scales are.
pub const SCALE_INV: &str = "_scale_inv";

/// The key of a config.
const KEY: &str = "quantization_config";

/// What a scheme applies to.
struct Scheme {
    fp8: Fp8,
    targets: Vec<Pattern>,
}

/// A name of modules, or `re:` and an expression.
enum Pattern {
    /// Every linear module.
    Linear,
    Name(String),
    /// Found at the beginning of a name, as Python's `re.match` does.
    Expression(Regex),
}

impl Pattern {
    fn of(config: &Config, key: &str, word: &str) -> Result<Self, ConfigError> {
        let Some(expression) = word.strip_prefix("re:") else {
            return Ok(if word == "Linear" { Self::Linear } else { Self::Name(word.to_owned()) });
        };
        let wrong = |_| config.wrong(key, format!("expressions that can be read, unlike `{word}`"));
        Regex::new(&format!("^(?:{expression})")).map(Self::Expression).map_err(wrong)
    }

    fn matches(&self, module: &str) -> bool {
        match self {
            Self::Linear => true,
            Self::Name(name) => name == module,
            // An expression that takes too long has not matched.
            Self::Expression(expression) => expression.is_match(module).unwrap_or(false),
        }
    }
}

/// Notes how each parameter is stored.
///
/// # Errors
/// [`ConfigError`] naming a scheme that is not read.
pub(crate) fn apply(config: &Config, architecture: &mut Architecture) -> Result<(), ConfigError> {
    let Some(part) = config.part(KEY)? else { return Ok(()) };
    let (schemes, ignored) = match part.text("quant_method")? {
        Some("compressed-tensors") => compressed_tensors(&part)?,
        Some("fp8") => fp8(&part)?,
        _ => {
            return Err(part.wrong("quant_method", "compressed-tensors or fp8, which are read"));
        }
    };
    let (embedding, head) = (architecture.embedding, architecture.is_tied());
    let table = architecture.params.get(embedding).name.clone();
    let stored = |name: &str| -> Stored {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        // The embedding is no linear module; a head that is one with it has its values.
        if name == table || (head && module == "lm_head") || ignored(module) {
            return Stored::Wide;
        }
        let found = schemes.iter().find(|of| of.targets.iter().any(|one| one.matches(module)));
        found.map_or(Stored::Wide, |of| Stored::Fp8(of.fp8))
    };
    architecture.params.store(stored);
    Ok(())
}

type Parts = (Vec<Scheme>, Box<dyn Fn(&str) -> bool>);

/// By compressed-tensors' keys: groups of targets with a scheme each, and what is ignored.
fn compressed_tensors(part: &Config) -> Result<Parts, ConfigError> {
    const FORMAT: &str = "float-quantized, the format that is read";
    let float = |config: &Config| match config.text("format")? {
        None | Some("float-quantized") => Ok(()),
        Some(_) => Err(config.wrong("format", FORMAT)),
    };
    float(part)?;
    if part.has("kv_cache_scheme") {
        return Err(part.wrong("kv_cache_scheme", "null: caches are kept in bfloat16"));
    }
    let groups = match part.get("config_groups") {
        Some(Value::Object(groups)) => groups.keys(),
        _ => return Err(part.missing("config_groups", "groups of targets with their weights")),
    };
    let groups = groups.map(|name| {
        let all = part.part("config_groups")?;
        let group = all.as_ref().map(|all| all.part(name)).transpose()?.flatten();
        let Some(group) = group else {
            return Err(part.wrong("config_groups", "objects with targets and weights"));
        };
        float(&group)?;
        let targets = group.words(&["targets"])?.map(|(_, words)| words);
        let targets = targets.unwrap_or_else(|| vec!["Linear".to_owned()]);
        let targets = targets.iter().map(|word| Pattern::of(&group, "targets", word));
        let targets = targets.collect::<Result<_, _>>()?;
        let Some(weights) = group.part("weights")? else {
            return Err(group.missing("weights", "how weights are stored"));
        };
        if weights.count("num_bits")? != 8 {
            return Err(weights.wrong("num_bits", "8, of a float"));
        }
        if weights.text("type")? != Some("float") {
            return Err(weights.wrong("type", "float"));
        }
        if !weights.flag_or("symmetric", true)? {
            return Err(weights.wrong("symmetric", "true"));
        }
        let scales = match weights.text("strategy")? {
            Some("tensor") => Fp8Scales::Tensor,
            Some("channel") => Fp8Scales::Row,
            Some("block") => block(&weights, "block_structure")?,
            _ => return Err(weights.wrong("strategy", "tensor, channel or block")),
        };
        Ok(Scheme { fp8: Fp8 { scales, suffix: SCALE }, targets })
    });
    let groups = groups.collect::<Result<_, _>>()?;
    let ignored = part.words(&["ignore"])?.map_or(Vec::new(), |(_, words)| words);
    let ignored = ignored.iter().map(|word| Pattern::of(part, "ignore", word));
    let ignored = ignored.collect::<Result<Vec<_>, _>>()?;
    Ok((groups, Box::new(move |module| ignored.iter().any(|one| one.matches(module)))))
}

/// By the keys of DeepSeek's and Qwen's own checkpoints: every linear module but the head, and those that are listed.
fn fp8(part: &Config) -> Result<Parts, ConfigError> {
    match part.text("fmt")? {
        None | Some("e4m3" | "float8_e4m3fn") => {}
        Some(_) => return Err(part.wrong("fmt", "e4m3")),
    }
    let scales = match part.has("weight_block_size") {
        true => block(part, "weight_block_size")?,
        false => Fp8Scales::Tensor,
    };
    const LISTS: [&str; 2] = ["modules_to_not_convert", "ignored_layers"];
    let listed = part.words(&LISTS)?.map_or(Vec::new(), |(_, words)| words);
    let ignored = move |module: &str| {
        let under = |name: &String| {
            module == name || module.strip_prefix(&**name).is_some_and(|rest| rest.starts_with('.'))
        };
        // A name without its path is meant wherever it stands.
        let last = module.rsplit('.').next();
        module == "lm_head" || listed.iter().any(|name| under(name) || last == Some(name.as_str()))
    };
    let suffix = if scales == Fp8Scales::Block { SCALE_INV } else { SCALE };
    let scheme = Scheme { fp8: Fp8 { scales, suffix }, targets: vec![Pattern::Linear] };
    Ok((vec![scheme], Box::new(ignored)))
}

fn block(config: &Config, key: &str) -> Result<Fp8Scales, ConfigError> {
    match config.counts(key)?.as_deref() {
        Some([BLOCK, BLOCK]) => Ok(Fp8Scales::Block),
        _ => Err(config.wrong(key, format!("[{BLOCK}, {BLOCK}]"))),
    }
}

impl Fp8Scales {
    /// How many there are of a matrix `[rows, columns]`.
    pub fn count(self, rows: usize, columns: usize) -> usize {
        match self {
            Self::Tensor => 1,
            Self::Row => rows,
            Self::Block => rows.div_ceil(BLOCK) * columns.div_ceil(BLOCK),
        }
    }
}

impl Architecture {
    /// Notes which parameters engines expand though they are stored narrower: experts, and matrices of heads.
    pub(crate) fn note_expanded(&mut self) {
        let mut expanded = Vec::new();
        for layer in &self.layers {
            let experts = layer.experts.iter().flat_map(|experts| &experts.experts);
            let experts = experts.flat_map(|of| [&of.gate_up, &of.down]);
            expanded.extend(experts.flat_map(|of| &of.rows).map(|rows| rows.param));
            if let Mixer::Latent(of) = &layer.mixer {
                expanded.extend(of.key_up.iter().chain(&of.value_up).map(|rows| rows.param));
            }
        }
        expanded.into_iter().for_each(|param| self.params.expand(param));
    }
}

/// What stays wide though its modules are linear: the head, and routers, which are small and whose errors choose other experts.
const WIDE: &[&str] = &["lm_head", r"re:.*router.*", r"re:.*\.(gate|shared_expert_gate)$"];

/// A config whose linear modules have weights in float8 with a scale a row, as compressed-tensors writes it: what `synth` and `quantize`
/// give.
#[must_use]
pub fn in_fp8(config: Config) -> Config {
    config.with(KEY, fp8_rows(WIDE))
}

fn fp8_rows(ignore: &[&str]) -> Value {
    let float = |strategy: &str, dynamic: bool| {
        serde_json::json!({
            "num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true, "dynamic": dynamic,
        })
    };
    serde_json::json!({
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": { "group_0": {
            "targets": ["Linear"],
            "weights": float("channel", false),
            "input_activations": float("token", true),
        } },
        "ignore": ignore,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    /// How the parameters of a reduced Granite are stored, of those whose names end so, in the order of layers.
    fn stored(config: &str, name: &str) -> Result<Vec<Stored>, String> {
        let config =
            shape("granite-moe-mini").unwrap().with(KEY, serde_json::from_str(config).unwrap());
        let architecture = Architecture::of(&config).map_err(|error| error.to_string())?;
        let named = architecture.params.iter().filter(|param| param.name.ends_with(name));
        Ok(named.map(|param| param.stored).collect())
    }

    fn group(weights: &str, rest: &str) -> String {
        format!(
            r#"{{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
                {{"group_0": {{"targets": ["Linear"], "weights": {{{weights}}}}}}}{rest}}}"#
        )
    }

    const ROWS: &str = r#""num_bits": 8, "type": "float", "strategy": "channel""#;

    #[test]
    fn published_configs_say_which_weights_are_narrow() {
        let fp8 = |scales, suffix| Stored::Fp8(Fp8 { scales, suffix });
        let (rows, blocks) = (fp8(Fp8Scales::Row, SCALE), fp8(Fp8Scales::Block, SCALE_INV));
        let ignoring = group(ROWS, r#", "ignore": ["lm_head", "re:.*block_sparse_moe.router"]"#);
        let inverse = r#"{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128], "modules_to_not_convert": ["router", "model.layers.0.mamba"]}"#;
        for (config, name, wanted) in [
            (&*ignoring, "shared_mlp.input_linear.weight", rows),
            (&ignoring, "block_sparse_moe.input_linear.weight", rows),
            (&ignoring, "mamba.in_proj.weight", rows),
            (&ignoring, "router.layer.weight", Stored::Wide),
            // No linear modules, whatever a target says.
            (&ignoring, "embed_tokens.weight", Stored::Wide),
            (&ignoring, "conv1d.weight", Stored::Wide),
            (&ignoring, "A_log", Stored::Wide),
            (inverse, "shared_mlp.input_linear.weight", blocks),
            (inverse, "layers.0.mamba.in_proj.weight", Stored::Wide),
        ] {
            let found = stored(config, name).unwrap();
            assert!(
                !found.is_empty() && found.iter().all(|one| *one == wanted),
                "{name}: {found:?}"
            );
        }
    }

    #[test]
    fn what_is_not_read_is_refused_by_its_name() {
        for (config, wanted) in [
            (
                r#"{"quant_method": "gptq", "bits": 4}"#,
                "`quantization_config.quant_method` is \"gptq\"",
            ),
            (
                &*group(r#""num_bits": 4, "type": "int", "strategy": "group""#, ""),
                "weights.num_bits` is 4",
            ),
            (
                &group(r#""num_bits": 8, "type": "int", "strategy": "channel""#, ""),
                "weights.type` is \"int\"",
            ),
            (&group(ROWS, r#", "kv_cache_scheme": {"num_bits": 8}"#), "kv_cache_scheme"),
            (&group(ROWS, r#", "ignore": ["re:("]"#), "`quantization_config.ignore`"),
            (
                r#"{"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}}"#,
                "`quantization_config.format` is \"pack-quantized\"",
            ),
            (
                r#"{"quant_method": "fp8", "weight_block_size": [64, 64]}"#,
                "weight_block_size` is [64,64], wanted [128, 128]",
            ),
        ] {
            let error = stored(config, "").unwrap_err();
            assert!(error.contains(wanted), "{error}");
        }
    }

    /// 2.985 G linear values of Granite 4.0-H micro; the head is its embedding, which stays as it is.
    #[test]
    fn bytes_are_those_of_float8() {
        let wide = shape("granite-4.0-h-micro").unwrap();
        let [wide, narrow] = [wide.clone(), in_fp8(wide)].map(|of| Architecture::of(&of).unwrap());
        let [before, after] = [&wide, &narrow].map(|of| of.weight_bytes_per_step(2, 1));
        let linear = before - after;
        assert!((linear as f64 / 2.985e9 - 1.0).abs() < 5e-3, "{linear}");
        assert_eq!(wide.params.count(), narrow.params.count());
    }
}
