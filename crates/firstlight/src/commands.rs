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
mod gate;
mod gpu_group;
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
mod render_templates;
mod report;
mod run;
mod serve;
mod synth;
mod verify;

use crate::Outcome;
use crate::cli::{self, BenchCommand, Command, DriverTimeout, Gpus, ModelCommand, ModelFiles};
use crate::output::Output;

pub(crate) fn run(command: &Command, output: &Output) -> anyhow::Result<Outcome> {
    compile_kernel::by_this_program();
    if let Some(gpus) = gpus(command) {
        gpu_group::chosen::only_named(&gpus.gpu, &DriverTimeout { wait: None })?;
    }
    let outcome = dispatch(command, output)?;
    // Printed after the work: an error is followed only by its hint.
    if let Some((old, new)) = former_name(command) {
        eprintln!("notice: {old} is now {new}; the old name will be removed in the next release");
    }
    Ok(outcome)
}

/// The selected GPUs of a command that opens its device itself.
fn gpus(command: &Command) -> Option<&Gpus> {
    Some(match command {
        Command::Run(arguments) => &arguments.gpus,
        Command::Chat(arguments) => &arguments.gpus,
        Command::Serve(arguments) => &arguments.gpus,
        Command::Verify(arguments) => &arguments.gpus,
        Command::Logits(arguments) => &arguments.gpus,
        Command::Model(ModelFiles { command: ModelCommand::Logits(arguments) }) => &arguments.gpus,
        Command::Bench(arguments) => match &arguments.command {
            Some(BenchCommand::Model(model)) => &model.gpus,
            Some(BenchCommand::Fabric(_)) => return None,
            None => &arguments.gpus,
        },
        _ => return None,
    })
}

/// The former name that was typed, and the current one.
fn former_name(command: &Command) -> Option<(&'static str, &'static str)> {
    Some(match command {
        Command::Synth(_) => ("`firstlight synth`", "`firstlight model synth`"),
        Command::Convert(_) => ("`firstlight convert`", "`firstlight model convert`"),
        Command::Quantize(_) => ("`firstlight quantize`", "`firstlight model quantize`"),
        Command::Logits(_) => ("`firstlight logits`", "`firstlight model logits`"),
        Command::Gate(gate) if gate.certificate.is_none() => {
            ("`firstlight gate RUN --baseline BASE`", "`firstlight compare BASE RUN --fail`")
        }
        Command::Matrix(_) => ("`firstlight matrix`", "`firstlight plan --matrix`"),
        Command::Report(_) => ("`firstlight report RUN`", "`firstlight check --report RUN`"),
        Command::Plan(_) if cli::as_typed("--compute-capability", &["--gpu"]) == "--gpu" => {
            ("--gpu", "--compute-capability")
        }
        _ => return None,
    })
}

fn dispatch(command: &Command, output: &Output) -> anyhow::Result<Outcome> {
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
        Command::Model(arguments) => match &arguments.command {
            ModelCommand::Quantize(arguments) => quantize::run(arguments, output),
            ModelCommand::Convert(arguments) => convert::run(arguments, output),
            ModelCommand::Synth(arguments) => synth::run(arguments, output),
            ModelCommand::Logits(arguments) => logits::run(arguments, output),
        },
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
        Command::Gate(arguments) => gate::run(arguments, output),
        Command::AskNvml(arguments) => ask_nvml::run(arguments),
        Command::CheckGpu(arguments) => check_gpu::run(arguments),
        Command::Rank => rank::run(),
        Command::Together(arguments) => gpu_group::run(arguments),
        Command::CompileKernel(arguments) => compile_kernel::run(arguments),
        Command::RenderTemplates(arguments) => render_templates::run(arguments),
        Command::Completions(arguments) => completions::run(arguments, output),
        Command::Man(arguments) => man::run(arguments, output),
    }
}
