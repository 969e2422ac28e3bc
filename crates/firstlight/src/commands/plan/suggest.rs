//! Suggestions about a plan: a package whose name resembles a known one, and another source of torch.

use super::REQUIREMENT;
use crate::failure::Failure;
use facts::Fact;
use setup::PlanRequest;
use setup::lock::LockError;

/// A warning for each unknown package whose name resembles that of a known one.
pub(super) fn misspelt(request: &PlanRequest) -> Vec<Fact<String>> {
    // Those of a profile or a model are written by this program.
    let typed = request.wants.iter().filter(|wanted| wanted.want.because == REQUIREMENT);
    let names = typed.map(|wanted| wanted.want.package.as_str());
    let suspected = names.filter_map(|name| Some((name, similar(name)?)));
    let warning = |(name, near): (&str, &str)| {
        let text = format!(
            "`{name}` is planned as it is written, and is not `{near}`: if that was meant, plan `{near}`"
        );
        Fact::new(text, "the tables' names of packages")
    };
    suspected.map(warning).collect()
}

/// The known package whose name an unknown one resembles.
pub(super) fn similar(name: &str) -> Option<&'static str> {
    let known = setup::known_packages();
    diagnose::nearest_name(name, &known).filter(|_| !known.contains(&name))
}

pub(super) fn did_you_mean_package(near: &str) -> String {
    format!("did you mean `{near}`? Otherwise check the spelling of its name there")
}

/// Adds to the error of an index of PyTorch that does not answer how torch comes from PyPI.
pub(super) fn with_torch_of_pypi(
    error: anyhow::Error,
    plan: &facts::InstallPlan,
    request: &PlanRequest,
) -> anyhow::Error {
    let Some(LockError::Unreachable { url, .. }) = error.downcast_ref() else { return error };
    let of_torch = plan.packages.iter().find(|package| package.name == "torch");
    let index = plan.indexes.iter().find(|index| {
        index.explicit
            && url.starts_with(&index.url)
            && of_torch.is_some_and(|torch| torch.index == index.name)
    });
    if index.is_none() {
        return error;
    }
    let other = match setup::cuda_of_torch_on_pypi(request, &plan.target) {
        Some((major, minor)) => {
            format!("`--cuda {major}.{minor}` plans the torch of PyPI, where PyPI can be reached")
        }
        None if plan.target.gpus.is_empty() => {
            "where PyPI can be reached, `python3 -m pip install torch` installs its torch, which runs on the processor too but brings the CUDA libraries".to_owned()
        }
        None => return error,
    };
    let hint = format!(
        "check that this machine can reach that URL (proxies are read from HTTPS_PROXY), then lock again; {other}"
    );
    Failure::hinted(error.to_string(), hint)
}

/// How a plan of these requirements is made for a machine with a GPU.
pub(super) fn other_machine(wants: &[String]) -> String {
    let wants: Vec<String> = wants.iter().map(|want| facts::quote(want).to_string()).collect();
    let wants = wants.join(" ");
    format!(
        "--machine NAME or --compute-capability 8.0 plans for another machine: firstlight plan {wants} --machine a100"
    )
}
