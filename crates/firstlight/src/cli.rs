//! Command-line arguments. Help, completions and the man page are generated from these definitions.

mod bench_fabric;
mod bench_model;
mod check;
mod foreign;
mod gate;
mod help;
mod mcp;
mod model;
mod number;
mod ops;
mod parse;
mod plan;
mod remote;
mod serve;
mod states;

pub(crate) use bench_fabric::BenchFabric;
pub(crate) use bench_model::{BenchCommand, BenchModel};
pub(crate) use check::{Check, CheckGpu, ClusterFile, FleetChoice, GroupArguments, ModelArguments};
pub(crate) use foreign::as_typed;
pub(crate) use gate::Gate;
pub(crate) use mcp::Mcp;
pub(crate) use model::{
    Chat, Convert, Fit, Gpus, Logits, ModelCommand, ModelFiles, ModelName, Quantize, Run, Split,
    Stages, Synth, WeightFormat, WeightType,
};
pub(crate) use number::{byte_size, gibibytes, number, one_or_more, share, token, whole};
pub(crate) use ops::{Bench, Op, Storage, Sweep, Verify};
pub(crate) use parse::{command, parse};
pub(crate) use plan::{MachineChoice, Plan};
pub(crate) use remote::Remote;
pub(crate) use serve::{Cors, Serve, Sizes};
pub(crate) use states::States;

use crate::source_tree;
use clap::{Args, Parser, Subcommand, ValueEnum};
use facts::BackendKind;
use std::path::PathBuf;

/// Diagnose a GPU setup, verify and time its kernels, and run and serve models.
///
/// firstlight reads a machine and its Python environments, diagnoses the GPU stack and suggests fixes, verifies kernels
/// against a float64 reference, times those that pass, and writes a report in which every number names the file it came
/// from. `firstlight check` does all of this.
#[derive(Debug, Parser)]
#[command(name = "firstlight", version = source_tree::VERSION, arg_required_else_help = true)]
#[command(
    after_help = "Exit status: 0 good, 1 findings or failures, 2 usage or operational error, 3 unclear (`compare --fail` on a busy machine, `check` out of time).\n\
                        `firstlight COMMAND --help` has examples of each command."
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
    /// Probe, diagnose, verify, benchmark and report, in one run.
    Check(Check),
    /// Diagnose the GPU stack of this machine, and suggest fixes.
    ///
    /// Reads the machine and its Python environments. Takes seconds; runs no kernel and imports no package.
    Doctor(Doctor),
    /// Explain a pasted error or log, and check it against this machine.
    ///
    /// Without an argument: lists the rules.
    Explain(Explain),
    /// The former name of `plan --matrix`.
    #[command(hide = true)]
    Matrix(Matrix),
    /// Choose a Python, CUDA, torch and extensions that fit together.
    ///
    /// Prints the choice with its reasons, or the conflicting facts and the nearest plans. --matrix shows the support of every platform
    /// instead. Changes nothing.
    Plan(Plan),
    /// Show which processes use GPU memory; stop one.
    ///
    /// Marks copies of one program and orphaned processes.
    Ps(Ps),
    /// Install a locked plan into an environment atomically.
    ///
    /// Every file is compared with its hash and inspected before it is installed. The new environment is built next to
    /// the old one, tested, and swapped with it in one step; the old one is kept.
    Apply(Apply),
    /// Check kernels against a float64 reference.
    Verify(Verify),
    /// Run one op on tensors from a safetensors file.
    #[command(hide = true)]
    Op(Op),
    /// Time the kernels that pass against this machine's ceilings.
    Bench(Box<Bench>),
    /// Serve firstlight's tools to an agent (Model Context Protocol).
    ///
    /// The tools are doctor, explain, plan, fit, verify and report. The server uses standard input and output; an
    /// agent's client starts it. Every tool only reads, unless --allow-changes is given.
    Mcp(Mcp),
    /// Compute whether a model fits in memory here, in bytes.
    Fit(Fit),
    /// Write a checkpoint: quantize, convert or synth; or write logits.
    Model(ModelFiles),
    /// The former name of `model synth`.
    #[command(hide = true)]
    Synth(Synth),
    /// The former name of `model convert`.
    #[command(hide = true)]
    Convert(Convert),
    /// The former name of `model quantize`.
    #[command(hide = true)]
    Quantize(Quantize),
    /// Generate text with a model.
    ///
    /// Standard output has only the text; device, speed and kernels are on standard error. Without a prompt, a chat
    /// starts on a terminal; otherwise the prompt is read from standard input.
    Run(Run),
    /// Chat with a model in the terminal, or through a pipe.
    ///
    /// Each line is a message. Answers are streamed, and Ctrl-C stops one. The conversation's state stays in memory: a
    /// turn computes only its new tokens, if the model's chat template allows it. Lines of a pipe are answered in
    /// order.
    Chat(Chat),
    /// Serve a model over HTTP, compatible with OpenAI's clients.
    ///
    /// Requests join and leave between the steps of one engine (continuous batching). After Ctrl-C or SIGTERM, open
    /// requests finish first.
    Serve(Box<Serve>),
    /// The former name of `model logits`.
    #[command(hide = true)]
    Logits(Logits),
    /// Run firstlight on another machine over ssh, and fetch the results.
    ///
    /// Without a command: lists the runs that only that machine has, before you stop it.
    Remote(Box<Remote>),
    /// The former name of `check --report`.
    #[command(hide = true)]
    Report(Report),
    /// Show the changes between two runs; --fail makes it a gate for CI.
    Compare(Compare),
    /// Accept or refuse this machine based on a certificate of `check`.
    ///
    /// It is accepted if the signature is valid and the files, the driver and the GPUs are unchanged.
    Gate(Gate),
    /// Query NVML and print each value when it arrives: `doctor` and others query through a separate process, which may
    /// hang or be killed when the driver is broken.
    #[command(hide = true)]
    AskNvml(AskNvml),
    /// Check one GPU for `check`, which starts one process per further GPU; results go to standard output as JSON.
    #[command(hide = true)]
    CheckGpu(CheckGpu),
    /// Run as one rank of a model that `--tp` splits over processes.
    #[command(hide = true)]
    Rank,
    /// Measure transfers and load of several GPUs, for `check` and `bench fabric`; results go to standard output as
    /// JSON.
    #[command(hide = true)]
    Together(GroupArguments),
    /// Compile CUDA source from standard input with NVRTC: `verify` and others compile several kernels at once, each in
    /// a separate process.
    #[command(hide = true)]
    CompileKernel(CompileKernel),
    /// Render a model's chat templates within limits of time and memory: conversations are read from standard input,
    /// one per line, and texts are written to standard output.
    #[command(hide = true)]
    RenderTemplates(RenderTemplates),
    /// Print a completion script for a shell.
    Completions(Completions),
    /// Print the man page, or write one page per command.
    #[command(hide = true)]
    Man(Man),
}

#[derive(Debug, Args)]
pub(crate) struct CompileKernel {
    /// The library of NVRTC.
    #[arg(value_name = "LIBRARY")]
    pub(crate) nvrtc: PathBuf,
    /// Its options.
    #[arg(value_name = "OPTION", allow_hyphen_values = true, trailing_var_arg = true)]
    pub(crate) options: Vec<String>,
}

/// The environment to read.
#[derive(Debug, Clone, Args)]
pub(crate) struct Environment {
    /// Python environment to read first (a folder with pyvenv.cfg or conda-meta).
    ///
    /// VIRTUAL_ENV, CONDA_PREFIX, ./.venv and the python on PATH are read as well.
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
}

/// How long to wait for a driver.
#[derive(Debug, Clone, Args)]
pub(crate) struct DriverTimeout {
    /// How long to wait for the driver. Default: 2 seconds, 30 for `check`.
    ///
    /// Many GPUs without persistence mode need more.
    #[arg(long = "driver-timeout", alias = "wait", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) wait: Option<f64>,
}

/// At most one day, which keeps arithmetic with clocks far from overflow.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, from 0.1 to 86400".to_owned()),
    }
}

/// Kernels of an installed Python stack, run next to firstlight's own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels of a Python environment")]
pub(crate) struct PythonPeers {
    /// Also run the kernels installed in this environment (a folder with bin/python).
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) choice: PeerChoice,
}

/// The kernels of an environment to run, and their limits.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels of a Python environment")]
pub(crate) struct PeerChoice {
    /// As --venv, given by the interpreter, for a Python that is not a virtual environment.
    #[arg(long, value_name = "EXE", conflicts_with = "venv")]
    pub(crate) python: Option<PathBuf>,
    /// Folder to search for packages first (PYTHONPATH is not read).
    #[arg(long, value_name = "DIR")]
    pub(crate) peer_path: Vec<PathBuf>,
    /// Only installed kernels whose names start with this, such as torch or fla. Default: all.
    #[arg(long = "only", value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Your own function as a kernel: takes tensors and settings by name, returns outputs by name.
    ///
    /// After @, part of the name of a kernel that must have run.
    #[arg(long, value_name = "OP=MODULE:FUNCTION[@KERNEL]")]
    pub(crate) peer: Vec<String>,
    /// Time limit of one call, including the first call, which compiles.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>, default_value_t = 180)]
    pub(crate) peer_timeout: u64,
    /// Time limit for verifying all cases of one installed kernel. Default: 60 for `check`, none otherwise.
    ///
    /// Timing all of them may take twice this. Kernels that exceed it are listed as not run.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>)]
    pub(crate) peer_budget: Option<u64>,
    /// Memory limit of the interpreter.
    #[arg(long, value_name = "GIB", value_parser = one_or_more::<u64>, default_value_t = 64)]
    pub(crate) peer_memory: u64,
}

impl PeerChoice {
    /// Whether an argument needs an environment.
    pub(crate) fn names_any(&self) -> bool {
        !(self.peer_path.is_empty() && self.only.is_empty() && self.peer.is_empty())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) environment: Environment,
    #[command(flatten)]
    pub(crate) wanted: ModelArguments,
    /// Show the evidence and links of each finding, and all facts.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Read every installed file and compare it with the hash in its package's RECORD; sizes are always compared.
    #[arg(long)]
    pub(crate) verify_files: bool,
    /// Compute one remedy for a virtual environment, ask, and run it after taking a snapshot.
    ///
    /// Only packages are changed. Imports that worked before are tested again afterwards. If one no longer works, or a
    /// command fails, every file is restored. The next run rolls back an interrupted one.
    #[arg(long, conflicts_with = "model")]
    pub(crate) fix: bool,
    /// With --fix: do not ask.
    #[arg(long, requires = "fix")]
    pub(crate) yes: bool,
    /// Also write the findings as SARIF 2.1.0 for code scanning.
    #[arg(long, value_name = "FILE")]
    pub(crate) sarif: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// An error message, a file with one (a traceback, a pip log, dmesg), `-` for standard input, or a rule's id.
    /// Without it, text that is piped in is read; without a pipe the rules are listed.
    #[arg(value_name = "TEXT|FILE|-|RULE")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) environment: Environment,
}

/// The model whose templates this process renders.
#[derive(Debug, Args)]
pub(crate) struct RenderTemplates {
    /// The model's folder, or a GGUF file.
    pub(crate) model: PathBuf,
}

/// Arguments of the process that queries NVML.
#[derive(Debug, Args)]
pub(crate) struct AskNvml {
    /// Report only values that change while programs run.
    #[arg(long, conflicts_with = "every")]
    pub(crate) moment: bool,
    /// Report the state of the GPUs every N milliseconds as JSON, until the reader closes the pipe.
    #[arg(long)]
    pub(crate) every: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Matrix {
    #[command(flatten)]
    pub(crate) machine: MachineChoice,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
    /// Show the source and date of each cell.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Ask, send SIGTERM to this process if you own it, and check that its memory is freed.
    #[arg(long, value_name = "PID", value_parser = process)]
    pub(crate) stop: Option<u32>,
    /// Do not ask before SIGTERM.
    #[arg(long, requires = "stop")]
    pub(crate) yes: bool,
    /// Send SIGKILL if it does not end after SIGTERM, without asking again.
    #[arg(long, requires = "stop")]
    pub(crate) kill: bool,
    /// How long it may take to end.
    #[arg(long, requires = "stop", value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) grace: f64,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
    /// Read a recorded machine instead of this one.
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) recorded: Option<PathBuf>,
}

/// Only a number identifies one process: a name could match other users' processes.
fn process(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if pid > 0 => Ok(pid),
        _ => Err("expected a process ID, as listed by `firstlight ps`".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// A locked plan.
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// The environment to create, or to replace once the new one passes its checks.
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: PathBuf,
    /// Delete the replaced environment, and the backup DIR.firstlight-old of an earlier apply.
    #[arg(long)]
    pub(crate) discard_old: bool,
    /// Reinstall damaged, missing and overwritten files from the plan's wheels, and keep the rest.
    ///
    /// Only for an environment that this plan created. Without --repair such an environment is replaced.
    #[arg(long, conflicts_with_all = ["discard_old", "dry_run"])]
    pub(crate) repair: bool,
    /// Check every precondition, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before changing an environment.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Folder for downloaded files. Default: firstlight/files in your cache folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
}

/// How much to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Extent {
    /// One or two shapes and the most demanding edge cases of each op.
    Quick,
    /// The standard matrix.
    Standard,
    /// Also the large shapes.
    Full,
}

/// The device that a command runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    /// The best device that works and supports the command; the first line names it, and why it is not the GPU.
    Auto,
    /// The processor.
    Cpu,
    /// The first NVIDIA GPU that this process sees.
    #[value(aliases = ["gpu", "nvidia"])]
    Cuda,
}

impl BackendArg {
    /// The backend that was requested by name.
    pub(crate) fn by_name(self) -> Option<BackendKind> {
        match self {
            Self::Auto => None,
            Self::Cpu => Some(BackendKind::Cpu),
            Self::Cuda => Some(BackendKind::Cuda),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// A folder that `check` wrote.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Write a copy that can be shared: without host and user names, folders that a user named, and unrelated packages.
    #[arg(long)]
    pub(crate) redact: bool,
    /// Folder for that copy, empty or new.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The earlier run: a folder that `check` or `bench -o` wrote.
    #[arg(value_name = "BASE")]
    pub(crate) base: PathBuf,
    /// The later run.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    /// Smallest change of a median, in percent, that is reported.
    #[arg(long, value_name = "PERCENT", default_value_t = report::TOLERANCE_PCT, value_parser = percent)]
    pub(crate) tolerance: f64,
    /// Exit 1 if RUN is worse than BASE, and 3 if a busy machine leaves it unclear; writes gate.md and gate.html instead.
    #[arg(long)]
    pub(crate) fail: bool,
    /// With --fail: allow runs of different machines.
    #[arg(long, requires = "fail")]
    pub(crate) any_machine: bool,
    /// Also write compare.md and compare.html into this folder.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// A finite percentage of 0 or more.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("expected a percentage of 0 or more, such as 5".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell to complete for.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Folder for one page per command.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}
