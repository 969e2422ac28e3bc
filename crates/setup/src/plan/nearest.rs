//! Finds plans that would work if one part of the request were different.

use super::problem::{IgnoredLimits, Problem};
use super::search::{Stack, solve};
use super::torch::Torch;
use crate::PlanRequest;
use facts::{NearestPlan, PlanTarget};
use knowledge::cuda_drivers::branch;
use knowledge::indexes::index;
use knowledge::jetson;
use knowledge::recipes::recipe;
use knowledge::{cuda_drivers, dotted};

/// Maximum number of suggestions.
const SHOWN: usize = 5;

/// Changes that lead to a plan, the smallest concession first.
pub(super) fn nearest(request: &PlanRequest, target: &PlanTarget) -> Vec<NearestPlan> {
    let mut found = Vec::new();
    for (change, request, target) in changes(request, target) {
        if found.len() == SHOWN {
            break;
        }
        let problem = Problem::of(&request, &target);
        if let (Some(stack), _) = solve(&problem, &IgnoredLimits::new(), &problem.optional()) {
            found.push(NearestPlan { change, stack: words(&problem, &stack) });
        }
    }
    found.extend(of_jetson(target).filter(|_| found.len() < SHOWN));
    found
}

/// The newest torch that NVIDIA built for a Jetson's GPU.
fn of_jetson(target: &PlanTarget) -> Option<NearestPlan> {
    let runs = |row: &&jetson::JetsonTorchBuild| target.gpus.iter().all(|gpu| row.sm.contains(gpu));
    let row = jetson::torch().iter().rfind(runs).filter(|_| target.tegra)?;
    let (python, url) = (dotted(row.python), &index("jetson").url);
    Some(NearestPlan {
        change: format!(
            "use NVIDIA's build: uv pip install --python {python} torch=={} --index-url {url}",
            row.version
        ),
        stack: format!(
            "Python {python}, torch {} of CUDA {}; its requirements are resolved by that index, not by this plan",
            row.version,
            dotted(row.cuda)
        ),
    })
}

/// Each change as an instruction, with the resulting request and machine.
fn changes(request: &PlanRequest, target: &PlanTarget) -> Vec<(String, PlanRequest, PlanTarget)> {
    let mut all: Vec<(String, PlanRequest, PlanTarget)> = Vec::new();
    let mut add =
        |change: String, changed: PlanRequest| all.push((change, changed, target.clone()));
    if let Some(cuda) = request.cuda {
        let changed = PlanRequest { cuda: None, ..request.clone() };
        add(format!("allow any CUDA release, not only {}", dotted(cuda)), changed);
    }
    if let Some(python) = request.python {
        let changed = PlanRequest { python: None, ..request.clone() };
        add(format!("allow any Python, not only {}", dotted(python)), changed);
    }
    if !request.community {
        let changed = PlanRequest { community: true, ..request.clone() };
        add("allow wheels built by one person (--community)".to_owned(), changed);
    }
    for (at, wanted) in request.wants.iter().enumerate() {
        let name = &wanted.want.package;
        if recipe(name).is_some() && !wanted.want.source_build {
            let mut changed = request.clone();
            changed.wants[at].want.source_build = true;
            add(format!("build {name} from source (--allow-source {name})"), changed);
        }
    }
    for (at, wanted) in request.wants.iter().enumerate() {
        let (name, specifiers) = (&wanted.want.package, &wanted.want.specifiers);
        if !specifiers.is_empty() {
            let mut changed = request.clone();
            changed.wants[at].want.specifiers.clear();
            add(format!("allow any {name}, not only {specifiers}"), changed);
        }
    }
    if let Some(newest) = cuda_drivers::minimum_drivers().last().filter(|_| target.driver.is_some())
    {
        let updated = PlanTarget { driver: None, cuda_limit: None, ..target.clone() };
        let change = format!("update the driver to {} or newer", branch((newest.cuda, 0)));
        all.push((change, request.clone(), updated));
    }
    let mut names: Vec<&str> = Vec::new();
    for wanted in &request.wants {
        let name = wanted.want.package.as_str();
        if names.contains(&name) {
            continue;
        }
        names.push(name);
        let mut changed = request.clone();
        // All requirements for it: the others would still ask for it.
        changed.wants.retain(|other| other.want.package != name);
        if !changed.wants.is_empty() {
            all.push((format!("leave out {name}"), changed, target.clone()));
        }
    }
    all
}

/// `Python 3.12, torch 2.10.0 cu128, flash-attn 2.8.3`.
fn words(problem: &Problem, stack: &Stack) -> String {
    let mut words = vec![format!("Python {}", dotted(stack.python))];
    words.extend(stack.torch.as_ref().map(Torch::label));
    for pick in stack.picks.iter().filter(|pick| Some(pick.item) != problem.torch) {
        let Some(release) = pick.release else { continue };
        let built = if pick.is_build() { " from source" } else { "" };
        words.push(format!("{} {}{built}", problem.items[pick.item].name(), release.text));
    }
    words.join(", ")
}
