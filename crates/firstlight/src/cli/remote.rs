//! Arguments of `remote`.

use super::seconds;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct Remote {
    /// The machine, as ssh knows it: a name of ~/.ssh/config, or user@host:port.
    #[arg(value_name = "HOST")]
    pub(crate) host: String,
    /// A command of firstlight and its arguments, run there. Without one: what lies there and what a stop would lose.
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<String>,
    /// Folder there in which firstlight works. A relative one lies in the home folder.
    #[arg(long, value_name = "DIR", default_value = "firstlight-remote")]
    pub(crate) at: String,
    /// firstlight built for the machine, where that is another system or processor than this one.
    #[arg(long, value_name = "FILE", requires = "command")]
    pub(crate) binary: Option<PathBuf>,
    /// A file that the command needs, such as a plan: it goes into that folder under its own name.
    #[arg(long, value_name = "FILE", requires = "command")]
    pub(crate) send: Vec<PathBuf>,
    /// Without a command: fetch the run folders that are not here yet.
    #[arg(long, conflicts_with = "command")]
    pub(crate) fetch: bool,
    /// Folder here into which run folders are fetched.
    #[arg(short, long, value_name = "DIR", default_value = "firstlight-runs")]
    pub(crate) output: PathBuf,
    /// Show what would be copied, run and fetched; change nothing there or here.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask before something is copied and run.
    #[arg(long)]
    pub(crate) yes: bool,
    /// Longest time that the command may take there; then it is ended.
    #[arg(long, value_name = "SECONDS", default_value_t = 3600.0, value_parser = seconds)]
    pub(crate) limit: f64,
    /// Longest silence of the connection: without an answer, or a byte of a copy.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = seconds)]
    pub(crate) wait: f64,
}
