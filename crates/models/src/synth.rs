//! Random models with real names and shapes: what tests and measurements run on where weights cannot be had.

use crate::checkpoint::{INDEX, SINGLE};
use crate::drawn::{Drawn, Tables};
use crate::files::{empty_folder, whole, write_text};
use crate::params::Param;
use crate::text::tiktoken;
use crate::{Architecture, Config, ModelError};
use half::bf16;
use rayon::prelude::*;
use safetensors::tensor::{Dtype, View, serialize_to_file};
use serde_json::json;
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

/// A model shape that can be drawn.
#[derive(Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    config: &'static str,
}

macro_rules! shape {
    ($name:literal, $about:literal) => {
        Shape {
            name: $name,
            about: $about,
            config: include_str!(concat!("synth/", $name, ".json")),
        }
    };
}

/// Every shape: those of published models, and reduced ones that run in an instant.
pub const SHAPES: &[Shape] = &[
    shape!("granite-4.0-h-micro", "3.2 billion parameters, dense"),
    shape!("granite-4.0-h-tiny", "6.9 billion parameters, 64 experts"),
    shape!("granite-4.0-h-small", "32 billion parameters, 72 experts"),
    shape!("kimi-linear-48b-a3b", "49 billion parameters, KDA and latent attention, 256 experts"),
    shape!("granite-hybrid-mini", "reduced: dense"),
    shape!("granite-moe-mini", "reduced: 8 experts, two groups"),
    shape!("granite-rope-mini", "reduced: attention everywhere, rotated"),
    shape!("kimi-linear-mini", "reduced: KDA, latent attention, 8 experts"),
];

/// The config of a shape, by its name.
///
/// # Errors
/// [`ModelError::Shape`].
pub fn shape(name: &str) -> Result<Config, ModelError> {
    match SHAPES.iter().find(|shape| shape.name == name) {
        Some(shape) => Config::parse(shape.name, shape.config),
        None => Err(ModelError::Shape { name: name.to_owned() }),
    }
}

/// How a random model is drawn and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynthOptions {
    /// The same seed draws the same weights.
    pub seed: u64,
    /// Only the first layers.
    pub layers: Option<usize>,
    /// Bytes of tensors above which another file is begun.
    pub shard_bytes: usize,
}

impl Default for SynthOptions {
    fn default() -> Self {
        // Shards as large as transformers writes them.
        Self { seed: 0, layers: None, shard_bytes: 5_000_000_000 }
    }
}

/// Draws the weights of a config and writes a model's folder, with a tokenizer of single bytes: weights first and config.json last, so that a folder that
/// was left half-written is no model. Tensors are drawn and written one by one. Gives the number of parameters.
///
/// # Errors
/// [`ModelError`] when the config is of no family, the folder holds something already, or a file cannot be written.
pub fn synth(config: Config, folder: &Path, options: &SynthOptions) -> Result<u64, ModelError> {
    let config = match options.layers {
        Some(layers) => config.first_layers(layers)?,
        None => config,
    };
    let architecture = Architecture::of(&config)?;
    empty_folder(folder)?;
    let shards = shards(&architecture, options);
    let of_shard = |shard: usize| match shards.len() {
        1 => SINGLE.to_owned(),
        all => format!("model-{:05}-of-{all:05}.safetensors", shard + 1),
    };
    let mut places = serde_json::Map::new();
    let mut total = 0;
    for (shard, drawn) in shards.iter().enumerate() {
        for tensor in drawn {
            places.insert(tensor.param.name.clone(), json!(of_shard(shard)));
            total += tensor.drawn.bytes();
        }
        write(&folder.join(of_shard(shard)), drawn)?;
    }
    if shards.len() > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": places });
        write_text(&folder.join(INDEX), &format!("{index:#}\n"))?;
    }
    write_text(&folder.join("tiktoken.model"), &tiktoken::bytes_alone())?;
    write_text(&folder.join("config.json"), &config.to_text())?;
    Ok(architecture.params.count())
}

/// A tensor that is drawn when it is written.
struct Written<'a> {
    param: &'a Param,
    drawn: Drawn,
}

fn shards<'a>(architecture: &'a Architecture, options: &SynthOptions) -> Vec<Vec<Written<'a>>> {
    let mut shards = vec![Vec::new()];
    let (mut tables, mut bytes) = (Tables::default(), 0);
    for param in architecture.params.iter() {
        let drawn = Drawn::new(param, options.seed, &mut tables);
        if bytes > 0 && bytes + drawn.bytes() > options.shard_bytes {
            shards.push(Vec::new());
            bytes = 0;
        }
        bytes += drawn.bytes();
        if let Some(shard) = shards.last_mut() {
            shard.push(Written { param, drawn });
        }
    }
    shards
}

impl View for &Written<'_> {
    fn dtype(&self) -> Dtype {
        self.drawn.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.param.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let all = self.param.len();
        // All of a tensor is always in its range.
        let bytes = match self.dtype() {
            Dtype::F32 => little_endian(self.drawn.values(0, all), f32::to_le_bytes),
            _ => little_endian(self.drawn.values(0, all), bf16::to_le_bytes),
        };
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.drawn.bytes()
    }
}

/// Values as files hold them.
fn little_endian<T: Copy + Send, const SIZE: usize>(
    values: Option<Vec<T>>,
    bytes: impl Fn(T) -> [u8; SIZE] + Sync + Send,
) -> Vec<u8> {
    let values = values.unwrap_or_default();
    values.into_par_iter().map(bytes).collect::<Vec<_>>().into_flattened()
}

fn write(path: &Path, drawn: &[Written<'_>]) -> Result<(), ModelError> {
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let tensors = drawn.iter().map(|tensor| (tensor.param.name.as_str(), tensor));
    whole(path, |partial| {
        serialize_to_file(tensors, Some(metadata), partial).map_err(|error| error.to_string())
    })
}
