//! Arguments of `remote`.

use super::seconds;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Remote {
    /// The machine: a name from ~/.ssh/config, or user@host:port.
    #[arg(value_name = "HOST")]
    pub(crate) host: String,
    /// A firstlight command to run there. Without one: lists the runs that only that machine has.
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<String>,
    /// Working folder there; relative to the home folder.
    #[arg(long, value_name = "DIR", default_value = "firstlight-remote")]
    pub(crate) at: String,
    /// A firstlight binary for that machine, if its system or processor differs from this one.
    #[arg(long, value_name = "FILE", requires = "command")]
    pub(crate) binary: Option<PathBuf>,
    /// A file that the command needs, such as a plan. Repeat it for several.
    #[arg(long, value_name = "FILE", requires = "command")]
    pub(crate) send: Vec<PathBuf>,
    /// Without a command: fetch the runs that are missing here.
    #[arg(long, conflicts_with = "command")]
    pub(crate) fetch: bool,
    /// Local folder for fetched runs.
    #[arg(short, long, value_name = "DIR", default_value = "firstlight-runs")]
    pub(crate) output: PathBuf,
    /// Show what would be copied, run and fetched, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before copying and running.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Time limit of the command; it is stopped after this.
    #[arg(long = "timeout", alias = "limit", value_name = "SECONDS", default_value_t = 3600.0, value_parser = seconds)]
    pub(crate) limit: f64,
    /// Time limit for a reply of the connection.
    #[arg(long = "connect-timeout", alias = "wait", value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub(crate) wait: f64,
}
