//! Integer weights: `pack-quantized` of compressed-tensors, GPTQ and AWQ.

use super::{BlockScales, GgmlType, IntegerCode, KEY, Kind, WIDE, compressed};
use crate::{Architecture, Config, ConfigError};
use fancy_regex::Regex;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The format of an integer parameter with scales in another tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupQuantization {
    /// Bits per integer: 4 or 8.
    pub bits: usize,
    /// Group size: columns that share a scale; `None` for one scale per row.
    pub group: Option<usize>,
    /// Whether quantization is symmetric: every zero point is the middle of the range.
    pub symmetric: bool,
    /// Whether columns are assigned to groups in another order (act-order).
    pub act_order: bool,
    /// The packing.
    pub packing: Packing,
}

/// How integers are packed in 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// compressed-tensors: along rows of the weight, low bits first.
    Rows,
    /// GPTQ: along columns.
    Gptq {
        /// Whether zero points are stored minus 1, as in version 1 of the format.
        zeros_minus_one: bool,
    },
    /// AWQ: along outputs, in an interleaved order of eight.
    Awq,
    /// bitsandbytes: 4-bit codebook indices with block scales; blocks continue across rows.
    BitsAndBytes,
    /// GGUF: blocks of a row that include their scales.
    Gguf(&'static GgmlType),
    /// 4-bit floats (E2M1), two per byte, the first in the low nibble, with power-of-two scales (E8M0).
    Mxfp4,
    /// The same with float8 scales (E4M3) and a float32 scale of the tensor.
    Nvfp4,
}

impl GroupQuantization {
    /// Scales per row of `columns` columns.
    pub fn groups(self, columns: usize) -> usize {
        self.group.map_or(1, |group| columns.div_ceil(group))
    }

    /// MXFP4: E2M1 with a power-of-two scale per 32 values.
    pub const MXFP4: Self = Self {
        bits: 4,
        group: Some(32),
        symmetric: true,
        act_order: false,
        packing: Packing::Mxfp4,
    };

    /// NVFP4: E2M1 with a float8 scale per 16 values.
    pub const NVFP4: Self = Self { group: Some(16), packing: Packing::Nvfp4, ..Self::MXFP4 };

    /// Whether the values are E2M1 floats instead of integers. Doubled, they are integers from -12 to 12.
    pub fn is_float(self) -> bool {
        match self.packing {
            Packing::Mxfp4 | Packing::Nvfp4 => true,
            Packing::Gguf(block) => block.code == IntegerCode::E2m1,
            _ => false,
        }
    }

    /// Whether the values are E2M1 floats with power-of-two scales, which GPUs store as float8.
    pub fn is_mxfp4(self) -> bool {
        match self.packing {
            Packing::Gguf(block) => {
                self.is_float() && matches!(block.scales, BlockScales::PowerOfTwo(_))
            }
            packing => packing == Packing::Mxfp4,
        }
    }

    /// The format on GPUs. Kernels read 4 bits only as integers in groups of a multiple of 32 columns; other groups and
    /// floats are widened to 8 bits, which is exact.
    pub fn on_gpus(self) -> Self {
        let is_read = self.group.is_none_or(|group| group.is_multiple_of(32)) && !self.is_float();
        Self { bits: if is_read { self.bits } else { 8 }, ..self }
    }

    /// Bytes of the values of an MXFP4 weight after an exact conversion to float8 with a float32 scale per row.
    pub(crate) fn float8_bytes(self, [rows, columns]: [usize; 2]) -> u64 {
        (rows as u64).saturating_mul(columns as u64 + 4)
    }

    /// Bytes of a weight's integers, scales and zero points, given the bytes of a scale and of a zero point.
    pub(crate) fn bytes(self, [rows, columns]: [usize; 2], scale_bytes: [usize; 2]) -> u64 {
        let [scale, zero] = scale_bytes;
        let per_group = scale + if self.symmetric { 0 } else { zero };
        let bits = (rows as u64).saturating_mul(columns as u64).saturating_mul(self.bits as u64);
        let scales = (rows as u64).saturating_mul((self.groups(columns) * per_group) as u64);
        bits.div_ceil(8).saturating_add(scales)
    }

    /// Bytes of a weight in a file.
    pub(crate) fn stored_bytes(self, [rows, columns]: [usize; 2]) -> u64 {
        match self.packing {
            Packing::Gguf(block) => {
                let of_row = columns.div_ceil(block.values()) * block.bytes();
                (rows as u64).saturating_mul(of_row as u64)
            }
            // A block scale has one byte with double quantization, which is the usual case; a row scale has four.
            Packing::BitsAndBytes => {
                let scale = if self.bits == 4 { 1 } else { 4 };
                self.bytes([rows, columns], [scale, 0])
            }
            Packing::Mxfp4 | Packing::Nvfp4 => self.bytes([rows, columns], [1, 0]),
            _ => self.bytes([rows, columns], [2, 1]),
        }
    }

    /// Whether GPU kernels support such weights for this number of columns: rows in units of 16 bytes, and the group
    /// sizes and zero points of `linear`.
    pub(crate) fn has_linear_kernel(self, columns: usize) -> bool {
        let bits = self.on_gpus().bits;
        let least = if bits == 8 { 16 } else { 32 };
        let group = self.group.is_none_or(|group| group.is_multiple_of(least));
        if self.packing == Packing::BitsAndBytes {
            return false;
        }
        let zeros = bits == 4 || self.symmetric;
        columns.is_multiple_of(32) && group && !self.act_order && zeros
    }

    /// Whether a group's offset is not a whole zero point, as in GGUF's K-quants.
    pub fn has_offsets(self) -> bool {
        !self.symmetric && matches!(self.packing, Packing::Gguf(_))
    }

    /// Whether scales are float32 on GPUs: next to offsets, or products of two, so that 16 bits cannot represent it exactly.
    pub fn has_wide_scales(self) -> bool {
        let products = match self.packing {
            Packing::Gguf(block) => block.has_products(),
            packing => packing == Packing::Nvfp4,
        };
        self.has_offsets() || products
    }

    /// Whether GPU kernels for experts support such weights: the 16 bytes that each lane of a warp reads must share one
    /// scale.
    pub(crate) fn has_moe_kernel(self, columns: usize) -> bool {
        if self.is_mxfp4() {
            return self.has_linear_kernel(columns);
        }
        let step = 512 / self.on_gpus().bits;
        let whole = |group: usize| {
            group >= columns || (group.is_multiple_of(step) && (group / step).is_power_of_two())
        };
        self.has_linear_kernel(columns) && self.group.is_none_or(whole)
    }
}

/// The supported values, for messages.
const BITS: &str = "4 or 8";

fn bits(part: &Config, key: &str) -> Result<usize, ConfigError> {
    match part.count(key)? {
        bits @ (4 | 8) => Ok(bits),
        _ => Err(part.wrong(key, BITS)),
    }
}

/// Columns per group; `None` for -1 or a missing key, which mean whole rows.
fn group(part: &Config) -> Result<Option<usize>, ConfigError> {
    let key = "group_size";
    match part.get(key).map(Value::as_i64) {
        None | Some(Some(-1)) => Ok(None),
        Some(Some(1..)) => part.count(key).map(Some),
        Some(_) => Err(part.wrong(key, "columns of a group, or -1")),
    }
}

/// Reads the `weights` of a compressed-tensors group.
pub(super) fn packed(weights: &Config) -> Result<GroupQuantization, ConfigError> {
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
    let act_order = match weights.get("actorder") {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::String(word)) => match word.as_str() {
            "group" | "dynamic" => true,
            // The order in which columns were quantized, which does not affect the stored format.
            "weight" | "static" => false,
            _ => return Err(weights.wrong("actorder", "group or weight")),
        },
        Some(_) => return Err(weights.wrong("actorder", "group or weight")),
    };
    let symmetric = weights.flag_or("symmetric", true)?;
    Ok(GroupQuantization { bits, group, symmetric, act_order, packing: Packing::Rows })
}

/// Reads GPTQ's keys: every linear module of the layers, unless `dynamic` overrides it by name.
pub(super) fn gptq(part: &Config) -> Result<Kind, ConfigError> {
    let zeros_minus_one = match part.text(part.present_key(&["checkpoint_format", "format"]))? {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(_) => {
            let key = part.present_key(&["checkpoint_format", "format"]);
            return Err(part.wrong(key, "gptq or gptq_v2, the formats that are read"));
        }
    };
    if !matches!(part.text("pack_dtype")?, None | Some("int32")) {
        return Err(part.wrong("pack_dtype", "int32"));
    }
    let of = |part: &Config,
              otherwise: Option<GroupQuantization>|
     -> Result<GroupQuantization, ConfigError> {
        Ok(GroupQuantization {
            bits: match otherwise {
                Some(otherwise) if !part.has("bits") => otherwise.bits,
                _ => bits(part, "bits")?,
            },
            group: match otherwise {
                Some(otherwise) if !part.has("group_size") => otherwise.group,
                _ => group(part)?,
            },
            symmetric: part.flag_or("sym", otherwise.is_none_or(|of| of.symmetric))?,
            act_order: part.flag_or("desc_act", otherwise.is_some_and(|of| of.act_order))?,
            packing: Packing::Gptq { zeros_minus_one },
        })
    };
    let usual = of(part, None)?;
    let head = part.flag_or("lm_head", false)?;
    let dynamic = part.part("dynamic")?;
    // In file order; the first match decides.
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
        let fits = |(rule, _): &&(Regex, Option<GroupQuantization>)| {
            rule.is_match(module).unwrap_or(false)
        };
        rules.iter().find(fits).map_or(Some(usual), |(_, own)| *own).map(Into::into)
    }))
}

/// Reads AWQ's keys: every linear module except the head and those whose names contain a listed word.
pub(super) fn awq(part: &Config) -> Result<Kind, ConfigError> {
    if !part.text("version")?.is_none_or(|version| version.eq_ignore_ascii_case("gemm")) {
        return Err(part.wrong("version", "gemm, the version that is read"));
    }
    let bits_key = part.present_key(&["bits", "w_bit"]);
    if part.count(bits_key)? != 4 {
        return Err(part.wrong(bits_key, "4"));
    }
    if !part.flag_or("zero_point", true)? {
        return Err(part.wrong("zero_point", "true"));
    }
    let packing = Packing::Awq;
    let int = GroupQuantization {
        bits: 4,
        group: group(part)?,
        symmetric: false,
        act_order: false,
        packing,
    };
    let listed = part.words(&["modules_to_not_convert"])?.map_or(Vec::new(), |(_, words)| words);
    Ok(Box::new(move |module| {
        let ignored = listed.iter().any(|name| module.contains(&**name));
        (module != "lm_head" && !is_router(module) && !ignored).then(|| int.into())
    }))
}

/// Reads bitsandbytes' keys: every linear module except the head and skipped ones. The config has no block size, so the
/// default one determines sizes.
pub(super) fn bitsandbytes(part: &Config) -> Result<Kind, ConfigError> {
    let four = part.flag_or("load_in_4bit", false)?;
    if four == part.flag_or("load_in_8bit", false)? {
        return Err(part.wrong("load_in_4bit", "true, or load_in_8bit instead"));
    }
    if !matches!(part.text("bnb_4bit_quant_storage")?, None | Some("uint8")) {
        return Err(part.wrong("bnb_4bit_quant_storage", "uint8"));
    }
    const SKIPPED: &str = "llm_int8_skip_modules";
    let skipped = part.words(&[SKIPPED])?.map_or(Vec::new(), |(_, words)| words);
    let (bits, group) = if four { (4, Some(64)) } else { (8, None) };
    let packing = Packing::BitsAndBytes;
    let int = GroupQuantization { bits, group, symmetric: true, act_order: false, packing };
    Ok(Box::new(move |module| {
        let skips =
            |name: &String| module == name || format!("{module}.").contains(&format!("{name}."));
        (module != "lm_head" && !skipped.iter().any(skips)).then(|| int.into())
    }))
}

/// Whether a module is a router, which GPTQ and AWQ never quantize, even if no list excludes it.
fn is_router(module: &str) -> bool {
    let last = module.rsplit('.').next();
    module.contains("router") || matches!(last, Some("gate" | "shared_expert_gate"))
}

/// Group sizes that `synth` and `quantize` write, preferred first.
const GROUPS: [usize; 3] = [128, 64, 32];

/// A config whose linear modules have symmetric integer weights with a scale per group of 128 columns, as
/// compressed-tensors writes it; smaller groups, or whole rows, if the width is not a multiple. The output of `synth`
/// and `quantize`.
///
/// # Errors
/// [`ConfigError`] when the config does not describe a model.
pub fn with_int_weights(config: Config, bits: usize) -> Result<Config, ConfigError> {
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
