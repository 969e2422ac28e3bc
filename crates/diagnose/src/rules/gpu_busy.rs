use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "gpu-busy",
    title: "the GPU accepts no further process",
    about: "\
The driver refuses a new process on a GPU in compute mode EXCLUSIVE_PROCESS (common on clusters and with MPS) while
another process uses it, on a GPU in MIG mode without partitions, and for a moment after a process on it crashed.

It shows as
  RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable

nvidia-smi shows the compute mode and the processes on the GPU. End the other process, use another GPU, or reset the
mode. On a cluster the administrator sets the mode: request a GPU from the scheduler instead.",
    links: &["https://docs.nvidia.com/deploy/mps/index.html"],
    texts: &[
        Text::new("CUDA-capable device(s) is/are busy or unavailable", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        Text::new("all CUDA-capable devices are busy or unavailable", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"),
    ],
    remedy: |_| {
        vec![
            "nvidia-smi --query-gpu=index,compute_mode,mig.mode.current --format=csv".into(),
            "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv".into(),
            "# only on a machine that you administer:".into(),
            "sudo nvidia-smi --compute-mode=DEFAULT".into(),
        ]
    },
    ..Rule::BLANK
};
