use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "gpu-busy",
    title: "the GPU is there, and takes no further program",
    about: "\
The driver refuses a new program on a GPU whose compute mode allows one process (EXCLUSIVE_PROCESS, a habit of
clusters and of MPS) while another holds it, on one in MIG mode without partitions, and for a moment after a program
on it died.

It shows as
  RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable

nvidia-smi shows the compute mode and who is on the GPU. End what holds it, take another GPU, or set the mode back; in
a cluster ask for a GPU of one's own, for the mode is the administrator's.",
    links: &["https://docs.nvidia.com/deploy/mps/index.html"],
    texts: &[
        Text::new("CUDA-capable device(s) is/are busy or unavailable", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        Text::new("all CUDA-capable devices are busy or unavailable", "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"),
    ],
    remedy: |_| {
        vec![
            "nvidia-smi --query-gpu=index,compute_mode,mig.mode.current --format=csv".into(),
            "nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv".into(),
            "# where the machine is one's own:".into(),
            "sudo nvidia-smi --compute-mode=DEFAULT".into(),
        ]
    },
    ..Rule::BLANK
};
