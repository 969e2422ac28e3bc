//! Arguments of the commands that verify, run and time ops.

use super::{BackendArg, BenchCommand, Extent, Gpus, PythonPeers, one_or_more};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// The names of all ops, followed by `rest`.
fn ops(rest: &str) -> String {
    let names: Vec<&str> = ops::OPS.iter().map(|op| op.spec().name).collect();
    format!("{}{rest}", names.join(", "))
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[arg(value_name = "OP", help = ops(", or model for those of an installed package. Default: all"))]
    pub(crate) ops: Vec<String>,
    /// The device to run on. auto: every working device.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    #[command(flatten)]
    pub(crate) gpus: Gpus,
    /// One or two shapes and the edge cases of each op.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Also the large shapes.
    #[arg(long)]
    pub(crate) full: bool,
    /// The former name of --quick and --full.
    #[arg(long, value_enum, hide = true, conflicts_with_all = ["quick", "full"])]
    extent: Option<Extent>,
    /// Run every variant that works here, not only the selected one.
    #[arg(long)]
    pub(crate) all_variants: bool,
    #[command(flatten)]
    pub(crate) peers: PythonPeers,
}

impl Verify {
    /// How many cases to run.
    pub(crate) fn extent(&self) -> Extent {
        match (self.extent, self.quick, self.full) {
            (Some(extent), ..) => extent,
            (None, true, _) => Extent::Quick,
            (None, _, true) => Extent::Full,
            (None, false, false) => Extent::Standard,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Op {
    #[arg(help = ops(""))]
    pub(crate) name: String,
    /// Input tensors by name. Without a file: lists the op's tensors and settings.
    #[arg(value_name = "IN.safetensors", requires = "output")]
    pub(crate) input: Option<PathBuf>,
    /// File for the outputs.
    #[arg(short, long, value_name = "OUT.safetensors", requires = "input")]
    pub(crate) output: Option<PathBuf>,
    /// A setting, such as causal=true. Repeat it for several.
    #[arg(long = "set", value_name = "NAME=VALUE", allow_hyphen_values = true)]
    pub(crate) settings: Vec<String>,
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    /// Run this variant; fail if it cannot run.
    #[arg(long, conflicts_with = "reference")]
    pub(crate) variant: Option<String>,
    /// Run the float64 reference instead; outputs are float64.
    #[arg(long)]
    pub(crate) reference: bool,
    /// Print the tables by which variants and tile sizes are selected.
    #[arg(long, conflicts_with = "input")]
    pub(crate) explain_choice: bool,
}

/// Shapes of a sweep, instead of the listed cases.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sweep, instead of the listed cases")]
pub(crate) struct Sweep {
    /// Sequences. Default: 1.
    #[arg(long = "B", value_name = "N", value_parser = one_or_more::<usize>)]
    pub(crate) batch: Option<usize>,
    /// Heads of attention, KDA and SSD. Default: 32.
    #[arg(long = "H", value_name = "N", value_parser = one_or_more::<usize>)]
    pub(crate) heads: Option<usize>,
    /// Tokens per sequence: 2048,8192. Default: 8192.
    #[arg(long = "N", value_name = "N,..", value_parser = one_or_more::<usize>, value_delimiter = ',')]
    pub(crate) tokens: Vec<usize>,
    /// Head dimensions of attention: 320,384,448. Default: 128.
    #[arg(long = "D", value_name = "N,..", value_parser = one_or_more::<usize>, value_delimiter = ',')]
    pub(crate) dims: Vec<usize>,
    /// Use a causal mask.
    #[arg(long)]
    pub(crate) causal: bool,
    /// Storage type. Default: bf16.
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<Storage>,
}

/// Storage types of the ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    #[value(aliases = ["float32", "float", "fp32"])]
    F32,
    #[value(aliases = ["float16", "half", "fp16"])]
    F16,
    #[value(alias = "bfloat16")]
    Bf16,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    #[arg(value_name = "WHAT", help = ops(", or decode for one-token steps. Default: all"))]
    pub(crate) names: Vec<String>,
    /// The device to run on.
    #[arg(long, value_enum, default_value_t = BackendArg::Auto)]
    pub(crate) backend: BackendArg,
    #[command(flatten)]
    pub(crate) gpus: Gpus,
    /// Fewer shapes and shorter measurements.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Also time everything that `check --full` times: on the processor, the float64 reference of recurrent prefills.
    #[arg(long)]
    pub(crate) full: bool,
    /// Also time the float64 reference of recurrent prefills, once each.
    #[arg(long, hide = true)]
    pub(crate) reference: bool,
    /// Show attention next to the figures of a published report: gh200-ffpa. Uses the report's sizes unless others are
    /// given.
    #[arg(long, value_name = "NAME", value_parser = baseline)]
    pub(crate) baseline: Option<String>,
    /// Instead, time one decoding step of NSA by branch, next to the table of a published report.
    #[arg(long, hide = true, conflicts_with_all = [
        "names", "reference", "tune", "batch", "heads", "tokens", "dims", "causal", "dtype", "baseline", "venv", "python",
        "peer_path", "only", "peer",
    ])]
    pub(crate) branches: bool,
    /// Instead, time every CUDA variant of attention, and write the resulting choice table to this file.
    #[arg(long, hide = true, value_name = "FILE", conflicts_with_all = [
        "names", "json", "quick", "full", "reference", "output", "batch", "heads", "tokens", "dims", "causal", "dtype", "baseline", "venv",
        "python", "peer_path", "only", "peer",
    ])]
    pub(crate) tune: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sweep: Sweep,
    #[command(flatten)]
    pub(crate) peers: PythonPeers,
    /// Also write bench.csv, samples.csv and plots into this folder.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// The name of an existing baseline.
fn baseline(text: &str) -> Result<String, String> {
    let known = report::baselines();
    match known.contains_key(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("expected {}", known.into_keys().collect::<Vec<_>>().join(" or "))),
    }
}
