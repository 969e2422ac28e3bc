//! Checks the CUDA libraries inside a wheel against the plan's torch, driver and GPUs.

use super::Reason;
use super::catalogue::{Release, Wheel};
use super::extension::SelectionContext;
use super::problem::Limit;
use super::torch::{Torch, driver};
use facts::Dist;
use knowledge::{Requirement, dotted};

impl SelectionContext<'_, '_> {
    /// Why the libraries of a wheel do not run here: they need another CUDA than torch's, or than the requested one, or
    /// a newer driver, or have no code for a GPU.
    pub(super) fn unfit(&self, number: usize, release: &Release, wheel: &Wheel) -> Option<Reason> {
        let label = format!("{} {}", self.problem.items[number].name(), release.text);
        let source = release.cited.clone().unwrap_or_default();
        let code = wheel.code.as_ref();
        let read = code
            .and_then(|code| code.cuda)
            .map(|cuda| (cuda, format!("the libraries of {label} need CUDA {cuda}")));
        // torch's build determines its CUDA, whatever PyPI's build of the release requires.
        let named = release.cuda.as_ref().filter(|_| self.problem.torch != Some(number));
        let named = named.map(|(cuda, line)| {
            (*cuda, format!("{label} requires {line}, which needs CUDA {cuda}"))
        });
        if let Some((cuda, needs)) = read.or(named) {
            let torch = self.torch.and_then(Torch::cuda);
            if let Some(torch) = torch.filter(|_| self.holds(Limit::Pins(number)))
                && torch.0 != cuda
            {
                let text = format!("{needs}, and this torch is built for CUDA {}", dotted(torch));
                return Some(Reason::new(text, source));
            }
            if let Some(asked) = self.problem.cuda.filter(|_| self.holds(Limit::Cuda))
                && asked.0 != cuda
            {
                let text = format!("{needs}, and CUDA {} was requested", dotted(asked));
                return Some(Reason::new(text, source));
            }
            if let Some(reach) = self.problem.reach.filter(|_| self.holds(Limit::Driver))
                && cuda > reach.major
            {
                let text = format!("{needs}, and the driver is {}", driver(self.problem));
                return Some(Reason::new(text, source));
            }
        }
        let code = code?;
        if !self.holds(Limit::Gpu) {
            return None;
        }
        let (mut gpus, tegra) = (self.problem.target.gpus.iter(), self.problem.target.tegra);
        let gpu = gpus.find(|gpu| !code.runs_on(**gpu, tegra))?;
        let text = format!(
            "{label} has no code for compute capability {}: {}",
            dotted(*gpu),
            code.words()
        );
        Some(Reason::new(text, source))
    }
}

/// The CUDA major version in requirements, and the requirement: an extra (`nvidia-cutlass-dsl[cu13]`), a package name
/// (`nvidia-cublas-cu12`), or the version of a CUDA package (`cuda-toolkit==13.0`).
pub(super) fn cuda_of(requires: &[String]) -> Option<(u32, String)> {
    let mut found: Option<(u32, String)> = None;
    for line in requires {
        // A requirement for some machines says nothing about the others.
        let Some(read) = Requirement::parse(line).filter(|read| read.marker.is_empty()) else {
            continue;
        };
        let name = Dist::normalise(&read.name);
        let extra = read.extras.iter().find_map(|extra| major_of_tag(extra));
        let suffix = name.rsplit_once('-').and_then(|(_, last)| major_of_tag(last));
        let version = || {
            matches!(name.as_str(), "cuda-toolkit" | "nvidia-cuda-runtime")
                .then(|| pinned_major(&read.constraint()))
                .flatten()
        };
        if let Some(cuda) = extra.or(suffix).or_else(version)
            && found.as_ref().is_none_or(|(newest, _)| cuda > *newest)
        {
            found = Some((cuda, line.clone()));
        }
    }
    found
}

/// The major version in `cu13` or `cu126`.
fn major_of_tag(tag: &str) -> Option<u32> {
    let digits = tag.strip_prefix("cu").filter(|digits| matches!(digits.len(), 2 | 3))?;
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits[..2].parse().ok())?
}

/// The major version that an exact requirement pins: 13 for `==13.0.*`.
fn pinned_major(constraint: &str) -> Option<u32> {
    let version = constraint.trim().strip_prefix("==")?;
    version.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_name_their_cuda() {
        let check = |lines: &[&str], expect: Option<u32>| {
            let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
            assert_eq!(cuda_of(&lines).map(|found| found.0), expect, "{lines:?}");
        };
        check(&["torch==2.14.1", "nvidia-cutlass-dsl[cu13]==4.8.0"], Some(13));
        check(&["nvidia-cublas-cu12>=12.6"], Some(12));
        check(&["cuda-toolkit[cublas]==13.0.3"], Some(13));
        check(&["nvidia-nccl-cu12", "nvshmem4py-cu13"], Some(13));
        check(&["cuda-toolkit==13.0.3; platform_machine == 'aarch64'"], None);
        check(&["nvidia-ml-py", "cupy", "scikit-cuda", "cuda-python>=12"], None);
    }
}
