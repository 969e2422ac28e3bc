//! Reads a config's `quantization_config`: which weights are quantized, and the layout of their scales.

mod gguf;
mod group;
mod modelopt;

pub use gguf::{BitPlane, BlockScales, GgmlType, IntegerCode};
pub use group::{GroupQuantization, Packing, with_int_weights};

use crate::layers::GatedMlp;
use crate::params::{ExpandedBy, Projection};
use crate::{Architecture, Config, ConfigError, Mixer};
use fancy_regex::Regex;
use serde_json::{Map, Value, json};

/// The storage format of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StorageFormat {
    /// A floating-point type of 16 or 32 bits.
    #[default]
    Wide,
    /// float8 E4M3 with scales in another tensor.
    Fp8(Fp8),
    /// Integers of 4 or 8 bits with scales in another tensor.
    Int(GroupQuantization),
}

impl StorageFormat {
    /// Whether rows of both can be concatenated as stored.
    fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Int(one), Self::Int(other)) => {
                let form = |of: GroupQuantization| {
                    let is_expanded = of.on_gpus().bits == 8 && !of.symmetric;
                    (of.bits, of.group, of.is_float(), is_expanded)
                };
                form(one) == form(other)
            }
            (Self::Wide, Self::Wide) | (Self::Fp8(_), Self::Fp8(_)) => true,
            _ => false,
        }
    }
}

impl From<GroupQuantization> for StorageFormat {
    fn from(int: GroupQuantization) -> Self {
        Self::Int(int)
    }
}

/// A float8 parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8 {
    /// The layout of its scales.
    pub scales: Fp8Scales,
    /// Name suffix of its scales.
    pub suffix: &'static str,
}

/// The scales of a float8 parameter, which its values are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fp8Scales {
    /// One scale, `[1]`.
    Tensor,
    /// One per row, `[N, 1]`.
    Row,
    /// One per block of 128 by 128, `[N / 128, K / 128]` rounded up.
    Block,
}

/// Rows and columns of a block, the only published size.
pub const BLOCK: usize = 128;

/// Name suffix of scales. Weights are multiplied by both kinds.
pub const SCALE: &str = "_scale";
/// DeepSeek's suffix: the inverse of the quantization divisor, which all scales are.
pub const SCALE_INV: &str = "_scale_inv";

/// The key of a config.
const KEY: &str = "quantization_config";

/// The modules that a scheme applies to.
struct Scheme {
    stored: StorageFormat,
    targets: Vec<Pattern>,
}

/// The packing of compressed-tensors.
#[derive(Clone, Copy)]
enum Format {
    Float8,
    Integers,
    Mxfp4,
    Nvfp4,
}

/// A module name, or `re:` and a regular expression.
enum Pattern {
    /// Every linear module.
    Linear,
    Name(String),
    /// Matched at the start of a name, like Python's `re.match`.
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
            // An expression that exceeds the time limit does not match.
            Self::Expression(expression) => expression.is_match(module).unwrap_or(false),
        }
    }

    /// Names take precedence over expressions, and expressions over targets that match all modules.
    fn rank(&self) -> usize {
        match self {
            Self::Name(_) => 0,
            Self::Expression(_) => 1,
            Self::Linear => 2,
        }
    }
}

/// The storage format of a module's weight, by its name; `None` if it is not quantized.
type Kind = Box<dyn Fn(&str) -> Option<StorageFormat>>;

/// The storage format of weights by module name.
pub struct Quantization(Kind);

impl Quantization {
    /// Reads a config; `None` if the model is not quantized.
    ///
    /// # Errors
    /// [`ConfigError`] naming an unsupported scheme.
    pub fn of(config: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(part) = config.part(KEY)? else { return Ok(None) };
        let kind = match part.text("quant_method")? {
            Some("compressed-tensors") => compressed_tensors(&part)?,
            Some("fp8") => fp8(&part)?,
            Some("gptq") => group::gptq(&part)?,
            Some("awq") => group::awq(&part)?,
            Some("gguf") => gguf::gguf(&part)?,
            Some("bitsandbytes") => group::bitsandbytes(&part)?,
            Some("modelopt") => modelopt::modelopt(&part)?,
            // Some releases of modelopt leave out their name.
            None if part.has("quant_algo") => modelopt::modelopt(&part)?,
            Some("mxfp4") => {
                Box::new(|module: &str| is_fused(module).then_some(GroupQuantization::MXFP4.into()))
            }
            _ => {
                let read = "compressed-tensors, modelopt, fp8, gptq, awq, bitsandbytes or mxfp4, which are read";
                return Err(part.wrong("quant_method", read));
            }
        };
        Ok(Some(Self(kind)))
    }

    /// The storage format of a linear module's weight.
    pub fn stored(&self, module: &str) -> StorageFormat {
        (self.0)(module).unwrap_or_default()
    }
}

/// Sets the storage format of each parameter.
///
/// # Errors
/// [`ConfigError`] naming an unsupported scheme.
pub(crate) fn apply(config: &Config, architecture: &mut Architecture) -> Result<(), ConfigError> {
    let Some(quantised) = Quantization::of(config)? else { return Ok(()) };
    let (embedding, head) = (architecture.embedding, architecture.is_tied());
    let table = architecture.params.get(embedding).name.clone();
    let stored = |name: &str| -> StorageFormat {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let stored = quantised.stored(module);
        // In other formats the embedding is not a linear module; a tied head has its values.
        let in_blocks = matches!(
            stored,
            StorageFormat::Int(GroupQuantization { packing: Packing::Gguf(_), .. })
        );
        if !in_blocks && (name == table || (head && module == "lm_head")) {
            return StorageFormat::Wide;
        }
        stored
    };
    architecture.params.store(stored);
    // Embedding rows are looked up, which GPUs do in bfloat16.
    architecture.params.expand(embedding, ExpandedBy::OnGpus);
    Ok(())
}

/// Reads compressed-tensors' keys: groups of targets with a scheme each, and ignored modules.
fn compressed_tensors(part: &Config) -> Result<Kind, ConfigError> {
    // The format of a group's weights; `None` if this config does not say.
    let format = |config: &Config| match config.text("format")? {
        None | Some("mixed-precision") => Ok(None),
        Some("float-quantized") => Ok(Some(Format::Float8)),
        Some("pack-quantized") => Ok(Some(Format::Integers)),
        Some("mxfp4-pack-quantized") => Ok(Some(Format::Mxfp4)),
        Some("nvfp4-pack-quantized") => Ok(Some(Format::Nvfp4)),
        Some(_) => {
            let read = "float-quantized, pack-quantized, mxfp4-pack-quantized or nvfp4-pack-quantized, the formats that are read";
            Err(config.wrong("format", read))
        }
    };
    let of_all = format(part)?;
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
        let format = format(&group)?.or(of_all);
        let targets = group.words(&["targets"])?.map(|(_, words)| words);
        let targets = targets.unwrap_or_else(|| vec!["Linear".to_owned()]);
        let targets = targets.iter().map(|word| Pattern::of(&group, "targets", word));
        let targets = targets.collect::<Result<_, _>>()?;
        let Some(weights) = group.part("weights")? else {
            return Err(group.missing("weights", "how weights are stored"));
        };
        let is_int = weights.text("type")? == Some("int");
        let otherwise = if is_int { Format::Integers } else { Format::Float8 };
        match format.unwrap_or(otherwise) {
            Format::Float8 => {}
            Format::Integers => {
                return Ok(Scheme { stored: group::packed(&weights)?.into(), targets });
            }
            Format::Mxfp4 => return Ok(Scheme { stored: mxfp4(&weights)?.into(), targets }),
            Format::Nvfp4 => return Ok(Scheme { stored: nvfp4(&weights)?.into(), targets }),
        }
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
        Ok(Scheme { stored: StorageFormat::Fp8(Fp8 { scales, suffix: SCALE }), targets })
    });
    let groups = groups.collect::<Result<Vec<Scheme>, ConfigError>>()?;
    let ignored = part.words(&["ignore"])?.map_or(Vec::new(), |(_, words)| words);
    let ignored = ignored.iter().map(|word| Pattern::of(part, "ignore", word));
    let ignored = ignored.collect::<Result<Vec<_>, _>>()?;
    Ok(Box::new(move |module| {
        if ignored.iter().any(|one| one.matches(module)) {
            return None;
        }
        let rank = |of: &Scheme| {
            of.targets.iter().filter(|one| one.matches(module)).map(Pattern::rank).min()
        };
        let ranked = groups.iter().filter_map(|of| Some((rank(of)?, of.stored)));
        // On ties the first.
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, stored)| stored)
    }))
}

/// Reads the `weights` of a compressed-tensors group.
fn mxfp4(weights: &Config) -> Result<GroupQuantization, ConfigError> {
    if weights.count("num_bits")? != 4 {
        return Err(weights.wrong("num_bits", "4, of MXFP4"));
    }
    if weights.text("type")? != Some("float") {
        return Err(weights.wrong("type", "float"));
    }
    if weights.count("group_size")? != 32 {
        return Err(weights.wrong("group_size", "32, of MXFP4"));
    }
    if !matches!(weights.text("scale_dtype")?, None | Some("torch.uint8")) {
        return Err(weights.wrong("scale_dtype", "torch.uint8, of MXFP4"));
    }
    Ok(GroupQuantization::MXFP4)
}

/// [`mxfp4`] for NVFP4.
fn nvfp4(weights: &Config) -> Result<GroupQuantization, ConfigError> {
    for (key, wanted) in [("num_bits", 4), ("group_size", 16)] {
        if weights.count(key)? != wanted {
            return Err(weights.wrong(key, format!("{wanted}, of NVFP4")));
        }
    }
    match weights.text("type")? {
        Some("float") => Ok(GroupQuantization::NVFP4),
        _ => Err(weights.wrong("type", "float")),
    }
}

/// Stacked experts of transformers' gpt-oss, the only weights that it stores in MXFP4.
fn is_fused(module: &str) -> bool {
    [".experts.gate_up_proj", ".experts.down_proj"].iter().any(|end| module.ends_with(end))
}

/// Reads the keys of DeepSeek's and Qwen's checkpoints: every linear module except the head and the listed ones.
fn fp8(part: &Config) -> Result<Kind, ConfigError> {
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
        // A name without a path matches anywhere.
        let last = module.rsplit('.').next();
        module == "lm_head" || listed.iter().any(|name| under(name) || last == Some(name.as_str()))
    };
    let suffix = if scales == Fp8Scales::Block { SCALE_INV } else { SCALE };
    let stored = StorageFormat::Fp8(Fp8 { scales, suffix });
    Ok(Box::new(move |module| (!ignored(module)).then_some(stored)))
}

fn block(config: &Config, key: &str) -> Result<Fp8Scales, ConfigError> {
    match config.counts(key)?.as_deref() {
        Some([BLOCK, BLOCK]) => Ok(Fp8Scales::Block),
        _ => Err(config.wrong(key, format!("[{BLOCK}, {BLOCK}]"))),
    }
}

impl Fp8Scales {
    /// Number of scales of a matrix `[rows, columns]`.
    pub fn count(self, rows: usize, columns: usize) -> usize {
        match self {
            Self::Tensor => 1,
            Self::Row => rows,
            Self::Block => rows.div_ceil(BLOCK) * columns.div_ceil(BLOCK),
        }
    }
}

impl Architecture {
    /// Marks which quantized parameters engines expand: matrices per head, experts whose group size expert kernels do
    /// not support, and rows that are multiplied together with rows of another format, such as GGUF's values with
    /// queries and keys. Also marks which parameters expert kernels read: experts, and shared parts of the same format
    /// that can be cut into experts.
    pub(crate) fn note_expanded(&mut self) {
        let (mut heads, mut expanded, mut of_experts) = (Vec::new(), Vec::new(), Vec::new());
        for layer in &self.layers {
            let params = |of: &GatedMlp| {
                let rows = of.gate_up.rows.iter().chain(&of.down.rows);
                rows.map(|rows| rows.param).collect::<Vec<_>>()
            };
            let stored = |of: &GatedMlp| params(of).first().map(|id| self.params.get(*id).stored);
            if let Some(experts) = &layer.experts {
                let like = |of: &&GatedMlp| {
                    let first = experts.experts.first();
                    experts.experts_in(of).is_some() && stored(of) == first.and_then(stored)
                };
                let shared = layer.mlp.iter().filter(like);
                of_experts.extend(experts.experts.iter().chain(shared).flat_map(params));
            }
            for of in layer.mlp.iter().map(|of| &of.gate_up).chain(stacked(&layer.mixer)) {
                let params = || of.rows.iter().map(|rows| rows.param);
                let stored = || params().map(|param| self.params.get(param).stored);
                if !stored().zip(stored().skip(1)).all(|(one, next)| one.is_like(next)) {
                    expanded.extend(params());
                }
            }
            let experts = layer.experts.iter().flat_map(|experts| &experts.experts);
            for of in experts.flat_map(|of| [&of.gate_up, &of.down]) {
                let params = of.rows.iter().map(|rows| rows.param);
                expanded.extend(params.filter(|param| match self.params.get(*param).stored {
                    StorageFormat::Int(int) => !int.has_moe_kernel(of.inputs),
                    _ => false,
                }));
            }
            if let Mixer::Latent(of) = &layer.mixer {
                heads.extend(of.key_up.iter().chain(&of.value_up).map(|rows| rows.param));
            }
        }
        of_experts.into_iter().for_each(|param| self.params.of_experts(param, true));
        expanded.into_iter().for_each(|param| self.params.expand(param, ExpandedBy::OnGpus));
        heads.into_iter().for_each(|param| self.params.expand(param, ExpandedBy::Everywhere));
    }
}

/// The projection of a mixer that stacks rows of several parameters.
fn stacked(mixer: &Mixer) -> Option<&Projection> {
    match mixer {
        Mixer::Attention(of) => Some(&of.qkv),
        Mixer::Parallel(of) => Some(&of.attention.qkv),
        Mixer::Kda(of) => Some(&of.project),
        Mixer::Latent(of) => Some(&of.project),
        Mixer::GatedDelta(of) => Some(&of.project),
        Mixer::Mamba1(_) | Mixer::Mamba2(_) | Mixer::ShortConv(_) | Mixer::None => None,
    }
}

/// Linear modules that stay unquantized: the head, and routers, which are small and whose errors change the chosen
/// experts.
const WIDE: &[&str] = &["lm_head", r"re:.*router.*", r"re:.*\.(gate|shared_expert_gate)$"];

/// A config whose linear modules have float8 weights with a scale per row, as compressed-tensors writes it: the output
/// of `synth` and `quantize`.
#[must_use]
pub fn with_fp8_weights(config: Config) -> Config {
    config.with(KEY, fp8_rows(WIDE))
}

fn fp8_rows(ignore: &[&str]) -> Value {
    let float = |strategy: &str, dynamic: bool| {
        json!({
            "num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true, "dynamic": dynamic,
        })
    };
    let group = json!({
        "targets": ["Linear"],
        "weights": float("channel", false),
        "input_activations": float("token", true),
    });
    compressed("float-quantized", Map::from_iter([("group_0".to_owned(), group)]), ignore)
}

/// The `quantization_config` of compressed-tensors.
fn compressed(format: &str, groups: Map<String, Value>, ignore: &[&str]) -> Value {
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ignore,
    })
}

#[cfg(test)]
mod tests;
