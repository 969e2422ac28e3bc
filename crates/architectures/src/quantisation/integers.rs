//! Weights in integers: `pack-quantized` of compressed-tensors, GPTQ and AWQ.

use super::{Block, KEY, Kind, WIDE, compressed};
use crate::{Architecture, Config, ConfigError};
use fancy_regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A parameter in integers beside scales in another tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int {
    /// Bits of a number: 4 or 8.
    pub bits: usize,
    /// Columns with a scale of their own; none where a row has one.
    pub group: Option<usize>,
    /// Whether numbers have no zero points but the middle of their range.
    pub symmetric: bool,
    /// Whether columns belong to groups in an order of their own.
    pub ordered: bool,
    /// How they are packed.
    pub packing: Packing,
}

/// How integers lie in 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// By compressed-tensors: along rows of the weight, low bits first.
    Rows,
    /// By GPTQ: along columns. The first version of its format has zero points that are smaller by 1.
    Gptq {
        /// Whether they are.
        smaller: bool,
    },
    /// By AWQ: across outputs, of which eight are interleaved.
    Awq,
    /// By bitsandbytes: its 4 bits are looked up in a table, and scaled by blocks that go on over the ends of rows.
    LookedUp,
    /// In blocks of a row beside their scales, as GGUF files have them.
    Gguf(Block),
    /// No integers: numbers of 4 bits (E2M1), two a byte, the first in the lower half, and powers of two (E8M0).
    Mxfp4,
}

impl Int {
    /// Scales of a row of so many columns.
    pub fn groups(self, columns: usize) -> usize {
        self.group.map_or(1, |group| columns.div_ceil(group))
    }

    /// Numbers in MXFP4: E2M1 beside a power of two for each 32 of them.
    pub const MXFP4: Self =
        Self { bits: 4, group: Some(32), symmetric: true, ordered: false, packing: Packing::Mxfp4 };

    /// Whether its numbers are no integers but E2M1. Twice as large they are integers, from -12 to 12.
    pub fn is_float(self) -> bool {
        matches!(self.packing, Packing::Mxfp4 | Packing::Gguf(Block::Mxfp4))
    }

    /// Bytes of such numbers in float8 with a scale a row, in which they are exact.
    pub(crate) fn float8_bytes(self, [rows, columns]: [usize; 2]) -> u64 {
        (rows as u64).saturating_mul(columns as u64 + 4)
    }

    /// Bytes of a weight's numbers, and of what belongs to them, where a scale and a zero point take so many.
    pub(crate) fn bytes(self, [rows, columns]: [usize; 2], factor_bytes: [usize; 2]) -> u64 {
        let [scale, zero] = factor_bytes;
        let factor = scale + if self.symmetric { 0 } else { zero };
        let numbers = (rows as u64).saturating_mul(columns as u64).saturating_mul(self.bits as u64);
        let factors = (rows as u64).saturating_mul((self.groups(columns) * factor) as u64);
        numbers.div_ceil(8).saturating_add(factors)
    }

    /// Bytes of a weight in a file.
    pub(crate) fn stored_bytes(self, [rows, columns]: [usize; 2]) -> u64 {
        match self.packing {
            Packing::Gguf(block) => {
                let of_row = columns.div_ceil(block.values()) * block.bytes();
                (rows as u64).saturating_mul(of_row as u64)
            }
            // The scale of a block has a byte where scales are nested, which they mostly are, and that of a row four.
            Packing::LookedUp => {
                let scale = if self.bits == 4 { 1 } else { 4 };
                self.bytes([rows, columns], [scale, 0])
            }
            Packing::Mxfp4 => self.bytes([rows, columns], [1, 0]),
            _ => self.bytes([rows, columns], [2, 1]),
        }
    }

    /// Whether GPUs multiply such weights of so many columns: by 16 bytes of a row, with the groups and what is taken from numbers that
    /// `linear` takes.
    pub(crate) fn is_multiplied(self, columns: usize) -> bool {
        let least = if self.bits == 8 { 16 } else { 32 };
        let group = self.group.is_none_or(|group| group.is_multiple_of(least));
        if self.packing == Packing::LookedUp {
            return false;
        }
        let zeros = self.bits == 4 || self.symmetric;
        columns.is_multiple_of(32) && group && !self.ordered && zeros
    }

    /// Whether what is taken from a group's numbers is no whole one, as in GGUF's K blocks.
    pub fn has_offsets(self) -> bool {
        !self.symmetric && matches!(self.packing, Packing::Gguf(_))
    }

    /// Whether a scale is the product of two, as in GGUF's K blocks, which 16 bits do not hold.
    pub fn has_wide_scales(self) -> bool {
        matches!(self.packing, Packing::Gguf(Block::Q4K | Block::Q5K | Block::Q6K))
    }

    /// Whether kernels for experts on GPUs do: a warp's 16 bytes a lane of a row have one factor.
    pub(crate) fn is_read_by_experts(self, columns: usize) -> bool {
        if self.is_float() {
            return self.is_multiplied(columns);
        }
        let step = 512 / self.bits;
        let whole = |group: usize| {
            group >= columns || (group.is_multiple_of(step) && (group / step).is_power_of_two())
        };
        self.is_multiplied(columns) && self.group.is_none_or(whole)
    }
}

/// What is read, in words.
const BITS: &str = "4 or 8";

fn bits(part: &Config, key: &str) -> Result<usize, ConfigError> {
    match part.count(key)? {
        bits @ (4 | 8) => Ok(bits),
        _ => Err(part.wrong(key, BITS)),
    }
}

/// Columns of a group; none where -1 or nothing is given, which stand for whole rows.
fn group(part: &Config) -> Result<Option<usize>, ConfigError> {
    let key = "group_size";
    match part.get(key).map(Value::as_i64) {
        None | Some(Some(-1)) => Ok(None),
        Some(Some(1..)) => part.count(key).map(Some),
        Some(_) => Err(part.wrong(key, "columns of a group, or -1")),
    }
}

/// By the `weights` of a group of compressed-tensors.
pub(super) fn packed(weights: &Config) -> Result<Int, ConfigError> {
    let bits = bits(weights, "num_bits")?;
    if weights.text("type")? != Some("int") {
        return Err(weights.wrong("type", "int"));
    }
    let group = match weights.text("strategy")? {
        Some("channel") => None,
        Some("group") => match group(weights)? {
            Some(group) => Some(group),
            None => return Err(weights.wrong("group_size", "columns of a group")),
        },
        _ => return Err(weights.wrong("strategy", "channel or group")),
    };
    let ordered = match weights.get("actorder") {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::String(word)) => match word.as_str() {
            "group" | "dynamic" => true,
            // The order in which weights were rounded: none that a reader sees.
            "weight" | "static" => false,
            _ => return Err(weights.wrong("actorder", "group or weight")),
        },
        Some(_) => return Err(weights.wrong("actorder", "group or weight")),
    };
    let symmetric = weights.flag_or("symmetric", true)?;
    Ok(Int { bits, group, symmetric, ordered, packing: Packing::Rows })
}

/// By GPTQ's keys: every linear module of the layers, unless `dynamic` says otherwise of its name.
pub(super) fn gptq(part: &Config) -> Result<Kind, ConfigError> {
    let smaller = match part.text(part.spelled(&["checkpoint_format", "format"]))? {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(_) => {
            let key = part.spelled(&["checkpoint_format", "format"]);
            return Err(part.wrong(key, "gptq or gptq_v2, the formats that are read"));
        }
    };
    if !matches!(part.text("pack_dtype")?, None | Some("int32")) {
        return Err(part.wrong("pack_dtype", "int32"));
    }
    let of = |part: &Config, otherwise: Option<Int>| -> Result<Int, ConfigError> {
        Ok(Int {
            bits: match otherwise {
                Some(otherwise) if !part.has("bits") => otherwise.bits,
                _ => bits(part, "bits")?,
            },
            group: match otherwise {
                Some(otherwise) if !part.has("group_size") => otherwise.group,
                _ => group(part)?,
            },
            symmetric: part.flag_or("sym", otherwise.is_none_or(|of| of.symmetric))?,
            ordered: part.flag_or("desc_act", otherwise.is_some_and(|of| of.ordered))?,
            packing: Packing::Gptq { smaller },
        })
    };
    let usual = of(part, None)?;
    let head = part.flag_or("lm_head", false)?;
    let dynamic = part.part("dynamic")?;
    // In the order of the file, of which the first that fits decides.
    let names = dynamic.iter().flat_map(Config::keys);
    let rules = names.map(|name| {
        let none = name.strip_prefix("-:");
        let expression = none.or(name.strip_prefix("+:")).unwrap_or(name);
        let wrong =
            |_| part.wrong("dynamic", format!("expressions that can be read, unlike `{name}`"));
        let expression = Regex::new(&format!("^(?:{expression})")).map_err(wrong)?;
        let own = match dynamic.as_ref().map(|all| all.part(name)).transpose()?.flatten() {
            Some(own) if none.is_none() => Some(of(&own, Some(usual))?),
            _ => None,
        };
        Ok((expression, own))
    });
    let rules = rules.collect::<Result<Vec<_>, ConfigError>>()?;
    Ok(Box::new(move |module| {
        if (module == "lm_head" && !head) || is_router(module) {
            return None;
        }
        let fits = |(rule, _): &&(Regex, Option<Int>)| rule.is_match(module).unwrap_or(false);
        rules.iter().find(fits).map_or(Some(usual), |(_, own)| *own).map(Into::into)
    }))
}

/// By AWQ's keys: every linear module but the head and those whose names contain what is listed.
pub(super) fn awq(part: &Config) -> Result<Kind, ConfigError> {
    if !part.text("version")?.is_none_or(|version| version.eq_ignore_ascii_case("gemm")) {
        return Err(part.wrong("version", "gemm, the version that is read"));
    }
    let bits_key = part.spelled(&["bits", "w_bit"]);
    if part.count(bits_key)? != 4 {
        return Err(part.wrong(bits_key, "4"));
    }
    if !part.flag_or("zero_point", true)? {
        return Err(part.wrong("zero_point", "true"));
    }
    let packing = Packing::Awq;
    let int = Int { bits: 4, group: group(part)?, symmetric: false, ordered: false, packing };
    let listed = part.words(&["modules_to_not_convert"])?.map_or(Vec::new(), |(_, words)| words);
    Ok(Box::new(move |module| {
        let ignored = listed.iter().any(|name| module.contains(&**name));
        (module != "lm_head" && !is_router(module) && !ignored).then(|| int.into())
    }))
}

/// By bitsandbytes' keys: every linear module but the head and those that are skipped. Of blocks the usual size is counted.
pub(super) fn bitsandbytes(part: &Config) -> Result<Kind, ConfigError> {
    let four = part.flag_or("load_in_4bit", false)?;
    if four == part.flag_or("load_in_8bit", false)? {
        return Err(part.wrong("load_in_4bit", "true, or load_in_8bit in its place"));
    }
    if !matches!(part.text("bnb_4bit_quant_storage")?, None | Some("uint8")) {
        return Err(part.wrong("bnb_4bit_quant_storage", "uint8"));
    }
    const SKIPPED: &str = "llm_int8_skip_modules";
    let skipped = part.words(&[SKIPPED])?.map_or(Vec::new(), |(_, words)| words);
    let (bits, group) = if four { (4, Some(64)) } else { (8, None) };
    let packing = Packing::LookedUp;
    let int = Int { bits, group, symmetric: true, ordered: false, packing };
    Ok(Box::new(move |module| {
        let skips =
            |name: &String| module == name || format!("{module}.").contains(&format!("{name}."));
        (module != "lm_head" && !skipped.iter().any(skips)).then(|| int.into())
    }))
}

/// Routers, which neither method rounds, whether a list names them or not.
fn is_router(module: &str) -> bool {
    let last = module.rsplit('.').next();
    module.contains("router") || matches!(last, Some("gate" | "shared_expert_gate"))
}

/// Columns of a group that are written, the best first.
const GROUPS: [usize; 3] = [128, 64, 32];

/// A config whose linear modules have weights in integers of so many bits, symmetric, with a scale for each group of 128 columns, as
/// compressed-tensors writes it; of fewer columns, or for whole rows, where these are no whole groups. What `synth` and `quantize` give.
///
/// # Errors
/// [`ConfigError`] when the config describes no model.
pub fn in_integers(config: Config, bits: usize) -> Result<Config, ConfigError> {
    let architecture = Architecture::describe(&config)?;
    let mut others = BTreeMap::<usize, Vec<String>>::new();
    for param in architecture.params.iter().filter(|param| param.is_matrix()) {
        let columns = param.sides()[1];
        let group = GROUPS.into_iter().position(|group| columns.is_multiple_of(group));
        if group != Some(0) {
            let module = param.name.strip_suffix(".weight").unwrap_or(&param.name);
            others.entry(group.unwrap_or(GROUPS.len())).or_default().push(module.to_owned());
        }
    }
    let scheme = |targets: Value, group: Option<&usize>| {
        let mut weights = json!({
            "num_bits": bits, "type": "int", "symmetric": true, "dynamic": false,
            "strategy": if group.is_some() { "group" } else { "channel" },
        });
        if let Some(group) = group {
            weights["group_size"] = json!(group);
        }
        json!({ "targets": targets, "weights": weights })
    };
    let usual = scheme(json!(["Linear"]), Some(&GROUPS[0]));
    let others = others.into_iter().map(|(at, names)| scheme(json!(names), GROUPS.get(at)));
    let groups = std::iter::once(usual).chain(others).enumerate();
    let groups = groups.map(|(nth, scheme)| (format!("group_{nth}"), scheme)).collect();
    Ok(config.with(KEY, compressed("pack-quantized", groups, WIDE)))
}
