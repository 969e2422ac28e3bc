//! Arguments. Help, completions and the man page are made from these definitions.

mod bench_model;
mod model;
mod ops;
mod plan;
mod remote;

pub(crate) use bench_model::{BenchCommand, BenchModel};
pub(crate) use model::{Convert, Fit, Logits, Named, Run, Synth, WeightType};
pub(crate) use ops::{Bench, Op, Storage, Sweep, Verify};
pub(crate) use plan::Plan;
pub(crate) use remote::Remote;

use clap::{Args, Parser, Subcommand, ValueEnum};
use facts::BackendKind;
use std::path::PathBuf;

/// From a bare GPU machine to the first verified token.
///
/// Probes the machine, diagnoses its accelerator stack from the files themselves, verifies every attention kernel
/// against an independent float64 reference, benches what passed, and writes a report in which every number points at
/// the file it came from.
#[derive(Debug, Parser)]
#[command(name = "firstlight", version, arg_required_else_help = true)]
#[command(
    after_help = "Exit status: 0 all is good, 1 findings or failures, 2 a usage or operational error.\n\
                        NO_COLOR is honoured; progress goes to standard error, and only to a terminal."
)]
pub(crate) struct Cli {
    /// Print JSON on standard output instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Probe, diagnose, verify, bench and report: the main job, in one run folder.
    Check(Check),
    /// Read the machine and its Python environments, and say what is wrong with them. Fast; runs no kernel.
    Doctor(Doctor),
    /// Say what a pasted error means, whether this machine's files agree, and what to do. Alone: list the rules.
    Explain(Explain),
    /// Show what works on which platform, each cell with its reason and source.
    Matrix(Matrix),
    /// Choose a Python, a CUDA, a torch and extensions that go together on a machine, and say why. Changes nothing.
    Plan(Plan),
    /// Show which processes have GPU memory, copies of one program and what was left behind; stop one.
    Ps(Ps),
    /// Make a plan so in a Python environment, whole or not at all.
    Apply(Apply),
    /// Hold every kernel against the float64 reference.
    Verify(Verify),
    /// Run one op on tensors from a safetensors file.
    Op(Op),
    /// Measure this machine's ceilings, then every kernel that passes its check.
    Bench(Box<Bench>),
    /// Say whether a model fits on this machine, in bytes: weights, states, cache, workspace.
    Fit(Fit),
    /// Write a random model of a real or reduced shape, for tests and measurements. Alone: list the shapes.
    Synth(Synth),
    /// Write a checkpoint by another layout's names, file by file, and prove that nothing else changed.
    Convert(Convert),
    /// Continue text or answer a question with a model, as it comes, and say what it took.
    Run(Run),
    /// Run a model on given tokens and write its logits.
    Logits(Logits),
    /// Run a command of firstlight on another machine, by your own ssh, and fetch its run folder. Alone: what a stop would lose.
    Remote(Box<Remote>),
    /// Write a run folder's report again from its files, and show its verdict.
    Report(Report),
    /// Hold one run against another: what changed, beyond the noise of the samples.
    Compare(Compare),
    /// Let a run pass only if nothing got worse than in a baseline; for CI.
    Gate(Gate),
    /// Ask NVML and print its answers as they come: `doctor` and the others ask through a process of their own, which
    /// may hang or be ended by a driver in trouble.
    #[command(hide = true)]
    AskNvml,
    /// Compile the CUDA source on standard input by NVRTC: `verify` and the others compile several kernels at once, each in a
    /// process of its own.
    #[command(hide = true)]
    CompileKernel(CompileKernel),
    /// Print completions for a shell.
    Completions(Completions),
    /// Print the man page, or write one page a subcommand into a folder.
    Man(Man),
}

#[derive(Debug, Args)]
pub(crate) struct CompileKernel {
    /// The compiler's library.
    #[arg(value_name = "LIBRARY")]
    pub(crate) nvrtc: PathBuf,
    /// Its options.
    #[arg(value_name = "OPTION", allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) options: Vec<String>,
}

/// Which environment to read.
#[derive(Debug, Clone, Args)]
pub(crate) struct Environment {
    /// Python environment to read first (a folder with pyvenv.cfg or conda-meta).
    ///
    /// VIRTUAL_ENV, CONDA_PREFIX, ./.venv and the python on PATH are read as well.
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// How long to wait for a driver.
#[derive(Debug, Clone, Args)]
pub(crate) struct Waiting {
    /// Longest time the driver may take to answer; more for many GPUs without persistence mode.
    ///
    /// Default: 2, and 30 for `check`, which takes longer anyway.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) wait: Option<f64>,
}

/// A day is more than anybody waits, and keeps the arithmetic of clocks far from its ends.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("wanted a number of seconds from 0.1 to 86400".to_owned()),
    }
}

/// Kernels of an installed Python stack, run beside firstlight's own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels of a Python environment")]
pub(crate) struct PythonPeers {
    /// Environment whose installed kernels are run too (a folder with bin/python).
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) choice: PeerChoice,
}

/// Which kernels of an environment are run, and how far they may go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels of a Python environment")]
pub(crate) struct PeerChoice {
    /// The environment by its interpreter, for one that is no virtual environment: its installed kernels are run too.
    #[arg(long, value_name = "EXE", conflicts_with = "venv")]
    pub(crate) python: Option<PathBuf>,
    /// Folder searched for packages first. The interpreter is isolated: it does not read PYTHONPATH.
    #[arg(long, value_name = "DIR")]
    pub(crate) peer_path: Vec<PathBuf>,
    /// Only the peers whose names begin so: torch, ffpa.triton, fla. Default: all.
    #[arg(long = "only", value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// A function of yours: it takes tensors and settings by name and gives outputs by name.
    ///
    /// After an @ a part of the name of a kernel that must have run.
    #[arg(long, value_name = "OP=MODULE:FUNCTION[@KERNEL]")]
    pub(crate) peer: Vec<String>,
    /// Seconds that one call may take, its first, which compiles, included.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    pub(crate) peer_timeout: u64,
    /// Seconds that all calls of one peer may take while it is verified; all peers together have twice that while they are
    /// timed. What is left over then is not run, and said to be so.
    ///
    /// Default: 60 for `check`, no end otherwise.
    #[arg(long, value_name = "SECONDS")]
    pub(crate) peer_budget: Option<u64>,
    /// GiB of memory that the interpreter may take.
    #[arg(long, value_name = "GIB", default_value_t = 64)]
    pub(crate) peer_memory: u64,
}

impl PeerChoice {
    /// Whether something was asked of an environment that may not be named.
    pub(crate) fn names_any(&self) -> bool {
        !(self.peer_path.is_empty() && self.only.is_empty() && self.peer.is_empty())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) environment: Environment,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    #[command(flatten)]
    pub(crate) peers: PeerChoice,
    /// Fewer cases and shorter measurements: well under a minute on two cores.
    #[arg(long, conflicts_with = "full")]
    pub(crate) quick: bool,
    /// Every case, every variant this machine can run, and the large shapes.
    #[arg(long)]
    pub(crate) full: bool,
    /// Run folder, which must be empty or absent.
    ///
    /// Default: firstlight-runs/<utc>-<host>
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// A model, and what it shall fit with.
#[derive(Debug, Args)]
pub(crate) struct Wanted {
    /// A model's folder or config.json: which kernels its layers need, which are missing, and whether it fits.
    #[arg(long, value_name = "DIR|config.json")]
    pub(crate) model: Option<PathBuf>,
    /// Tokens of each sequence the model shall fit with.
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, requires = "model")]
    pub(crate) context: u64,
    /// Sequences at once the model shall fit with.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "model")]
    pub(crate) sequences: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) environment: Environment,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// Show each finding's evidence and links, and all facts about the machine.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Show the commands of each finding, ask, and run those that only change packages of a virtual environment.
    #[arg(long, conflicts_with = "model")]
    pub(crate) fix: bool,
    /// With --fix: do not ask.
    #[arg(long, requires = "fix")]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// An error's text, a file with it (a traceback, a pip log, dmesg), `-` for standard input, or a rule's id.
    #[arg(value_name = "TEXT|FILE|-|RULE")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) environment: Environment,
}

#[derive(Debug, Args)]
pub(crate) struct Matrix {
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Show where each cell was read, and when.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Ask, then send TERM to this process if it is yours, and look whether its memory came back.
    #[arg(long, value_name = "PID", value_parser = process)]
    pub(crate) stop: Option<u32>,
    /// Do not ask before TERM.
    #[arg(long, requires = "stop")]
    pub(crate) yes: bool,
    /// Kill it, without asking again, if it does not end on TERM.
    #[arg(long, requires = "stop")]
    pub(crate) kill: bool,
    /// How long it may take to end on TERM, and on KILL.
    #[arg(long, requires = "stop", value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) grace: f64,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Read a recorded machine instead of this one.
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) recorded: Option<PathBuf>,
}

/// Only a number means one process: a name could mean other people's.
fn process(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err("wanted a process number, as `firstlight ps` lists them".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// A locked plan.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// The environment to make, or to replace whole once the new one is proven.
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: PathBuf,
    /// Remove the environment that is replaced, and one that an earlier apply kept as DIR.firstlight-old.
    #[arg(long)]
    pub(crate) discard_old: bool,
    /// Look at every precondition and make nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before an environment is replaced.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Folder that keeps downloaded files.
    ///
    /// Default: firstlight/files in the user's cache folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// How much to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Extent {
    /// One or two shapes and the sharpest edges of each op.
    Quick,
    /// The standard matrix.
    Standard,
    /// The large shapes too.
    Full,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BackendArg {
    Cpu,
    Cuda,
    Metal,
}

impl From<BackendArg> for BackendKind {
    fn from(backend: BackendArg) -> Self {
        match backend {
            BackendArg::Cpu => Self::Cpu,
            BackendArg::Cuda => Self::Cuda,
            BackendArg::Metal => Self::Metal,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// Run folder of a `check`.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Folder of the run to hold the other one against: of a `check`, or of a `bench -o`.
    #[arg(value_name = "BASE")]
    pub(crate) base: PathBuf,
    /// Folder of the run to look at.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Change of a median, in percent, from which on it is called a change.
    #[arg(long, value_name = "PERCENT", default_value_t = report::TOLERANCE_PCT, value_parser = percent)]
    pub(crate) tolerance: f64,
    /// Write compare.md and compare.html into this folder as well.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Gate {
    /// Folder of the run that wants to pass.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Folder of the run it is held against.
    #[arg(long, value_name = "RUN")]
    pub(crate) baseline: PathBuf,
    /// Percent that a median may be longer than the baseline's.
    #[arg(long, value_name = "PERCENT", default_value_t = report::TOLERANCE_PCT, value_parser = percent)]
    pub(crate) tolerance: f64,
    /// Let the runs be of different machines.
    #[arg(long)]
    pub(crate) any_machine: bool,
    /// Write gate.md and gate.html into this folder as well.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// A share that is a number and not below nought.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("wanted a number of percent, such as 5".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Folder to write one page a subcommand into.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}
