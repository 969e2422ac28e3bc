use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "jetson-missing-library",
    title: "torch for Jetson needs a library that JetPack does not include",
    about: "\
torch wheels for Jetson use JetPack's CUDA libraries instead of bundling them. Newer wheels also need libraries that
JetPack does not include and that are separate packages: cuSPARSELt from torch 2.4 on, cuDSS from 2.7 on.

It shows as
  ImportError: libcudss.so.0: cannot open shared object file: No such file or directory

Install the library for aarch64-jetson from NVIDIA, or from the index that the wheel came from, and update the loader's
cache with ldconfig.",
    links: &[
        "https://developer.nvidia.com/cudss-downloads",
        "https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/index.html",
    ],
    texts: &[Text::new("libcudss.so.{major}: cannot open shared object file", "ImportError: libcudss.so.0: cannot open shared object file: No such file or directory")],
    remedy: |_| {
        vec![
            "# with NVIDIA's package repository for aarch64-jetson (https://developer.nvidia.com/cudss-downloads):".into(),
            "sudo apt-get install --yes cudss".into(),
            "sudo ldconfig".into(),
            "ldconfig -p | grep libcudss".into(),
        ]
    },
    ..Rule::BLANK
};
