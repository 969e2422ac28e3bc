use super::Waiting;
use clap::Args;
use std::path::PathBuf;

/// What to plan for, and how to show it.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// What to install, as requirements: flash-attn 'mamba-ssm>=2.3'. Default: torch.
    #[arg(value_name = "WANT")]
    pub(crate) wants: Vec<String>,
    /// A model's folder or config.json, whose layers say which kernels they need, a profile.yaml, or a stored profile by its
    /// name.
    #[arg(long = "for", value_name = "DIR|config.json|profile.yaml|PROFILE")]
    pub(crate) purpose: Option<String>,
    /// A plan that was written down, to be held against what would be chosen today, locked or written in other words.
    #[arg(long, value_name = "plan.toml", conflicts_with_all = ["wants", "purpose", "machine", "python", "cuda", "allow_source", "community"])]
    pub(crate) from: Option<PathBuf>,
    /// The machine: this one, or one by its name: gh200, a10, jetson-orin, cpu-x86_64.
    #[arg(long, value_name = "NAME", default_value = "this")]
    pub(crate) machine: String,
    /// Python: 3.12.
    #[arg(long, value_name = "VERSION", value_parser = release)]
    pub(crate) python: Option<(u32, u32)>,
    /// CUDA release of torch's build: 12.8.
    #[arg(long, value_name = "VERSION", value_parser = release)]
    pub(crate) cuda: Option<(u32, u32)>,
    /// Packages that may be built from source where no wheel fits, or all.
    #[arg(long, value_name = "PKG|all", value_delimiter = ',')]
    pub(crate) allow_source: Vec<String>,
    /// Take wheels that one person built as well, not only those of projects and companies.
    #[arg(long)]
    pub(crate) community: bool,
    /// Show every candidate that was refused, with its reason and source.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Ask the indexes, through uv, for every file and its hash, dependencies included: what `apply` needs.
    #[arg(long)]
    pub(crate) lock: bool,
    /// Write the plan in the words of another tool: plan.toml, pyproject.toml, requirements.txt and others.
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["json", "explain"])]
    pub(crate) emit: Option<String>,
    /// The file for --emit. Default: standard output.
    #[arg(short, long, value_name = "FILE", requires = "emit")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// Two numbers: a Python or a CUDA release.
fn release(text: &str) -> Result<(u32, u32), String> {
    let read = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    read.ok_or_else(|| "wanted two numbers, like 3.12".to_owned())
}
