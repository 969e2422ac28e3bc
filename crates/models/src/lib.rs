//! The hybrid models, from a folder of weights to logits.
//!
//! A family makes an [`Architecture`] of a config: layers as data, with every parameter's name and shape. A
//! [`Checkpoint`], read from files or drawn, is held against it, and an [`Engine`] runs it on a device, many sequences at once.

mod architecture;
mod checkpoint;
mod config;
mod convert;
mod cpu;
mod cuda;
mod drawn;
mod engine;
mod error;
mod families;
mod files;
mod footprint;
mod generate;
mod hub;
pub mod layers;
mod pages;
mod params;
mod random;
mod sampler;
mod source;
mod speed;
mod stop_strings;
mod synth;
mod text;
mod traffic;
mod verify;

pub use architecture::{Architecture, Layer, Mixer};
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use convert::{Begun, Conversion, Converted, Key, KeyMap, Layout, Pair, Zeros};
pub use engine::{
    Batch, Capacity, ENGINES, Engine, EngineKind, Model, Storage, Wanted, engine_kind, open,
};
pub use error::ModelError;
pub use families::{FAMILIES, Family};
pub use footprint::{Footprint, Holding, LargestStep};
pub use generate::{Chosen, Ended, Generated, Next, Request, Steps, generate};
pub use hub::{Download, HubFile, HubHash, download, locate};
pub use params::{Draw, Param, ParamId, Params, Projection, Rows};
pub use sampler::{Sampler, Sampling};
pub use source::ModelSource;
pub use speed::{SpeedTest, answers, first_token, measure, prompts, speed};
pub use stop_strings::StopStrings;
pub use synth::{SHAPES, Shape, SynthOptions, shape, synth};
pub use text::{ChatTemplate, Message, TextStream, Tokenizer, stop_ids};
pub use verify::{Verification, Verified, hold, relative_error, verify, verify_families};
