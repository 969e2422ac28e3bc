//! Hybrid models, from a folder of weights to logits.
//!
//! The crate `architectures` turns a config into an [`Architecture`]: layers as data, with the name and shape of every
//! parameter. A [`Checkpoint`], read from files or random, is checked against it, and an [`Engine`] runs it on a
//! device, many sequences at once.

mod bitsandbytes;
mod checkpoint;
mod choice;
mod convert;
mod cpu;
mod cuda;
mod engine;
mod error;
mod files;
mod float8;
mod generate;
mod gguf;
mod group_quant;
mod hub;
mod logprobs;
mod mxfp4;
mod nvfp4;
#[cfg(test)]
mod packers;
mod pages;
mod pooler;
mod program;
mod quantize;
mod random;
mod random_weights;
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
    Architecture, Capacity, Config, Footprint, LargestStep, SHAPES, ShardRank, StateType,
    WeightStorage, shape, with_fp8_weights, with_int_weights,
};
use architectures::{Layer, Mixer, NormPosition, Rope, layers, params};
pub use checkpoint::Checkpoint;
pub use choice::{Choice, MAX_STOPS, SampledTokens, choose_by_steps};
pub use convert::{
    CheckpointLayout, Conversion, ConversionResult, ConversionWriter, KeyMap, TensorKey,
    TensorPair, ZeroTensor,
};
pub use engine::{
    Batch, ENGINES, Engine, EngineKind, LogitsSelection, Model, Storage, engine_kind, holding,
    holding_on_gpus, open,
};
pub use error::ModelError;
pub use files::FileProgress;
pub use generate::{GeneratedSequence, GeneratedToken, GenerationControl, generate};
pub use gguf::is_gguf;
pub use hub::{Downloader, HubFile, HubHash, NO_NETWORK, download, locate};
pub use logprobs::TokenLogprobs;
pub use pages::Pages;
pub use pooler::{Pooler, PoolingMode};
pub use quantize::{Quantized, QuantizedFormat, QuantizedTensor, quantize};
pub use ranks::{OpenRequest, RankEnded, Ranks, follow};
pub use read::{parse_config, read_config, read_json, read_text};
pub use sampling::Sampling;
pub use saved::SavedSequence;
pub use scheduler::{
    FailedStep, FinishReason, Guide, Logits, LogitsOf, Request, RequestId, Scheduler,
    SchedulerEvent, StepBudget, Usage,
};
pub use source::ModelSource;
pub use speed::{SpeedTest, answers, first_token, measure, prompts, speed};
pub use stop_strings::StopStrings;
pub use synth::{SynthOptions, synth, synth_bytes, synth_watched};
pub use text::{
    ChatMessage, ChatTemplate, Conversation, Encoded, Json, MAX_CONCURRENT_RENDERS,
    TemplateProcess, TextStream, Tokenizer, call_arguments, render_templates, stop_ids,
};
pub use verify::{Verification, VerifiedEngine, hold, relative_error, verify, verify_families};
