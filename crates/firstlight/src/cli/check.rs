//! Arguments of `check`.

use super::{Environment, PeerChoice, one_or_more, whole};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) environment: Environment,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    #[command(flatten)]
    pub(crate) peers: PeerChoice,
    /// Fewer cases and shorter measurements.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every case, every variant this machine can run, and the large shapes.
    #[arg(long)]
    pub(crate) full: bool,
    /// GPUs by the numbers that nvidia-smi has for them, such as 0,1. Default: all that this process sees and that work.
    ///
    /// Each is verified, timed and has its free memory tested, all at the same time; GPUs of one kind are then compared, bit by bit
    /// and in speed. Installed kernels run on the first.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32))]
    pub(crate) gpu: Vec<u32>,
    /// Time limit for the test of each GPU's free memory. Default: 10, and no test where other programs have memory of the GPU.
    ///
    /// The test takes all that is free, which another program may want meanwhile. 0 leaves it out.
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub(crate) memory_budget: Option<u64>,
    /// Also write the findings, and kernels that failed, as SARIF 2.1.0 for code scanning.
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Write a run folder that can be shared: without host and user names, home folders, and unrelated packages.
    #[arg(long)]
    pub(crate) redact: bool,
    /// Run folder, empty or new. Default: firstlight-runs/<utc>-<host>.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// A model, and the lengths it should fit with.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// Also judge a model: the kernels its layers need, which are missing here, and whether it fits.
    #[arg(long, value_name = "DIR|config.json")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens per sequence. Default: 4096, or the model's limit if that is lower.
    #[arg(long, value_name = "TOKENS", value_parser = one_or_more::<u64>, requires = "model")]
    pub(crate) context: Option<u64>,
    /// Sequences at once.
    #[arg(long, value_name = "N", value_parser = one_or_more::<u64>, default_value_t = 1, requires = "model")]
    pub(crate) sequences: u64,
}

/// What the process of one GPU is told.
#[derive(Debug, Args)]
pub(crate) struct CheckGpu {
    #[arg(long)]
    pub(crate) index: u32,
    #[arg(long)]
    pub(crate) quick: bool,
    #[arg(long)]
    pub(crate) full: bool,
    #[arg(long)]
    pub(crate) memory_budget: Option<u64>,
    /// Cores that it may use; none for all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
}
