//! `Dockerfile.arm64-cuda`: the same for 64-bit Arm servers, next to a Dockerfile for x86-64.

use super::{Format, dockerfile};
use crate::emit::EmitError;
use crate::emit::target::container;

pub(super) const FORMAT: Format = Format {
    name: "Dockerfile.arm64-cuda",
    about: "an image with this environment for Arm servers with CUDA; `make docker-build-arm64-cuda` builds it.",
    write: |plan| {
        if container(plan) != Some("arm64-cuda") {
            return Err(EmitError::Unfit {
                format: FORMAT.name,
                reason: format!("{} is not a 64-bit Arm server with CUDA", plan.target.name),
                hint: "use Dockerfile, or a plan for gh200, gb200 or gb10".to_owned(),
            });
        }
        dockerfile::write(plan, FORMAT.name)
    },
};
