use super::{Rule, Text};
use crate::torch_build::installed;
pub(super) const RULE: Rule = Rule {
    id: "missing-cuda-library",
    title: "a CUDA library that a package loads is not there",
    about: "\
A compiled file asks the dynamic loader for a CUDA library by name, and none of the places it looks in has it. torch's
wheels bring these libraries as packages named nvidia-...; one of them was removed, not installed (--no-deps), or is
of another major version than the file asks for.

It shows as
  ImportError: libcublas.so.12: cannot open shared object file: No such file or directory
with the number of the major version that is asked for. (libcuda.so.1 is the driver's own, and another matter.)

Seen by looking each needed name (DT_NEEDED) up where the loader would: RPATH, LD_LIBRARY_PATH, RUNPATH, the system.

Install the package that brings the library, or torch again with its dependencies.",
    links: &[
        "https://github.com/vllm-project/vllm/issues/36099",
        "https://github.com/vllm-project/vllm/issues/52300",
    ],
    texts: &[
        Text {
            pattern: "libcublas.so.{major}: cannot open shared object file",
            sample: "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcublasLt.so.{major}: cannot open shared object file",
            sample: "ImportError: libcublasLt.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcudnn.so.{major}: cannot open shared object file",
            sample: "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcufft.so.{major}: cannot open shared object file",
            sample: "ImportError: libcufft.so.11: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcurand.so.{major}: cannot open shared object file",
            sample: "ImportError: libcurand.so.10: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcusparse.so.{major}: cannot open shared object file",
            sample: "ImportError: libcusparse.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcusolver.so.{major}: cannot open shared object file",
            sample: "ImportError: libcusolver.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libnccl.so.{major}: cannot open shared object file",
            sample: "ImportError: libnccl.so.2: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libnvrtc.so.{major}: cannot open shared object file",
            sample: "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libnvJitLink.so.{major}: cannot open shared object file",
            sample: "ImportError: libnvJitLink.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcupti.so.{major}: cannot open shared object file",
            sample: "ImportError: libcupti.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcusparseLt.so.{major}: cannot open shared object file",
            sample: "ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libcufile.so.{major}: cannot open shared object file",
            sample: "ImportError: libcufile.so.12: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "libnvToolsExt.so.{major}: cannot open shared object file",
            sample: "ImportError: libnvToolsExt.so.1: cannot open shared object file: No such file or directory",
        },
    ],
    remedy: |seen| {
        let installer = seen.installer();
        let cuda = seen.env().and_then(installed).and_then(|torch| torch.cuda).map_or(12, |cuda| cuda.0);
        // From CUDA 13 on the packages carry no number in their names, but for the few with versions of their own.
        let name = library(seen.text);
        let package = match (name, cuda) {
            ("cudnn" | "nccl" | "cusparselt", _) | (_, ..=12) => format!("nvidia-{name}-cu{cuda}"),
            _ => format!("nvidia-{name}"),
        };
        vec![
            format!("# the package that brings it for the CUDA {cuda} of the torch here:"),
            installer.install(&[package], None),
        ]
    },
    ..Rule::BLANK
};

/// The nvidia package's name for the library a text names.
fn library(text: &str) -> &'static str {
    const PACKAGES: [(&str, &str); 15] = [
        ("libcublas", "cublas"),
        ("libcudnn", "cudnn"),
        ("libcufft", "cufft"),
        ("libcurand", "curand"),
        ("libcusparseLt", "cusparselt"),
        ("libcusparse", "cusparse"),
        ("libcusolver", "cusolver"),
        ("libnccl", "nccl"),
        ("libnvrtc", "cuda-nvrtc"),
        ("libnvJitLink", "nvjitlink"),
        ("libcupti", "cuda-cupti"),
        ("libcufile", "cufile"),
        ("libnvToolsExt", "nvtx"),
        ("libcudart", "cuda-runtime"),
        ("", "cuda-runtime"),
    ];
    PACKAGES
        .iter()
        .find(|(file, _)| text.contains(file))
        .map_or("cuda-runtime", |(_, package)| package)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn the_package_is_named_for_the_major_version_of_torch() {
        let check = |text: &str, torch: &str, cuda: &str, expect: &str| {
            let envs = [env("/v").torch(torch, Some(cuda)).build()];
            let found = crate::explain(text, &machines::h200(), &envs);
            assert_eq!(found[0].rule.id, "missing-cuda-library");
            assert!(found[0].fix[1].ends_with(expect), "{:?}", found[0].fix);
        };
        let text = "ImportError: libcublas.so.12: cannot open shared object file";
        check(text, "2.9.1+cu128", "12.8", "install nvidia-cublas-cu12");
        check(text, "2.11.0+cu130", "13.0", "install nvidia-cublas");
        let text = "OSError: libcudnn.so.9: cannot open shared object file";
        check(text, "2.11.0+cu130", "13.0", "install nvidia-cudnn-cu13");
        let text = "OSError: libcusparseLt.so.0: cannot open shared object file";
        check(text, "2.9.1+cu128", "12.8", "install nvidia-cusparselt-cu12");
    }
}
