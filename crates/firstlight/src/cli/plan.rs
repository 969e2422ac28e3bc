use super::DriverTimeout;
use clap::Args;
use setup::Arch;
use std::path::PathBuf;

/// The machine that a command is about.
#[derive(Debug, Clone, Args)]
pub(crate) struct MachineChoice {
    /// Another machine by name: a100, l4, t4, rtx3090, gh200, thor, cpu-x86_64.
    #[arg(long, value_name = "NAME", default_value = "this")]
    pub(crate) machine: String,
    /// Any Linux machine with an NVIDIA GPU of this compute capability, such as 8.0.
    #[arg(long = "compute-capability", alias = "gpu", value_name = "X.Y", value_parser = capability, conflicts_with = "machine")]
    pub(crate) gpu: Option<(u32, u32)>,
    /// Processor of that machine, with --compute-capability.
    #[arg(long, value_name = "x86_64|aarch64", value_parser = processor, requires = "gpu", default_value = "x86_64")]
    pub(crate) arch: Arch,
    /// NVIDIA driver of that machine, such as 550.54.14: it limits the CUDA release.
    #[arg(long, value_name = "VERSION", value_parser = driver)]
    pub(crate) driver: Option<String>,
}

impl MachineChoice {
    /// Whether it is the local machine.
    pub(crate) fn is_this(&self) -> bool {
        self.machine == "this" && self.gpu.is_none()
    }
}

/// Major and minor compute capability, as in NVIDIA's table of GPUs.
fn capability(text: &str) -> Result<(u32, u32), String> {
    two_numbers(text).ok_or_else(|| "expected a compute capability such as 8.0".to_owned())
}

fn processor(text: &str) -> Result<Arch, String> {
    Arch::parse(text).ok_or_else(|| "expected x86_64 or aarch64".to_owned())
}

/// A driver version, as in nvidia-smi.
fn driver(text: &str) -> Result<String, String> {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let branch = text.split('.').next().unwrap_or_default();
    match text.split('.').all(number) {
        true if branch.len() > 3 => {
            Err("NVIDIA's driver branches have three digits, as in 550.54.14".to_owned())
        }
        true => Ok(text.to_owned()),
        false => Err("expected a driver version such as 550.54.14".to_owned()),
    }
}

/// The requirements of a plan, and its output.
#[derive(Debug, Args)]
pub(crate) struct Plan {
    /// Requirements in pip's syntax: flash-attn 'mamba-ssm>=2.3'. Default: torch.
    #[arg(value_name = "WANT")]
    pub(crate) wants: Vec<String>,
    /// Plan for the layers of a model (its folder or config.json), or for a profile (a profile.yaml, or the name of a
    /// stored one).
    #[arg(long = "for", value_name = "DIR|config.json|profile.yaml|PROFILE")]
    pub(crate) purpose: Option<String>,
    /// Read a written plan: compare it with a current one, lock it, or write it in another format.
    #[arg(long, value_name = "plan.toml", conflicts_with_all = ["wants", "purpose", "machine", "gpu", "driver", "python", "cuda", "allow_source", "community"])]
    pub(crate) from: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) machine: MachineChoice,
    /// Show what works on which platform, with reasons, instead of a plan; --explain adds source and date.
    #[arg(long, conflicts_with_all = ["wants", "purpose", "from", "python", "cuda", "allow_source", "community", "lock", "emit"])]
    pub(crate) matrix: bool,
    /// Python release, such as 3.12.
    #[arg(long, value_name = "VERSION", value_parser = release)]
    pub(crate) python: Option<(u32, u32)>,
    /// CUDA release of torch's build, such as 12.8.
    #[arg(long, value_name = "VERSION", value_parser = cuda)]
    pub(crate) cuda: Option<(u32, u32)>,
    /// Packages that may be built from source if no wheel fits, or `all`.
    #[arg(long, value_name = "PKG|all", value_delimiter = ',')]
    pub(crate) allow_source: Vec<String>,
    /// Also accept wheels built by individuals, not only by projects and companies.
    #[arg(long)]
    pub(crate) community: bool,
    /// Show every rejected candidate with its reason and source.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Query the package indexes, through uv, for every file and its hash. `apply` needs this.
    #[arg(long)]
    pub(crate) lock: bool,
    /// Write the plan as plan.toml, pyproject.toml, requirements.txt, and others.
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["json", "explain"])]
    pub(crate) emit: Option<String>,
    /// File for --emit. Default: standard output.
    #[arg(short, long, value_name = "FILE", requires = "emit")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: DriverTimeout,
}

/// A Python release.
fn release(text: &str) -> Result<(u32, u32), String> {
    two_numbers(text).ok_or_else(|| "expected a Python release such as 3.12".to_owned())
}

/// A CUDA release.
fn cuda(text: &str) -> Result<(u32, u32), String> {
    two_numbers(text).ok_or_else(|| "expected a CUDA release such as 12.8".to_owned())
}

fn two_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
