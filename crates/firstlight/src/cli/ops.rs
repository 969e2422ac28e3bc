//! Arguments of the commands that verify, run and time ops.

use super::{BackendArg, BenchCommand, Extent, PythonPeers};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Ops to verify: attention, kda, ssd, conv1d, nsa, rmsnorm, linear, moe; model: those of an installed package.
    /// Default: all.
    #[arg(value_name = "OP")]
    pub(crate) ops: Vec<String>,
    /// Backend. Default: every one that can be used here.
    #[arg(long)]
    pub(crate) backend: Option<BackendArg>,
    /// How many cases.
    #[arg(long, value_enum, default_value_t = Extent::Standard)]
    pub(crate) extent: Extent,
    /// Every variant this machine can run, not only the one that would be chosen.
    #[arg(long)]
    pub(crate) all_variants: bool,
    #[command(flatten)]
    pub(crate) peers: PythonPeers,
}

#[derive(Debug, Args)]
pub(crate) struct Op {
    /// Op: attention, kda, ssd, conv1d, nsa, rmsnorm, linear, moe.
    pub(crate) name: String,
    /// Input tensors by name. Left out: list the op's tensors and settings.
    #[arg(value_name = "IN.safetensors", requires = "output")]
    pub(crate) input: Option<PathBuf>,
    /// Where the outputs go.
    #[arg(short, long, value_name = "OUT.safetensors", requires = "input")]
    pub(crate) output: Option<PathBuf>,
    /// A setting: `--set causal=true --set scale=0.1`.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Backend.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: BackendArg,
    /// Variant to run; an error where it cannot.
    #[arg(long, conflicts_with = "reference")]
    pub(crate) variant: Option<String>,
    /// Run the float64 reference instead, and write float64 outputs.
    #[arg(long)]
    pub(crate) reference: bool,
    /// Print the tables by which variants and tiles are chosen.
    #[arg(long, conflicts_with = "input")]
    pub(crate) explain_choice: bool,
}

/// Shapes of a sweep, in place of the listed cases.
#[derive(Debug, Args)]
#[command(next_help_heading = "A sweep, in place of the listed cases")]
pub(crate) struct Sweep {
    /// Sequences. Default: 1.
    #[arg(long = "B", value_name = "N")]
    pub(crate) batch: Option<usize>,
    /// Heads of attention, KDA and SSD. Default: 32.
    #[arg(long = "H", value_name = "N")]
    pub(crate) heads: Option<usize>,
    /// Tokens of each sequence, one row each: 2048,8192. Default: 8192.
    #[arg(long = "N", value_name = "N,..", value_delimiter = ',')]
    pub(crate) tokens: Vec<usize>,
    /// Channels of a head of attention, one row each: 320,384,448. Default: 128.
    #[arg(long = "D", value_name = "N,..", value_delimiter = ',')]
    pub(crate) dims: Vec<usize>,
    /// Attention with a causal mask.
    #[arg(long)]
    pub(crate) causal: bool,
    /// Storage type. Default: bf16.
    #[arg(long, value_enum)]
    pub(crate) dtype: Option<Storage>,
}

/// Storage types of the ops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Storage {
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) command: Option<BenchCommand>,
    /// attention, kda, ssd, conv1d (or conv), nsa, rmsnorm, linear, moe, or decode for the one-token forms. Default: everything.
    #[arg(value_name = "WHAT")]
    pub(crate) names: Vec<String>,
    /// Backend.
    #[arg(long, default_value = "cpu")]
    pub(crate) backend: BackendArg,
    /// Fewer shapes and shorter measurements.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Time the float64 reference of the recurrent prefills too, once each.
    #[arg(long)]
    pub(crate) reference: bool,
    /// Show attention beside figures of a field report: gh200-ffpa. Without sizes of a sweep those of the report are run.
    #[arg(long, value_name = "NAME", value_parser = baseline)]
    pub(crate) baseline: Option<String>,
    /// Time a step of NSA's decoding branch by branch instead, beside the table of a field report.
    #[arg(long, conflicts_with_all = [
        "names", "reference", "tune", "batch", "heads", "tokens", "dims", "causal", "dtype", "baseline", "venv", "python",
        "peer_path", "only", "peer",
    ])]
    pub(crate) branches: bool,
    /// Time every CUDA variant of attention instead, and write the choice table that follows from it to this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "names", "json", "quick", "reference", "output", "batch", "heads", "tokens", "dims", "causal", "dtype", "baseline", "venv",
        "python", "peer_path", "only", "peer",
    ])]
    pub(crate) tune: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) sweep: Sweep,
    #[command(flatten)]
    pub(crate) peers: PythonPeers,
    /// Write bench.csv, and every sample as samples.csv, into this folder as well.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// The name of a baseline that is there.
fn baseline(text: &str) -> Result<String, String> {
    let known = report::baselines();
    match known.contains_key(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("wanted {}", known.into_keys().collect::<Vec<_>>().join(" or "))),
    }
}
