//! `Makefile`: the environment, and its image if the machine supports one.

use super::Format;
use crate::emit::target::container;
use facts::InstallPlan;
use std::fmt::Write as _;

pub(super) const FORMAT: Format = Format {
    name: "Makefile",
    about: "`make setup-dev` creates the environment; docker-build, -run and -clean are for its image.",
    write: |plan| Ok(write(plan)),
};

fn write(plan: &InstallPlan) -> String {
    let suffix = container(plan);
    let mut targets = vec!["setup-dev".to_owned()];
    if let Some(suffix) = suffix {
        targets.extend(["build", "run", "clean"].map(|verb| format!("docker-{verb}-{suffix}")));
    }
    let mut text = format!(
        "UV ?= uv\nDOCKER ?= docker\nIMAGE ?= accelerator-stack\n\n.PHONY: {}\n\n",
        targets.join(" ")
    );
    text += "setup-dev: pyproject.toml\n";
    text += "\t@command -v $(UV) >/dev/null || { echo \"$(UV) is not on PATH: python3 -m pip install --user uv\" >&2; exit 1; }\n";
    text += "\t$(UV) sync\n\n";
    text += "pyproject.toml:\n\t@echo \"no pyproject.toml here: firstlight plan --emit pyproject.toml -o pyproject.toml\" >&2; exit 1\n";
    if let Some(suffix) = suffix {
        write_docker(&mut text, suffix);
    }
    text
}

fn write_docker(text: &mut String, suffix: &str) {
    let (platform, file) = match suffix {
        "arm64-cuda" => ("linux/arm64", "Dockerfile.arm64-cuda"),
        "arm64-cpu" => ("linux/arm64", "Dockerfile"),
        _ => ("linux/amd64", "Dockerfile"),
    };
    // Without this, a DataLoader's workers and NCCL run out of shared memory.
    let gpus = if suffix.ends_with("cuda") { " --gpus all --ipc=host" } else { " --ipc=host" };
    let _ = write!(
        text,
        "
docker-build-{suffix}: {file} pyproject.toml
\t$(DOCKER) build --platform {platform} --file {file} --tag $(IMAGE):{suffix} .

docker-run-{suffix}:
\t$(DOCKER) run --rm --interactive --tty --platform {platform}{gpus} --volume \"$(CURDIR)\":/workspace $(IMAGE):{suffix}

docker-clean-{suffix}:
\t-$(DOCKER) image rm $(IMAGE):{suffix}
"
    );
}
