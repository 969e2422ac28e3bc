//! The hybrid models, from a folder of weights to logits.
//!
//! The room `architectures` makes an [`Architecture`] of a config: layers as data, with every parameter's name and shape. A
//! [`Checkpoint`], read from files or drawn, is held against it, and an [`Engine`] runs it on a device, many sequences at once.

mod checkpoint;
mod choice;
mod convert;
mod cpu;
mod cuda;
mod drawn;
mod engine;
mod error;
mod files;
mod float8;
mod generate;
mod gguf;
mod hub;
mod integers;
mod logprobs;
mod looked_up;
mod mxfp4;
#[cfg(test)]
mod packers;
mod pages;
mod pooler;
mod program;
mod quantize;
mod random;
mod ranks;
mod read;
mod sampling;
mod saved;
mod scheduler;
mod source;
mod speed;
mod stop_strings;
mod synth;
mod text;
mod values;
mod verify;

use architectures::params::Param;
pub use architectures::{
    Architecture, Capacity, Config, Footprint, Holding, LargestStep, Place, SHAPES, StateType,
    in_fp8, in_integers, shape,
};
use architectures::{Layer, Mixer, Rope, layers, params};
pub use checkpoint::Checkpoint;
pub use choice::{Choice, Drawn, MOST_STOPS, choose_by_steps};
pub use convert::{Begun, Conversion, Converted, Key, KeyMap, Layout, Pair, Zeros};
pub use engine::{
    Batch, ENGINES, Engine, EngineKind, Model, Storage, Wanted, engine_kind, holding,
    holding_on_gpus, open,
};
pub use error::ModelError;
pub use files::Watched;
pub use generate::{Chosen, Generated, Next, generate};
pub use gguf::is_gguf;
pub use hub::{Download, HubFile, HubHash, NO_NETWORK, download, locate};
pub use logprobs::TokenLogprobs;
pub use pages::Pages;
pub use pooler::{Pooler, Pooling};
pub use quantize::{Narrow, Quantized, QuantizedTensor, quantize};
pub use ranks::{Opening, RankEnded, Ranks, follow};
pub use read::{read_config, read_json, read_text};
pub use sampling::Sampling;
pub use saved::Saved;
pub use scheduler::{
    Ended, Event, Failed, Guide, Logits, LogitsOf, Request, RequestId, Scheduler, StepBudget, Usage,
};
pub use source::ModelSource;
pub use speed::{SpeedTest, answers, first_token, measure, prompts, speed};
pub use stop_strings::StopStrings;
pub use synth::{SynthOptions, synth, synth_bytes, synth_watched};
pub use text::{
    ChatTemplate, Conversation, Encoded, Json, Message, TemplateProcess, TextStream, Tokenizer,
    call_arguments, render_templates, stop_ids,
};
pub use verify::{Verification, Verified, hold, relative_error, verify, verify_families};
