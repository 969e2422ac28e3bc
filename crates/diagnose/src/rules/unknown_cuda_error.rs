use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "unknown-cuda-error",
    title: "CUDA initialization fails with error 999 (unknown error)",
    about: "\
cuInit returns error 999 if the driver's kernel module is loaded but its second module, nvidia_uvm, does not work: after
a suspend, after a driver update while programs used it, in a container with /dev/nvidia0 but without /dev/nvidia-uvm,
or if the user cannot open that file. nvidia-smi does not need nvidia_uvm and works.

It shows as one of
  UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment
  failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error

Reload the module when no program uses the GPU; for a container, pass its device file in. A reboot also reloads it.",
    links: &["https://github.com/pytorch/pytorch/issues/49081"],
    texts: &[
        Text::new("CUDA unknown error - this may be due to an incorrectly set up environment", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."),
        Text::new("failed call to cuInit: CUDA_ERROR_UNKNOWN", "E tensorflow/stream_executor/cuda/cuda_driver.cc:328] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error"),
    ],
    remedy: |_| {
        vec![
            "ls -l /dev/nvidia*".into(),
            "sudo fuser --verbose /dev/nvidia-uvm".into(),
            "# when no program uses the GPU:".into(),
            "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm".into(),
        ]
    },
    ..Rule::BLANK
};
