use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "cuda-in-fork",
    title: "a forked process uses CUDA that its parent had initialized",
    about: "\
CUDA cannot be used in a child process that was forked after its parent initialized CUDA: the CUDA context belongs to
the parent. Python before 3.14 forks by default on Linux (DataLoader with workers, multiprocessing, vLLM's engine), so
a single tensor on the GPU before the workers start is enough; so is a library that counts the GPUs at import.

It shows as
  RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the
  'spawn' start method

Spawn the workers instead of forking them (which needs an `if __name__ == '__main__'` guard), or use CUDA only in the
workers.",
    links: &["https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing"],
    texts: &[
        Text::new("Cannot re-initialize CUDA in forked subprocess", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"),
    ],
    remedy: |_| {
        vec![
            "# vLLM:".into(),
            "export VLLM_WORKER_MULTIPROC_METHOD=spawn".into(),
            "# your own program, before anything else:".into(),
            "# torch.multiprocessing.set_start_method('spawn')".into(),
        ]
    },
    ..Rule::BLANK
};
