use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "unknown-cuda-error",
    title: "CUDA begins with an error that it has no name for",
    about: "\
cuInit answers with its error 999 where the driver's kernel module is loaded and its second one, nvidia_uvm, does not
serve: after the machine slept, after the driver was updated while programs held it, in a container that has
/dev/nvidia0 but not /dev/nvidia-uvm, or where the user may not open it. nvidia-smi does not need that module and
works.

It shows as one of
  UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment
  failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error

Load the module again once no program uses the GPU; in a container, pass its device file in. A reboot does the same.",
    links: &["https://github.com/pytorch/pytorch/issues/49081"],
    texts: &[
        Text::new("CUDA unknown error - this may be due to an incorrectly set up environment", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero."),
        Text::new("failed call to cuInit: CUDA_ERROR_UNKNOWN", "E tensorflow/stream_executor/cuda/cuda_driver.cc:328] failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error"),
    ],
    remedy: |_| {
        vec![
            "ls -l /dev/nvidia*".into(),
            "sudo fuser --verbose /dev/nvidia-uvm".into(),
            "# once no program uses the GPU:".into(),
            "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm".into(),
        ]
    },
    ..Rule::BLANK
};
