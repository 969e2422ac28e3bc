use super::{Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "jetson-missing-library",
    title: "torch for Jetson lacks a library that JetPack does not bring",
    about: "\
Wheels of torch for Jetson take the CUDA libraries from JetPack instead of bringing them. Newer ones also want libraries
that JetPack does not have: cuDSS from torch 2.7 on, cuSPARSELt from 2.4 on. They are packages of their own.

It shows as
  ImportError: libcudss.so.0: cannot open shared object file: No such file or directory

Install the library for aarch64-jetson from NVIDIA, or from the index that the wheel came from, and let the loader find
it.",
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
