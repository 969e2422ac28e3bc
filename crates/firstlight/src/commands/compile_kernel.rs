//! `firstlight compile-kernel`, hidden: the process that compiles one kernel for the others, as NVRTC compiles one at a time.

use crate::Outcome;
use crate::cli::CompileKernel;
use crate::own_program::own_program;
use device::cuda::{compile_by, compile_for_another};

pub(super) fn run(arguments: &CompileKernel) -> anyhow::Result<Outcome> {
    let (input, output, log) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let CompileKernel { nvrtc, options } = arguments;
    let compiled = compile_for_another(nvrtc, options, input.lock(), output.lock(), log.lock())?;
    Ok(if compiled { Outcome::Good } else { Outcome::Bad })
}

/// Has kernels that are not built in compiled by processes of this program.
pub(super) fn by_this_program() {
    if let Some(own) = own_program() {
        compile_by(own, &["compile-kernel"]);
    }
}
