//! Arguments. Help, completions and the man page are made from these definitions.

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
pub(crate) use check::{Check, CheckGpu, Emitted, FleetChoice, Together, Wanted};
pub(crate) use foreign::as_typed;
pub(crate) use gate::Gate;
pub(crate) use mcp::Mcp;
pub(crate) use model::{
    Chat, Convert, Fit, Logits, ModelCommand, ModelFiles, Named, NarrowWeights, Quantize, Run,
    Split, Stages, Synth, WeightType,
};
pub(crate) use number::{byte_size, gibibytes, number, one_or_more, share, token, whole};
pub(crate) use ops::{Bench, Op, Storage, Sweep, Verify};
pub(crate) use parse::{command, parse};
pub(crate) use plan::{Plan, Which};
pub(crate) use remote::Remote;
pub(crate) use serve::{Cors, Serve, Sizes};
pub(crate) use states::States;

use crate::source_tree;
use clap::{Args, Parser, Subcommand, ValueEnum};
use facts::BackendKind;
use std::path::PathBuf;

/// From a bare GPU machine to the first verified token.
///
/// firstlight reads a machine and its Python environments, says what is wrong with the GPU stack and how to fix it,
/// verifies kernels against a float64 reference, times those that pass, and writes a report in which every number
/// names the file it came from. `firstlight check` does all of this.
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
    /// Say what is wrong with the GPU stack here, and how to fix it.
    ///
    /// Reads the machine and its Python environments. Takes seconds; runs no kernel and imports no package.
    Doctor(Doctor),
    /// Explain a pasted error or log, and check it against this machine.
    ///
    /// Without an argument: lists the rules.
    Explain(Explain),
    /// Show what works on which platform, with reasons and sources.
    Matrix(Matrix),
    /// Choose a Python, CUDA, torch and extensions that fit together.
    ///
    /// Prints the choice with its reasons, or the facts that cannot all hold and the plans nearest to them. Changes nothing.
    Plan(Plan),
    /// Show which processes hold GPU memory; stop one.
    ///
    /// Names copies of one program and processes that were left behind.
    Ps(Ps),
    /// Install a locked plan into an environment atomically.
    ///
    /// Every file is checked against its hash and opened before it is installed. The new environment is built beside the old
    /// one, tested, and exchanged with it in one step; the old one is kept.
    Apply(Apply),
    /// Check kernels against a float64 reference.
    Verify(Verify),
    /// Run one op on tensors from a safetensors file.
    #[command(hide = true)]
    Op(Op),
    /// Time the kernels that pass, against this machine's own ceilings.
    Bench(Box<Bench>),
    /// Serve firstlight's tools to an agent (Model Context Protocol).
    ///
    /// The tools are doctor, explain, plan, fit, verify and report. It speaks over standard input and output; an agent's client starts it. Every tool only reads, unless --allow-changes is given.
    Mcp(Mcp),
    /// Say whether a model fits in memory here, in bytes.
    Fit(Fit),
    /// Write a checkpoint: quantize, convert or synth; or its logits.
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
    /// Standard output has the text alone; device, speed and the kernels that ran are on standard error. Without a prompt, a chat begins
    /// on a terminal, and standard input is the prompt elsewhere.
    Run(Run),
    /// Talk with a model in the terminal, or through a pipe.
    ///
    /// Each line is a message; answers come as they are generated, and Ctrl-C stops one. The conversation stays in memory: a turn reads
    /// only what is new, where the model's chat template lets it. Lines of a pipe are answered one after the other.
    Chat(Chat),
    /// Serve a model over HTTP, as OpenAI's clients speak it.
    ///
    /// Requests join and leave between the steps of one engine. Ctrl-C or SIGTERM lets those that are open end first.
    Serve(Box<Serve>),
    /// The former name of `model logits`.
    #[command(hide = true)]
    Logits(Logits),
    /// Run firstlight on another machine by ssh, and fetch the results.
    ///
    /// Without a command: shows which runs exist only there, before you stop that machine.
    Remote(Box<Remote>),
    /// Write a run's report again from its files.
    Report(Report),
    /// Show what changed between two runs; --fail makes it a gate for CI.
    Compare(Compare),
    /// Accept or refuse this machine by a certificate of `check`.
    ///
    /// It is accepted while the signature is valid and the files, the driver and the GPUs are those that were checked.
    Gate(Gate),
    /// Ask NVML and print its answers as they come: `doctor` and the others ask through a process of their own, which
    /// may hang or be ended by a driver in trouble.
    #[command(hide = true)]
    AskNvml(AskNvml),
    /// Check one GPU for `check`, which starts a process for each further one: what comes of it goes to standard output as JSON.
    #[command(hide = true)]
    CheckGpu(CheckGpu),
    /// Be one rank of a model that `--tp` splits over processes.
    #[command(hide = true)]
    Rank,
    /// Measure what several GPUs do together, for `check` and `bench fabric`: what comes of it goes to standard output as JSON.
    #[command(hide = true)]
    Together(Together),
    /// Compile the CUDA source on standard input by NVRTC: `verify` and the others compile several kernels at once, each in a
    /// process of its own.
    #[command(hide = true)]
    CompileKernel(CompileKernel),
    /// Render a model's chat templates within limits of time and memory: conversations come on standard input, a line each, and texts
    /// go to standard output.
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
    /// How long to wait for the driver. Default: 2 seconds, 30 for `check`.
    ///
    /// Many GPUs without persistence mode need more.
    #[arg(long = "driver-timeout", alias = "wait", value_name = "SECONDS", value_parser = seconds)]
    pub(crate) wait: Option<f64>,
}

/// A day is more than anybody waits, and keeps the arithmetic of clocks far from its ends.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("wanted seconds, from 0.1 to 86400".to_owned()),
    }
}

/// Kernels of an installed Python stack, run beside firstlight's own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels of a Python environment")]
pub(crate) struct PythonPeers {
    /// Also run the kernels installed in this environment (a folder with bin/python).
    #[arg(long, value_name = "DIR")]
    pub(crate) venv: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) choice: PeerChoice,
}

/// Which kernels of an environment are run, and how far they may go.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernels of a Python environment")]
pub(crate) struct PeerChoice {
    /// The same by its interpreter, for a Python that is not a virtual environment.
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
    /// Time limit of one call, including the first, which compiles.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>, default_value_t = 180)]
    pub(crate) peer_timeout: u64,
    /// Time limit for verifying all cases of one installed kernel. Default: 60 for `check`, none otherwise.
    ///
    /// Timing all of them together may take twice this. What did not run in time is listed as not run.
    #[arg(long, value_name = "SECONDS", value_parser = one_or_more::<u64>)]
    pub(crate) peer_budget: Option<u64>,
    /// Memory limit of the interpreter.
    #[arg(long, value_name = "GIB", value_parser = one_or_more::<u64>, default_value_t = 64)]
    pub(crate) peer_memory: u64,
}

impl PeerChoice {
    /// Whether something was asked of an environment that may not be named.
    pub(crate) fn names_any(&self) -> bool {
        !(self.peer_path.is_empty() && self.only.is_empty() && self.peer.is_empty())
    }
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) environment: Environment,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
    /// Show the evidence and links of each finding, and all facts.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Read every installed file and compare it with the hash in its package's RECORD; sizes are always compared.
    #[arg(long)]
    pub(crate) verify_files: bool,
    /// Compute one remedy for a virtual environment, ask, and run it behind a snapshot.
    ///
    /// Only packages are changed. Imports that worked before are tried again afterwards. If one no longer works, or a command
    /// fails, every file is put back. The next run undoes one that was killed.
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
    #[arg(value_name = "TEXT|FILE|-|RULE")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) environment: Environment,
}

/// The model whose templates a process renders.
#[derive(Debug, Args)]
pub(crate) struct RenderTemplates {
    /// Its folder, or a GGUF file.
    pub(crate) model: PathBuf,
}

/// What the process that asks NVML is told.
#[derive(Debug, Args)]
pub(crate) struct AskNvml {
    /// Tell what changes while programs run, and nothing else.
    #[arg(long, conflicts_with = "every")]
    pub(crate) moment: bool,
    /// Tell the state of the GPUs each time so many milliseconds have passed, as JSON, until nobody listens.
    #[arg(long)]
    pub(crate) every: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Matrix {
    #[command(flatten)]
    pub(crate) machine: Which,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    /// Show the source and date of each cell.
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Ask, send TERM to this process if it is yours, and check that its memory came back.
    #[arg(long, value_name = "PID", value_parser = process)]
    pub(crate) stop: Option<u32>,
    /// Do not ask before TERM.
    #[arg(long, requires = "stop")]
    pub(crate) yes: bool,
    /// Kill it if it does not end on TERM, without asking again.
    #[arg(long, requires = "stop")]
    pub(crate) kill: bool,
    /// How long it may take to end.
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
        _ => Err("wanted a process ID, as `firstlight ps` lists them".to_owned()),
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
    /// Delete the replaced environment, and one kept earlier as DIR.firstlight-old.
    #[arg(long)]
    pub(crate) discard_old: bool,
    /// Rewrite damaged, missing and overwritten files from the plan's wheels, and leave the rest.
    ///
    /// Only for an environment that this plan made. Without --repair such an environment is replaced.
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

/// Where a command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendArg {
    /// The best device that works and can do it: the first line says which, and why it is not the GPU.
    Auto,
    /// The processor.
    Cpu,
    /// The first NVIDIA GPU that this process sees.
    #[value(aliases = ["gpu", "nvidia"])]
    Cuda,
}

impl BackendArg {
    /// The backend that was asked for by its name.
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
    /// Write a copy that can be shared: without host and user names, home folders, and unrelated packages.
    #[arg(long, requires = "output")]
    pub(crate) redact: bool,
    /// Folder for that copy, empty or new.
    #[arg(short, long, value_name = "DIR", requires = "redact")]
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
    /// Smallest change of a median, in percent, that counts as a change.
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

/// A percentage that is a number and not negative.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("wanted a percentage of 0 or more, such as 5".to_owned()),
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
