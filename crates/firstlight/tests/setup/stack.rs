//! A small stack of wheels on one machine: a torch of CUDA 12.8 and extensions that fit it or lie.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

use crate::support::library::Library;
use crate::tools::python;
use crate::wheel::Wheel;
use std::env::consts::ARCH;

/// The GPU of the machine, as the driver of the tests tells it: compute capability and name.
pub(crate) const GPU: &str = "9.0 NVIDIA H200";

/// c10::Error's constructor by the new C++ ABI, which torch 2.8 has, and by the old.
pub(crate) const NEW_ABI: &str =
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
pub(crate) const OLD_ABI: &str = "_ZN3c105ErrorC2ENS_14SourceLocationESs";

/// The release as tags have it: `cp311`.
fn cpython() -> String {
    format!("cp{}", python().replace('.', ""))
}

/// The tag of a wheel for this Python and this processor, as projects tag what they build for one CUDA release.
pub(crate) fn tag() -> String {
    format!("{0}-{0}-linux_{ARCH}", cpython())
}

/// `x.cpython-311-x86_64-linux-gnu.so`.
pub(crate) fn extension(name: &str) -> String {
    let release = python().replace('.', "");
    format!("{name}.cpython-{release}-{ARCH}-linux-gnu.so")
}

fn c10() -> Library {
    Library::named("libc10.so").exports(&[NEW_ABI])
}

/// What an interpreter that imports torch is told.
const SEES_THE_GPU: &str = "from . import version\n\n\nclass cuda:\n    is_available = staticmethod(lambda: True)\n    get_device_name = staticmethod(lambda index: 'NVIDIA H200')\n";

/// torch, whose code runs on everything from Ampere to Blackwell.
pub(crate) fn torch(version: &str) -> Wheel {
    let own = Library::new().linked_with(&c10()).search("RPATH $ORIGIN/lib");
    let code = Library::named("libtorch_cuda.so").code(&["sm_80", "sm_86", "sm_90", "sm_100"]);
    let text = format!(
        "from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = '12.8'\n"
    );
    Wheel::new("torch", version, &tag())
        .file("torch/__init__.py", SEES_THE_GPU)
        .file("torch/version.py", text)
        .library("torch/lib/libc10.so", &c10(), ARCH)
        .library("torch/lib/libtorch_cuda.so", &code, ARCH)
        .library(&extension("torch/_C"), &own, ARCH)
}

/// An extension that asks torch for this symbol and has this GPU code.
pub(crate) fn kernels(symbol: &str, images: &[&str]) -> Library {
    Library::new()
        .linked_with(&c10())
        .exports(&["PyInit_flash_attn_2_cuda"])
        .wants(&[symbol])
        .code(images)
}

/// flash-attn as its release page has it, with this compiled module in it.
pub(crate) fn flash_attn(module: &Library) -> Wheel {
    flash_attn_with(&tag(), &extension("flash_attn_2_cuda"), module, ARCH)
}

/// flash-attn with every label to choose.
pub(crate) fn flash_attn_with(tag: &str, file: &str, module: &Library, processor: &str) -> Wheel {
    Wheel::new("flash_attn", "2.8.3+cu12torch2.8cxx11abiTRUE", tag)
        .requires("torch")
        .file("flash_attn/__init__.py", "")
        .library(file, module, processor)
}

/// A wheel whose labels promise what its bytes do not hold.
pub(crate) struct MislabeledWheel {
    pub(crate) what: &'static str,
    pub(crate) wheel: Wheel,
    /// The rule that finds it.
    pub(crate) rule: &'static str,
    /// What the finding says.
    pub(crate) says: &'static str,
}

/// Wheels that an installer takes and that do not work: all their labels are right for this machine.
pub(crate) fn mislabeled_wheels() -> Vec<MislabeledWheel> {
    let fits = || kernels(NEW_ABI, &["sm_80", "sm_90"]);
    let other = if ARCH == "x86_64" { "aarch64" } else { "x86_64" };
    let module = extension("flash_attn_2_cuda");
    let plain = "flash_attn/lib/libflash.so";
    let old_python = module.replace(&python().replace('.', ""), "39");
    let newer_libc = Library::named("libc.so.6").exports(&["newer@GLIBC_2.99"]);
    let newer_libc = Library::new()
        .linked_with(&newer_libc)
        .exports(&["PyInit_flash_attn_2_cuda"])
        .wants(&["newer"]);
    let manylinux = format!("{0}-{0}-manylinux_2_17_{ARCH}", cpython());
    let lie = |what, wheel, rule, says| MislabeledWheel { what, wheel, rule, says };
    vec![
        lie(
            "abiTRUE in its name, the old C++ ABI in its symbols",
            flash_attn(&kernels(OLD_ABI, &["sm_80", "sm_90"])),
            "extension-old-abi",
            "c10::Error::Error(c10::SourceLocation, ",
        ),
        lie(
            "code for the GPUs before this one",
            flash_attn(&kernels(NEW_ABI, &["sm_80", "sm_86"])),
            "no-kernel-image",
            "sm_86",
        ),
        lie(
            "tagged for this processor, compiled for another",
            flash_attn_with(&tag(), plain, &fits(), other),
            "wrong-architecture",
            "is compiled for another processor than this",
        ),
        lie(
            "tagged for any machine, compiled for another processor",
            flash_attn_with("py3-none-any", plain, &fits(), other),
            "wrong-architecture",
            "is compiled for another processor than this",
        ),
        lie(
            "tagged for this Python, compiled for another",
            flash_attn_with(&tag(), &old_python, &fits(), ARCH),
            "other-python",
            "is compiled for Python 3.9, not 3.",
        ),
        lie(
            "tagged for every glibc since 2.17, linked with one that is not published yet",
            flash_attn_with(&manylinux, &module, &newer_libc, ARCH),
            "glibc-too-old",
            "GLIBC_2.99",
        ),
    ]
}
