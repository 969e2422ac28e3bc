//! `cargo xtask bundle`: the CUDA kernels that are compiled ahead.

use super::{Command, Usage};
use crate::{bundle, cargo};

pub(super) const COMMAND: Command = Command {
    name: "bundle",
    arguments: "[--check]",
    about: "compiles the CUDA kernels that are built in, without a GPU, and looks at what came out",
    details: "  --check   compile into a folder of its own and compare with the committed bundle, byte by byte",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let check = match arguments {
        [] => false,
        [only] if only == "--check" => true,
        _ => return Err(Usage("wanted nothing or --check".to_owned()).into()),
    };
    bundle::make(&cargo::workspace_root()?, check)
}
