//! The builds of torch for a machine, best first, and why a build does not fit.

use super::Reason;
use super::catalogue::Release;
use super::problem::{IgnoredLimits, Limit, Problem};
use facts::CompactSort;
use facts::PlanIndex;
use knowledge::cuda_drivers::{floor, preference};
use knowledge::indexes::index;
use knowledge::torch_builds::{Build, builds};
use knowledge::torch_series::{self, Series};
use knowledge::{Minor, Sm, dotted, minor_of};

/// One build of one release.
#[derive(Debug, Clone, Copy)]
pub(super) struct Torch<'p> {
    pub(super) release: &'p Release,
    pub(super) series: &'static Series,
    /// Its CUDA build; `None` on the processor or with Metal.
    pub(super) build: Option<&'static Build>,
}

impl Torch<'_> {
    pub(super) fn cuda(&self) -> Option<Minor> {
        self.build.map(|build| build.cuda)
    }

    /// `torch 2.10.0 cu128`.
    pub(super) fn label(&self) -> String {
        match self.cuda() {
            Some(cuda) => format!("torch {} cu{}{}", self.release.text, cuda.0, cuda.1),
            None => format!("torch {}", self.release.text),
        }
    }

    /// Its index. If PyPI has exactly this build, it comes from there, with known hashes; every other build comes from
    /// an index that serves only torch.
    pub(super) fn index(&self, problem: &Problem) -> PlanIndex {
        let Some(cuda) = self.cuda() else {
            return if problem.mac() { pypi() } else { explicit("pytorch-cpu", "pytorch-cpu", "") };
        };
        if self.on_pypi(problem) == Some(cuda) {
            return pypi();
        }
        let digits = format!("{}{}", cuda.0, cuda.1);
        explicit("pytorch", &format!("pytorch-cu{digits}"), &digits)
    }

    /// The version with the local label of its index.
    pub(super) fn version(&self, problem: &Problem) -> String {
        let label = match (self.index(problem).name.as_str(), self.cuda()) {
            ("pypi", _) => String::new(),
            (_, Some(cuda)) => format!("+cu{}{}", cuda.0, cuda.1),
            (_, None) => "+cpu".to_owned(),
        };
        format!("{}{label}", self.release.text)
    }

    /// The CUDA release of PyPI's own build for this platform, from the runtime it requires.
    fn on_pypi(&self, problem: &Problem) -> Option<Minor> {
        let platform = problem.platform(self.series.python.1);
        let runtime = self.release.requires.iter().find(|requires| {
            matches!(requires.name.as_str(), "nvidia-cuda-runtime-cu12" | "cuda-toolkit")
                && requires.marker.as_ref().is_none_or(|marker| marker.holds(platform))
        })?;
        let pinned = runtime.specifiers.iter().next()?;
        minor_of(&pinned.version().to_string())
    }
}

/// The default index.
pub(super) fn pypi() -> PlanIndex {
    let row = index("pypi");
    PlanIndex { name: row.name.clone(), url: row.url.clone(), explicit: false, flat: false }
}

fn explicit(row: &str, name: &str, digits: &str) -> PlanIndex {
    let url = index(row).url.replace("{digits}", digits);
    PlanIndex { name: name.to_owned(), url, explicit: true, flat: false }
}

/// Every build for the machine's platform, newest torch first, and for one torch the CUDA release that fits the driver
/// best first.
pub(super) fn candidates<'p>(problem: &'p Problem) -> Vec<Torch<'p>> {
    let Some(item) = problem.torch else { return Vec::new() };
    let mut all = Vec::new();
    for release in &problem.items[item].releases {
        let series = minor_of(&release.text).and_then(torch_series::series);
        let Some(series) = series else { continue };
        if !problem.has_gpu() {
            all.push(Torch { release, series, build: None });
            continue;
        }
        let mut fitting: Vec<&Build> = builds()
            .iter()
            .filter(|build| build.offered && build.torch.contains(&series.torch))
            .filter(|build| Some(build.arch) == problem.arch)
            .collect();
        fitting.compact_sort_by_key(|build| preference(build.cuda, problem.reach));
        all.extend(fitting.into_iter().map(|build| Torch { release, series, build: Some(build) }));
    }
    all
}

/// Whether a build fits this machine, independent of the other requirements.
pub(super) fn fits(
    problem: &Problem,
    torch: &Torch,
    dropped: &IgnoredLimits,
) -> Result<(), Reason> {
    if let Some(item) = problem.torch.filter(|item| !dropped.contains(&Limit::Versions(*item))) {
        let item = &problem.items[item];
        if !item.specifiers.contains(&torch.release.version) {
            let text = format!("{} was asked for", item.requirement());
            return Err(Reason::new(text, &item.want.because));
        }
    }
    let Some(build) = torch.build else { return Ok(()) };
    if let Some(cuda) = problem.cuda.filter(|_| !dropped.contains(&Limit::Cuda))
        && cuda != build.cuda
    {
        return Err(Reason::new(format!("CUDA {} was requested", dotted(cuda)), "request"));
    }
    if let Some(reach) = problem.reach.filter(|_| !dropped.contains(&Limit::Driver))
        && build.cuda.0 > reach.major
    {
        let needs = floor(build.cuda.0);
        let text = format!(
            "CUDA {} needs driver {} or newer, this one is {}",
            build.cuda.0,
            needs.map_or("?", |row| row.driver.as_str()),
            driver(problem),
        );
        return Err(Reason::new(text, needs.map_or(String::new(), |row| row.source.to_string())));
    }
    if dropped.contains(&Limit::Gpu) {
        return Ok(());
    }
    match problem.target.gpus.iter().find(|gpu| !runs(problem, build, **gpu)) {
        None => Ok(()),
        Some(gpu) => {
            let text = format!(
                "it has no code for compute capability {}: {}",
                dotted(*gpu),
                build.architectures()
            );
            Err(Reason::new(text, build.source.to_string()))
        }
    }
}

fn runs(problem: &Problem, build: &Build, gpu: Sm) -> bool {
    // On Tegra, machine code runs only on its own architecture.
    if problem.target.tegra { build.sm.contains(&gpu) } else { build.runs_on(gpu) }
}

/// The known driver facts, as text.
pub(super) fn driver(problem: &Problem) -> String {
    match (&problem.target.driver, problem.target.cuda_limit) {
        (Some(version), Some(limit)) => format!("{version} with CUDA {}", dotted(limit)),
        (Some(version), None) => version.clone(),
        (None, Some(limit)) => format!("one of CUDA {}", dotted(limit)),
        (None, None) => "not known".to_owned(),
    }
}
