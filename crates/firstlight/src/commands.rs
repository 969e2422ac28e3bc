//! One subcommand, one file.

mod apply;
mod ask_nvml;
mod bench;
mod chat;
mod check;
mod check_gpu;
mod compare;
mod compile_kernel;
mod completions;
mod convert;
mod doctor;
mod explain;
mod fit;
mod logits;
mod man;
mod matrix;
mod mcp;
mod op;
mod plan;
mod ps;
mod quantize;
pub(crate) mod rank;
mod remote;
mod report;
mod run;
mod serve;
mod synth;
mod together;
mod verify;

use crate::Outcome;
use crate::cli::Command;
use crate::output::Output;

pub(crate) fn run(command: &Command, output: &Output) -> anyhow::Result<Outcome> {
    compile_kernel::by_this_program();
    match command {
        Command::Check(arguments) => check::run(arguments, output),
        Command::Doctor(arguments) => doctor::run(arguments, output),
        Command::Explain(arguments) => explain::run(arguments, output),
        Command::Mcp(arguments) => mcp::run_server(arguments),
        Command::Matrix(arguments) => matrix::run(arguments, output),
        Command::Plan(arguments) => plan::run(arguments, output),
        Command::Ps(arguments) => ps::run(arguments, output),
        Command::Apply(arguments) => apply::run(arguments, output),
        Command::Verify(arguments) => verify::run(arguments, output),
        Command::Op(arguments) => op::run(arguments, output),
        Command::Bench(arguments) => bench::run(arguments, output),
        Command::Fit(arguments) => fit::run(arguments, output),
        Command::Synth(arguments) => synth::run(arguments, output),
        Command::Quantize(arguments) => quantize::run(arguments, output),
        Command::Run(arguments) => run::run(arguments, output),
        Command::Chat(arguments) => chat::run(arguments, output),
        Command::Serve(arguments) => serve::run(arguments, output),
        Command::Convert(arguments) => convert::run(arguments, output),
        Command::Logits(arguments) => logits::run(arguments, output),
        Command::Remote(arguments) => remote::run(arguments, output),
        Command::Report(arguments) => report::run(arguments, output),
        Command::Compare(arguments) => compare::run(arguments, output),
        Command::Gate(arguments) => compare::gate(arguments, output),
        Command::AskNvml(arguments) => ask_nvml::run(arguments),
        Command::CheckGpu(arguments) => check_gpu::run(arguments),
        Command::Rank => rank::run(),
        Command::Together(arguments) => together::run(arguments),
        Command::CompileKernel(arguments) => compile_kernel::run(arguments),
        Command::Completions(arguments) => completions::run(arguments, output),
        Command::Man(arguments) => man::run(arguments, output),
    }
}
