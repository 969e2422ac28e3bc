//! What a config's `quantization_config` says of weights: which are narrower than the rest, and how their scales lie.

mod gguf;
mod integers;

pub use gguf::Block;
pub use integers::{Int, Packing, in_integers};

use crate::layers::GatedMlp;
use crate::params::{Expanded, Projection};
use crate::{Architecture, Config, ConfigError, Mixer};
use fancy_regex::Regex;
use serde_json::{Map, Value, json};

/// How a checkpoint stores a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stored {
    /// In a floating-point type of 16 or 32 bits.
    #[default]
    Wide,
    /// float8 E4M3 beside scales in another tensor.
    Fp8(Fp8),
    /// Integers of 4 or 8 bits beside scales in another tensor.
    Int(Int),
}

impl Stored {
    /// Whether rows of one and of the other can stand under each other as they are stored.
    fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Int(one), Self::Int(other)) => {
                (one.bits, one.group) == (other.bits, other.group)
            }
            (Self::Wide, Self::Wide) | (Self::Fp8(_), Self::Fp8(_)) => true,
            _ => false,
        }
    }
}

impl From<Int> for Stored {
    fn from(int: Int) -> Self {
        Self::Int(int)
    }
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
    stored: Stored,
    targets: Vec<Pattern>,
}

/// What compressed-tensors packs weights in.
#[derive(Clone, Copy)]
enum Format {
    Float8,
    Integers,
    Mxfp4,
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

    /// What is said of a name goes before what is said of an expression, and that before what is said of all.
    fn rank(&self) -> usize {
        match self {
            Self::Name(_) => 0,
            Self::Expression(_) => 1,
            Self::Linear => 2,
        }
    }
}

/// How a module's weight is stored, by its name; none: as the rest.
type Kind = Box<dyn Fn(&str) -> Option<Stored>>;

/// What a config says of how weights are stored, by the names of modules.
pub struct Quantised(Kind);

impl Quantised {
    /// What a config says; none where it is of no quantised model.
    ///
    /// # Errors
    /// [`ConfigError`] naming a scheme that is not read.
    pub fn of(config: &Config) -> Result<Option<Self>, ConfigError> {
        let Some(part) = config.part(KEY)? else { return Ok(None) };
        let kind = match part.text("quant_method")? {
            Some("compressed-tensors") => compressed_tensors(&part)?,
            Some("fp8") => fp8(&part)?,
            Some("gptq") => integers::gptq(&part)?,
            Some("awq") => integers::awq(&part)?,
            Some("gguf") => gguf::gguf(&part)?,
            Some("bitsandbytes") => integers::bitsandbytes(&part)?,
            Some("mxfp4") => Box::new(|module: &str| is_fused(module).then_some(Int::MXFP4.into())),
            _ => {
                let read =
                    "compressed-tensors, fp8, gptq, awq, bitsandbytes or mxfp4, which are read";
                return Err(part.wrong("quant_method", read));
            }
        };
        Ok(Some(Self(kind)))
    }

    /// How the weight of a linear module is stored.
    pub fn stored(&self, module: &str) -> Stored {
        (self.0)(module).unwrap_or_default()
    }
}

/// Notes how each parameter is stored.
///
/// # Errors
/// [`ConfigError`] naming a scheme that is not read.
pub(crate) fn apply(config: &Config, architecture: &mut Architecture) -> Result<(), ConfigError> {
    let Some(quantised) = Quantised::of(config)? else { return Ok(()) };
    let (embedding, head) = (architecture.embedding, architecture.is_tied());
    let table = architecture.params.get(embedding).name.clone();
    let stored = |name: &str| -> Stored {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let stored = quantised.stored(module);
        // Elsewhere the embedding is no linear module; a head that is one with it has its values.
        let in_blocks = matches!(stored, Stored::Int(Int { packing: Packing::Gguf(_), .. }));
        if !in_blocks && (name == table || (head && module == "lm_head")) {
            return Stored::Wide;
        }
        stored
    };
    architecture.params.store(stored);
    // Its rows are looked up, which GPUs do in bfloat16.
    architecture.params.expand(embedding, Expanded::OnGpus);
    Ok(())
}

/// By compressed-tensors' keys: groups of targets with a scheme each, and what is ignored.
fn compressed_tensors(part: &Config) -> Result<Kind, ConfigError> {
    // What a group's weights are in; none where this does not say.
    let format = |config: &Config| match config.text("format")? {
        None | Some("mixed-precision") => Ok(None),
        Some("float-quantized") => Ok(Some(Format::Float8)),
        Some("pack-quantized") => Ok(Some(Format::Integers)),
        Some("mxfp4-pack-quantized") => Ok(Some(Format::Mxfp4)),
        Some(_) => {
            let read = "float-quantized, pack-quantized or mxfp4-pack-quantized, the formats that are read";
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
                return Ok(Scheme { stored: integers::packed(&weights)?.into(), targets });
            }
            Format::Mxfp4 => return Ok(Scheme { stored: mxfp4(&weights)?.into(), targets }),
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
        Ok(Scheme { stored: Stored::Fp8(Fp8 { scales, suffix: SCALE }), targets })
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
        // Of equals the first.
        ranked.min_by_key(|(rank, _)| *rank).map(|(_, stored)| stored)
    }))
}

/// By the `weights` of a group of compressed-tensors.
fn mxfp4(weights: &Config) -> Result<Int, ConfigError> {
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
    Ok(Int::MXFP4)
}

/// Weights of all experts as transformers' gpt-oss has them, the only ones that it packs in MXFP4.
fn is_fused(module: &str) -> bool {
    [".experts.gate_up_proj", ".experts.down_proj"].iter().any(|end| module.ends_with(end))
}

/// By the keys of DeepSeek's and Qwen's own checkpoints: every linear module but the head, and those that are listed.
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
        // A name without its path is meant wherever it stands.
        let last = module.rsplit('.').next();
        module == "lm_head" || listed.iter().any(|name| under(name) || last == Some(name.as_str()))
    };
    let suffix = if scales == Fp8Scales::Block { SCALE_INV } else { SCALE };
    let stored = Stored::Fp8(Fp8 { scales, suffix });
    Ok(Box::new(move |module| (!ignored(module)).then_some(stored)))
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
    /// Notes which parameters engines expand though they are stored narrower: matrices of heads, experts in groups that kernels for
    /// experts do not read, and what is multiplied in one pass with rows that are stored otherwise, as GGUF's values among queries and keys. And which are multiplied as experts are: these, and what is stored like them and can be cut into such.
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
                    Stored::Int(int) => !int.is_read_by_experts(of.inputs),
                    _ => false,
                }));
            }
            if let Mixer::Latent(of) = &layer.mixer {
                heads.extend(of.key_up.iter().chain(&of.value_up).map(|rows| rows.param));
            }
        }
        of_experts.into_iter().for_each(|param| self.params.of_experts(param, true));
        expanded.into_iter().for_each(|param| self.params.expand(param, Expanded::OnGpus));
        heads.into_iter().for_each(|param| self.params.expand(param, Expanded::Everywhere));
    }
}

/// What a mixer multiplies by rows of several parameters.
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

/// What compressed-tensors writes into a config.
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
