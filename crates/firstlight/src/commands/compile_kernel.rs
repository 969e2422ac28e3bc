//! `firstlight compile-kernel`, hidden: compiles one kernel in a separate process, because NVRTC compiles one at a time
//! per process.

use crate::Outcome;
use crate::cli::CompileKernel;
use crate::own_program::own_program;
use ops_cuda::{compile_by, compile_for_another};

pub(super) fn run(arguments: &CompileKernel) -> anyhow::Result<Outcome> {
    let (input, output, log) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let CompileKernel { nvrtc, options } = arguments;
    let compiled = compile_for_another(nvrtc, options, input.lock(), output.lock(), log.lock())?;
    Ok(if compiled { Outcome::Good } else { Outcome::Bad })
}

/// Makes processes of this program compile the kernels that are not in the bundle.
pub(super) fn by_this_program() {
    if let Some(own) = own_program() {
        compile_by(own, &["compile-kernel"]);
    }
}
