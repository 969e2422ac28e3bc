use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "cuda-in-fork",
    title: "a forked process uses CUDA that its parent had begun",
    about: "\
A process that has used CUDA cannot be copied by fork: the copy shares handles that only the first process may use.
Python forks by default on Linux (DataLoader with workers, multiprocessing, vLLM's engine), so a single tensor on the
GPU before the workers start is enough; so is a library that asks for the number of GPUs while it is imported.

It shows as
  RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the
  'spawn' start method

Start workers anew instead of forking them, and guard the start of the program by its `__name__`, which the new
process needs; or touch CUDA only in the workers.",
    links: &["https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing"],
    texts: &[
        Text::new("Cannot re-initialize CUDA in forked subprocess", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"),
    ],
    remedy: |_| {
        vec![
            "# vLLM:".into(),
            "export VLLM_WORKER_MULTIPROC_METHOD=spawn".into(),
            "# one's own program, before anything else:".into(),
            "# torch.multiprocessing.set_start_method('spawn')".into(),
        ]
    },
    ..Rule::BLANK
};
