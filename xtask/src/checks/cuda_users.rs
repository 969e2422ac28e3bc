//! Only listed paths use CUDA's driver layer; other crates reach GPUs through the backend interface.

use super::{Check, Problem};
use crate::layout::Layout;
use crate::rust_source::{code_only, used_paths};

/// Paths that may use it: the layer itself, the backend, and the executor of models on NVIDIA GPUs with its tests.
const USERS: &[&str] = &[
    "crates/device/",
    "crates/ops-cuda/",
    "crates/models/src/cuda",
    "crates/models/tests/stand_in/",
];

pub(super) const CHECK: Check = Check {
    name: "cuda_users",
    promise: "only device, ops-cuda and the CUDA executor of models name `device::cuda`",
    hint: "use `Device`, `Queue` or `Backend`, or let `ops-cuda` offer what is needed",
    find,
};

fn find(layout: &Layout) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in layout.texts(&[".rs"]) {
        if !path.starts_with("crates/") || USERS.iter().any(|user| path.starts_with(user)) {
            continue;
        }
        for used in used_paths(&code_only(text)) {
            if used.names.starts_with(&["device".to_owned(), "cuda".to_owned()]) {
                let what = format!("names `{}`", used.names.join("::"));
                problems.push(Problem::line(path, used.line, what));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;

    #[test]
    fn the_backend_and_its_executor_may_name_it() {
        let files = [
            ("crates/device/src/cuda/stream.rs", "use device::cuda::Cuda;\n"),
            ("crates/ops-cuda/src/plan.rs", "use device::cuda::Stream;\n"),
            ("crates/models/src/cuda.rs", "use device::cuda::Stream;\n"),
            ("crates/models/src/engine.rs", "// device::cuda::Stream\nuse device::Device;\n"),
        ];
        check(&CHECK, &Layout::of(&files), &[]);
    }

    #[test]
    fn other_files_fail() {
        let files = [
            ("crates/bench/src/a.rs", "\nuse device::{Device, cuda::Stream};\n"),
            ("crates/ops/src/tensor.rs", "fn f(stream: &device::cuda::Stream) {}\n"),
            ("crates/verify/tests/a.rs", "use device::cuda;\n"),
        ];
        check(
            &CHECK,
            &Layout::of(&files),
            &[
                "crates/bench/src/a.rs:2: names `device::cuda::Stream`",
                "crates/ops/src/tensor.rs:1: names `device::cuda::Stream`",
                "crates/verify/tests/a.rs:1: names `device::cuda`",
            ],
        );
    }
}
