//! Arguments of `check`.

use super::{Environment, PeerChoice, one_or_more, whole};
use clap::{Args, ValueEnum};
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
    /// Time limit for what is measured between GPUs: copies of each pair, and NCCL's collectives. Default: 30, 8 with --quick.
    ///
    /// Every result is compared with what had to arrive. 0 leaves it out, as --op does.
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub(crate) fabric_budget: Option<u64>,
    /// How long a large product runs on all GPUs at once, while power, clocks and temperatures are read. Default: 20, 60 with --full.
    ///
    /// With --quick, --op or --budget it is left out unless it is asked for.
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub(crate) sustain: Option<u64>,
    /// Only these ops are verified and timed: ssd,rmsnorm. model is the reduced models. Default: all.
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub(crate) op: Vec<String>,
    /// Time limit of the whole check. What it did not get to is listed as not run, and the check is then unclear at the best.
    ///
    /// A fifth of it, 15 seconds at the most, is kept for what has begun and for the report. A check that hangs is ended when the time is over.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>)]
    pub(crate) budget: Option<u64>,
    #[command(flatten)]
    pub(crate) fleet: FleetChoice,
    /// Also write the findings, and kernels that failed, as SARIF 2.1.0 for code scanning.
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Also write a signed statement of what was verified: hashes of the files, GPUs, driver. `firstlight gate` accepts or refuses it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["redact", "fleet", "emit"])]
    pub(crate) certificate: Option<PathBuf>,
    /// Ed25519 key in PEM that signs the certificate; made if it does not exist. Default: ~/.config/firstlight/signing-key.pem.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) signing_key: Option<PathBuf>,
    /// Write a run folder that can be shared: without host and user names, home folders, and unrelated packages.
    #[arg(long)]
    pub(crate) redact: bool,
    /// Run folder, empty or new; with --emit the file. Default: firstlight-runs/<utc>-<host>, and standard output for --emit.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// Checks of many nodes, each started by a launcher.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fleets")]
pub(crate) struct FleetChoice {
    /// Check every rank that torchrun, srun, mpirun, LeaderWorkerSet, JobSet or SkyPilot started, and write one folder for all.
    ///
    /// Rank 0 gathers the run folders and compares the ranks: files of their stacks, bits, speed. The other ranks write nothing.
    #[arg(long, value_name = "OUT", conflicts_with_all = ["output", "sarif", "gpu", "emit"])]
    pub(crate) fleet: Option<PathBuf>,
    /// TCP port on which rank 0 listens. Default: one that the launcher's variables give.
    #[arg(long, value_name = "PORT", requires = "fleet", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) fleet_port: Option<u16>,
    /// Instead of checking, write the file that runs this check on a cluster.
    #[arg(long, value_name = "KIND", value_enum, conflicts_with_all = ["sarif", "gpu"])]
    pub(crate) emit: Option<Emitted>,
    /// Nodes that the file asks for, where it has to say.
    #[arg(long, value_name = "N", value_parser = one_or_more::<u32>, default_value_t = 2, requires = "emit")]
    pub(crate) nodes: u32,
    /// The image of the Dockerfile, where the file needs one.
    #[arg(long, value_name = "IMAGE", default_value = "firstlight", requires = "emit")]
    pub(crate) image: String,
    /// A part of another check, which ends when its standard input does: milliseconds since 1970 until which it begins something.
    #[arg(long, hide = true)]
    pub(crate) until: Option<u64>,
    /// Where that part writes its run folder.
    #[arg(long, hide = true, requires = "until")]
    pub(crate) part: Option<PathBuf>,
}

/// Files that run a check on a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Emitted {
    /// A HealthCheckProgram for slurmd, which drains a node with findings.
    SlurmHealthcheck,
    /// An Indexed Job that checks N nodes as one fleet.
    KubernetesJob,
    /// A DaemonSet that checks each node once a day.
    Daemonset,
    /// A custom plugin of node-problem-detector.
    NodeProblemDetector,
    /// A task of SkyPilot that checks N nodes as one fleet.
    Skypilot,
    /// A Prolog for slurmd: a node without a valid certificate is checked before a job starts.
    SlurmProlog,
    /// A pod whose init container checks its node unless that has a valid certificate.
    InitContainer,
}

/// A model, and the lengths it should fit with.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// Also judge a model: the kernels its layers need, which are missing here, and whether it fits.
    #[arg(long, value_name = "DIR|config.json|SHAPE")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens per sequence. Default: 4096, or the model's limit if that is lower.
    #[arg(long = "max-model-len", aliases = ["context", "ctx-size"], value_name = "TOKENS", value_parser = one_or_more::<u64>, requires = "model")]
    pub(crate) context: Option<u64>,
    /// Sequences at once.
    #[arg(long = "max-num-seqs", aliases = ["sequences", "batch"], value_name = "N", value_parser = one_or_more::<u64>, default_value_t = 1, requires = "model")]
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
    #[arg(long, value_delimiter = ',')]
    pub(crate) op: Vec<String>,
    #[arg(long)]
    pub(crate) until: Option<u64>,
    /// Cores that it may use; none for all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
}

/// What the process of several GPUs is told.
#[derive(Debug, Args)]
pub(crate) struct Together {
    /// The driver's indices of those that it sees, in their order.
    #[arg(long, value_delimiter = ',')]
    pub(crate) gpus: Vec<u32>,
    /// Seconds for what is between them.
    #[arg(long)]
    pub(crate) fabric: Option<u64>,
    /// Bytes of the largest transfer.
    #[arg(long, default_value_t = 0)]
    pub(crate) largest: u64,
    /// Seconds of a product on all of them.
    #[arg(long)]
    pub(crate) sustain: Option<u64>,
}
