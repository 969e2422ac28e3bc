//! `Dockerfile`: an image with the plan's environment.

use super::Format;
use crate::emit::head::jobs;
use crate::emit::target::container;
use crate::emit::{EmitError, is_cloned};
use facts::{InstallPlan, PackageOrigin};
use knowledge::cuda_images;
use knowledge::minor_of;
use std::fmt::Write as _;

pub(super) const FORMAT: Format = Format {
    name: "Dockerfile",
    about: "an image with this environment, built from the pyproject.toml next to it.",
    write: |plan| write(plan, "Dockerfile"),
};

/// The image that contains uv's released programs.
const UV_IMAGE: &str = "ghcr.io/astral-sh/uv:0.13.9";

/// The path of the environment in the image.
const ENVIRONMENT: &str = "/opt/venv";

pub(super) fn write(plan: &InstallPlan, format: &'static str) -> Result<String, EmitError> {
    let unfit =
        |reason: String, hint: &str| EmitError::Unfit { format, reason, hint: hint.to_owned() };
    if container(plan).is_none() {
        return Err(unfit(
            format!(
                "containers of these images on {} have no access to the accelerator",
                plan.target.name
            ),
            "use pyproject.toml; on a Jetson start from NVIDIA's l4t images; on a Mac, containers cannot use Metal",
        ));
    }
    let base = base(plan).ok_or_else(|| {
        let cuda = plan.cuda.as_deref().unwrap_or("no CUDA");
        let glibc = plan.target.glibc.as_deref().unwrap_or("2.28");
        unfit(format!("no image is known with {cuda} and glibc {glibc}"), "use pyproject.toml")
    })?;
    let mut text = format!("FROM {base}\n\nCOPY --from={UV_IMAGE} /uv /usr/local/bin/uv\n");
    let _ = writeln!(
        text,
        "RUN apt-get update \\\n    && apt-get install -y --no-install-recommends {} \\\n    && rm -rf /var/lib/apt/lists/*",
        system_packages(plan).join(" ")
    );
    let _ = writeln!(
        text,
        "\n# Copied and not linked: uv's cache is no part of the image.\nENV UV_LINK_MODE=copy UV_NO_CACHE=1 UV_PROJECT_ENVIRONMENT={ENVIRONMENT}\nENV VIRTUAL_ENV={ENVIRONMENT} PATH={ENVIRONMENT}/bin:$PATH"
    );
    if let Some(jobs) = jobs(plan) {
        let _ = writeln!(
            text,
            "\n# Compile jobs at a time: one for each {} GB of memory.\nARG MAX_JOBS=4",
            jobs
        );
    }
    // uv.lock exists after `uv lock`, and then determines every version.
    text += "\nWORKDIR /stack\nCOPY pyproject.toml uv.lock* ./\nRUN uv sync\n\nWORKDIR /workspace\nCMD [\"python\"]\n";
    Ok(text)
}

/// The base image: with nvcc only if something is compiled, since it is several gigabytes larger.
fn base(plan: &InstallPlan) -> Option<String> {
    let glibc = plan.target.glibc.as_deref().and_then(minor_of).unwrap_or((2, 28));
    match plan.cuda.as_deref() {
        Some(cuda) => cuda_images::image(minor_of(cuda)?, glibc, is_built(plan)),
        None => cuda_images::ubuntu(glibc).map(|name| format!("ubuntu:{name}")),
    }
}

fn is_built(plan: &InstallPlan) -> bool {
    plan.packages.iter().any(|package| package.origin != PackageOrigin::Wheel)
}

/// Ubuntu packages needed for installing.
fn system_packages(plan: &InstallPlan) -> Vec<&'static str> {
    let mut packages = vec!["ca-certificates"];
    if is_built(plan) {
        packages.push("build-essential");
    }
    if plan.packages.iter().any(is_cloned) {
        packages.push("git");
    }
    packages
}
