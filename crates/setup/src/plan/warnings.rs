//! Warnings of a plan: doubtful pairs, omitted packages and their replacements, cost of builds.

use super::assemble::fallback;
use super::problem::Problem;
use super::search::Stack;
use super::torch::Torch;
use facts::{Fact, PackageOrigin};
use knowledge::cuda_drivers::minimum_driver;
use knowledge::indexes::Trust;
use knowledge::torch_builds::runs_on;
use knowledge::{dotted, minor_of};

pub(super) fn warnings(problem: &Problem, stack: &Stack, left_out: &[usize]) -> Vec<Fact<String>> {
    let mut all = Vec::new();
    all.extend(doubtful_triton(problem, stack));
    all.extend(excluded(problem));
    all.extend(left_out.iter().map(|item| {
        let item = &problem.items[*item];
        absent(item.name(), "no fitting version was found", &item.want.because)
    }));
    all.extend(builds(problem, stack));
    all.extend(stack.picks.iter().filter_map(|pick| of_trust(problem, pick)));
    all.extend(stack.picks.iter().filter_map(|pick| of_libraries(problem, stack, pick)));
    if let Some(torch) = &stack.torch {
        all.extend(driver(problem, torch));
        all.extend(older_code(problem, torch));
        all.extend(only_ptx(problem, torch));
        all.extend(uploaded_again(torch));
    }
    all
}

/// A triton of another series than torch's was not tested with it (row R0-07).
fn doubtful_triton(problem: &Problem, stack: &Stack) -> Option<Fact<String>> {
    let torch = stack.torch.as_ref()?;
    let is_triton =
        |pick: &&super::extension::SelectedRelease| problem.items[pick.item].name() == "triton";
    let triton = stack.picks.iter().find(is_triton)?;
    if minor_of(&triton.version) == Some(torch.series.triton) {
        return None;
    }
    let text = format!(
        "doubtful pair: torch {} was released with triton {}, and {} is requested",
        torch.release.text,
        dotted(torch.series.triton),
        triton.version
    );
    Some(Fact::new(text, torch.series.source.to_string()))
}

/// Packages that a marker excludes on this platform (rows R1-09, R1-10).
fn excluded<'p>(problem: &'p Problem) -> impl Iterator<Item = Fact<String>> + 'p {
    problem.excluded.iter().map(|wanted| {
        let marker = wanted.marker.as_ref().map_or(String::new(), |marker| marker.to_string());
        let why = format!("it is required only if {marker}");
        absent(&wanted.want.package, &why, &wanted.want.because)
    })
}

/// A package that is not in the plan, and its replacement.
fn absent(name: &str, why: &str, because: &str) -> Fact<String> {
    match fallback(name) {
        Some((lost, instead, source)) => {
            Fact::new(format!("{name} is left out ({why}): instead of {lost}, {instead}"), source)
        }
        None => Fact::new(format!("{name} is left out ({why})"), because),
    }
}

fn builds<'p>(problem: &'p Problem, stack: &'p Stack) -> impl Iterator<Item = Fact<String>> + 'p {
    stack.picks.iter().filter_map(|pick| {
        let PackageOrigin::Build(recipe) = &pick.origin else { return None };
        let item = &problem.items[pick.item];
        if item.package.is_some_and(|row| !row.compiles) {
            return None;
        }
        let job = recipe.job_bytes / 1_000_000_000;
        let text = format!(
            "{} {} is built from source: {} to {} minutes, {job} GB of memory for each job",
            item.name(),
            pick.version,
            recipe.minutes.0,
            recipe.minutes.1
        );
        Some(Fact::new(text, recipe.source.clone()))
    })
}

/// Wheels that were not built by the project.
fn of_trust(problem: &Problem, pick: &super::extension::SelectedRelease) -> Option<Fact<String>> {
    let who = match pick.trust {
        Trust::Registry | Trust::Project => return None,
        Trust::Publisher => "built and served by a company, not by its project",
        Trust::Community => "built by one person",
    };
    let name = problem.items[pick.item].name();
    Some(Fact::new(format!("{name} is a wheel {who}: {}", pick.index.url), pick.source.clone()))
}

/// The driver that a package's CUDA libraries need, if no torch of the plan needs the same.
fn of_libraries(
    problem: &Problem,
    stack: &Stack,
    pick: &super::extension::SelectedRelease,
) -> Option<Fact<String>> {
    if problem.reach.is_some() || stack.torch.as_ref().and_then(Torch::cuda).is_some() {
        return None;
    }
    let release = pick.release?;
    let chosen = pick.files.first()?;
    let wheel = release.files.iter().find(|wheel| wheel.file == *chosen)?;
    let read = wheel.code.as_ref().and_then(|code| code.cuda);
    let cuda = read.or(release.cuda.as_ref().map(|(cuda, _)| *cuda))?;
    let text = format!(
        "{} {} needs CUDA {cuda}, which needs driver {} or newer",
        problem.items[pick.item].name(),
        release.text,
        minimum_driver(cuda)?.driver
    );
    Some(Fact::new(text, pick.source.clone()))
}

/// The driver that this CUDA needs, if the target's driver is not known.
fn driver(problem: &Problem, torch: &Torch) -> Option<Fact<String>> {
    let cuda = torch.cuda().filter(|_| problem.reach.is_none() && !problem.target.tegra)?;
    let row = minimum_driver(cuda.0)?;
    let text = format!("CUDA {} needs driver {} or newer", dotted(cuda), row.driver);
    Some(Fact::new(text, row.source.to_string()))
}

/// A GPU that runs code of an older one of its family: torch's warning about it is benign.
fn older_code(problem: &Problem, torch: &Torch) -> Option<Fact<String>> {
    let build = torch.build?;
    let newest = build.newest();
    let gpu = problem.target.gpus.iter().find(|gpu| gpu.0 == newest.0 && gpu.1 > newest.1)?;
    let text = format!(
        "the GPU ({}) runs this torch's code for {}; torch's warning about it is benign",
        dotted(*gpu),
        dotted(newest)
    );
    Some(Fact::new(text, build.source.to_string()))
}

/// A GPU for which torch has only PTX, which the driver compiles.
fn only_ptx(problem: &Problem, torch: &Torch) -> Option<Fact<String>> {
    let build = torch.build?;
    let ptx = build.ptx?;
    let gpu = problem.target.gpus.iter().find(|gpu| !runs_on(&build.sm, **gpu))?;
    let text = format!(
        "{} has no machine code for compute capability {}, only PTX of {}: a driver that knows such a GPU compiles it at the first launch",
        torch.label(),
        dotted(*gpu),
        dotted(ptx)
    );
    Some(Fact::new(text, build.source.to_string()))
}

/// A release whose files were replaced under the same version: only a hash distinguishes them.
fn uploaded_again(torch: &Torch) -> Option<Fact<String>> {
    let twice = torch.release.files.iter().any(|wheel| wheel.name.build.is_some());
    let text = format!(
        "torch {} was uploaded again with build tags: the name and hash of its file identify it",
        torch.release.text
    );
    twice.then(|| Fact::new(text, torch.release.cited.clone().unwrap_or_default()))
}
