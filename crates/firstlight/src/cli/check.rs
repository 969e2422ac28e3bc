//! Arguments of `check`.

use super::{Environment, PeerChoice, one_or_more, whole};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Arguments that select what is checked; they conflict with `--report`, which checks nothing.
const OF_A_CHECK: [&str; 20] = [
    "venv",
    "wait",
    "model",
    "python",
    "peer_path",
    "only",
    "peer",
    "quick",
    "full",
    "gpu",
    "memory_budget",
    "fabric_budget",
    "sustain",
    "op",
    "budget",
    "fleet",
    "emit",
    "sarif",
    "certificate",
    "signing_key",
];

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) environment: Environment,
    #[command(flatten)]
    pub(crate) wanted: ModelArguments,
    #[command(flatten)]
    pub(crate) peers: PeerChoice,
    /// Fewer cases and shorter measurements.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every case, every variant this machine can run, and the large shapes.
    #[arg(long)]
    pub(crate) full: bool,
    /// GPUs by the indices of nvidia-smi, such as 0,1. Default: all working GPUs that this process sees.
    ///
    /// Each GPU is verified and timed and its free memory is tested, all GPUs at the same time; GPUs of the same model
    /// are then compared, bit by bit and in speed. Installed kernels run on the first.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32))]
    pub(crate) gpu: Vec<u32>,
    /// Time limit for the test of each GPU's free memory. Default: 10, and no test if other programs use memory of the
    /// GPU.
    ///
    /// The test allocates all free memory, which another program may need meanwhile. 0 skips it.
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub(crate) memory_budget: Option<u64>,
    /// Time limit for transfers between GPUs: copies of each pair, and NCCL's collectives. Default: 30, 8 with --quick.
    ///
    /// Every result is compared with the expected data. 0 skips it, as does --op.
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub(crate) fabric_budget: Option<u64>,
    /// How long a large matrix product runs on all GPUs at once, while power, clocks and temperatures are recorded.
    /// Default: 20, 60 with --full.
    ///
    /// With --quick, --op or --budget it is skipped unless this option is given.
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub(crate) sustain: Option<u64>,
    /// Verify and time only these ops: ssd,rmsnorm. model selects the reduced models. Default: all.
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub(crate) op: Vec<String>,
    /// Time limit of the whole check. Skipped work is listed as not run, and the result is then at best unclear.
    ///
    /// A fifth of it, at most 15 seconds, is reserved for running work and for the report. A check that hangs is killed
    /// at the limit.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>)]
    pub(crate) budget: Option<u64>,
    #[command(flatten)]
    pub(crate) fleet: FleetChoice,
    /// Also write the findings, and failed kernels, as SARIF 2.1.0 for code scanning.
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
    /// Also write a signed statement of what was verified: hashes of the files, GPUs, driver. `firstlight gate` accepts or refuses it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["redact", "fleet", "emit"])]
    pub(crate) certificate: Option<PathBuf>,
    /// Ed25519 key in PEM that signs the certificate; created if it does not exist. Default:
    /// ~/.config/firstlight/signing-key.pem.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) signing_key: Option<PathBuf>,
    /// Instead of checking, write the report of a run folder again from its files; with --redact -o DIR into a copy that can be shared.
    #[arg(long, value_name = "RUN", conflicts_with_all = OF_A_CHECK)]
    pub(crate) report: Option<PathBuf>,
    /// Write a run folder that can be shared: without host and user names, folders that a user named, and unrelated packages.
    #[arg(long)]
    pub(crate) redact: bool,
    /// Run folder, empty or new; with --emit the file. Default: firstlight-runs/<utc>-<host>, and standard output for --emit.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments for checks of many nodes, each started by a launcher.
#[derive(Debug, Args)]
#[command(next_help_heading = "Fleets")]
pub(crate) struct FleetChoice {
    /// Check every rank that torchrun, srun, mpirun, LeaderWorkerSet, JobSet or SkyPilot started, and write one folder
    /// for all.
    ///
    /// Rank 0 collects the run folders and compares the ranks: files of their stacks, bits, speed. The other ranks
    /// write nothing.
    #[arg(long, value_name = "OUT", conflicts_with_all = ["output", "sarif", "gpu", "emit"])]
    pub(crate) fleet: Option<PathBuf>,
    /// TCP port on which rank 0 listens. Default: derived from the launcher's variables.
    #[arg(long, value_name = "PORT", requires = "fleet", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) fleet_port: Option<u16>,
    /// Instead of checking, write the file that runs this check on a cluster.
    #[arg(long, value_name = "KIND", value_enum, conflicts_with_all = ["sarif", "gpu"])]
    pub(crate) emit: Option<ClusterFile>,
    /// Number of nodes in the file, if the format needs it.
    #[arg(long, value_name = "N", value_parser = one_or_more::<u32>, default_value_t = 2, requires = "emit")]
    pub(crate) nodes: u32,
    /// Container image in the file, if the format needs one.
    #[arg(long, value_name = "IMAGE", default_value = "firstlight", requires = "emit")]
    pub(crate) image: String,
    /// Time limit of a child check in milliseconds since 1970: it starts no work after this. The check ends when its
    /// standard input closes.
    #[arg(long, hide = true)]
    pub(crate) until: Option<u64>,
    /// The run folder of a child check.
    #[arg(long, hide = true, requires = "until")]
    pub(crate) part: Option<PathBuf>,
}

/// Files that run a check on a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClusterFile {
    /// A HealthCheckProgram for slurmd, which drains a node with findings.
    SlurmHealthcheck,
    /// An Indexed Job that checks N nodes as one fleet.
    KubernetesJob,
    /// A DaemonSet that checks each node once a day.
    Daemonset,
    /// A custom plugin monitor for node-problem-detector, which checks its node.
    NodeProblemDetector,
    /// A SkyPilot task that checks N nodes as one fleet.
    Skypilot,
    /// A Prolog for slurmd: a node without a valid certificate is checked before a job starts.
    SlurmProlog,
    /// A pod whose init container checks its node unless the node has a valid certificate.
    InitContainer,
}

/// A model, and the lengths that have to fit.
#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    /// Also check a model: the kernels that its layers need, which of them are missing here, and whether it fits.
    #[arg(long, value_name = "DIR|config.json|SHAPE")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens per sequence. Default: 4096, or the model's limit if that is lower.
    #[arg(long = "max-model-len", aliases = ["context", "ctx-size"], value_name = "TOKENS", value_parser = one_or_more::<u64>, requires = "model")]
    pub(crate) context: Option<u64>,
    /// Sequences at once.
    #[arg(long = "max-num-seqs", aliases = ["sequences", "batch"], value_name = "N", value_parser = one_or_more::<u64>, default_value_t = 1, requires = "model")]
    pub(crate) sequences: u64,
}

/// Arguments of the process that checks one GPU.
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
    /// Cores that the process may use; empty for all.
    #[arg(long, value_delimiter = ',')]
    pub(crate) cores: Vec<usize>,
}

/// Arguments of the process that measures several GPUs.
#[derive(Debug, Args)]
pub(crate) struct GroupArguments {
    /// The driver's indices of the visible GPUs, in their order.
    #[arg(long, value_delimiter = ',')]
    pub(crate) gpus: Vec<u32>,
    /// Seconds for transfers between GPUs.
    #[arg(long)]
    pub(crate) fabric: Option<u64>,
    /// Bytes of the largest transfer.
    #[arg(long, default_value_t = 0)]
    pub(crate) largest: u64,
    /// Seconds of a matrix product on all GPUs.
    #[arg(long)]
    pub(crate) sustain: Option<u64>,
}
