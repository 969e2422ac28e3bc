use clap::Args;

/// The tools that an agent may use.
#[derive(Debug, Args)]
pub(crate) struct Mcp {
    /// Also offer tools that change an environment or write files: `doctor` with a fix, `report` with a redacted copy.
    ///
    /// Without it, every tool only reads.
    #[arg(long)]
    pub(crate) allow_changes: bool,
}
