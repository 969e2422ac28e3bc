//! The first error of a compiler, a linker or CMake that no other kind knows: its file, the owner of that file, and the causes
//! that it leaves possible.

use super::super::cause::Cause;
use super::super::error_lines::ErrorLine;
use super::Entity;
use crate::rules::Seen;

/// The root error of a build as an entity; `None` for builds that have nothing to do with a GPU stack.
pub(in crate::explain) fn of_root(seen: &Seen, root: &ErrorLine) -> Option<Entity> {
    let message = root.message.as_str();
    let lower = message.to_ascii_lowercase();
    let name = super::exception::shortened(message);
    let built = built_package(seen.text);
    let gpu = ["cuda", "nvcc", "torch", "cutlass", "triton", ".cu", "hip"];
    let text = seen.text.to_ascii_lowercase();
    (built.is_some() || gpu.iter().any(|word| text.contains(word))).then_some(())?;
    let of = built
        .as_ref()
        .map_or_else(|| "the source".to_owned(), |name| format!("the source of {name}"));
    let mut words = format!("The first error of the build is: {}.", name.trim_end_matches('.'));
    let mut entity = Entity::new(super::STATED, name);
    let owner = owner_of(message);
    if let Some(owner) = owner {
        words.push_str(&format!(" The file belongs to {owner}."));
    }
    words.push_str(" Lines after it follow from it.");
    if let Some(package) = &built {
        entity = entity.package(package.clone());
    }
    let python = seen.installer().python();
    let toolchain = "nvcc --version; c++ --version; cmake --version; ninja --version".to_owned();
    let wheel = built
        .as_ref()
        .map(|name| format!("firstlight plan {name}  # a combination that has a prebuilt wheel"));
    let causes = if lower.contains("undefined reference")
        || lower.contains("cannot find -l")
        || lower.contains("ld: ")
    {
        vec![
            Cause::new("The library that has the function is not installed or not given to the linker.")
                .check(["# nm -D --defined-only LIBRARY.so | grep NAME; the -l and -L options of the linker's command"])
                .fix(["# its development package, or its folder in LIBRARY_PATH"]),
            Cause::new("The library is there and of another release or C++ ABI than the source was compiled for.")
                .check([format!("{python} -c 'import torch; print(torch.__version__, torch._C._GLIBCXX_USE_CXX11_ABI)'; {toolchain}")])
                .fix(["# the release that the source names; then a clean build folder"]),
        ]
    } else if lower.starts_with("cmake error") {
        vec![
            Cause::new("A program or library that the project looks for is absent, or is found in another release than it needs: the message's next lines name it.")
                .check([toolchain.clone(), "# the lines after `CMake Error`, and build/CMakeFiles/CMakeError.log".to_owned()])
                .fix(["# install what they name, or name its folder in CMAKE_PREFIX_PATH; then a clean build folder"]),
            Cause::new("CMake itself is too old or too new for the project.").check(["cmake --version; which -a cmake"]).fix([String::from(seen.installer().install(&["cmake".to_owned()], None))]),
        ]
    } else {
        let mut causes = vec![
            Cause::new(match owner {
                Some(owner) => format!("{of} and {owner} are of different ages: a name was removed, or is not there yet."),
                None => format!("{of} was written for another release of what it includes (CUDA, torch, a submodule) than the one that is found."),
            })
            .check([format!("{python} -c 'import torch; print(torch.__version__, torch.version.cuda)'; {toolchain}")])
            .fix(["# the release of the source for this torch and CUDA; git submodule update --init --recursive"]),
            Cause::new("The compiler is too old or too new: nvcc takes host compilers up to a release, and a language standard needs a compiler that has it.")
                .check([toolchain.clone()])
                .fix(["# the toolkit and compiler that the source names; export CUDAHOSTCXX, CXX and NVCC_PREPEND_FLAGS"]),
        ];
        causes.push(
            Cause::new("The source has a fault at that place for this compiler or GPU, which another release does not have.")
                .check(["# the file and line of the message in the project's newest source"])
                .fix(["# another release of the source"]),
        );
        causes
    };
    Some(entity.meaning(words).causes(causes).fix(wheel))
}

/// Folders of headers and who installs them.
const OWNERS: [(&str, &str); 10] = [
    ("torch/include", "torch"),
    ("cutlass/include", "CUTLASS"),
    ("include/cutlass", "CUTLASS"),
    ("include/cute", "CUTLASS"),
    ("include/pybind11", "pybind11"),
    ("include/cccl", "the CUDA toolkit"),
    ("/cuda/include", "the CUDA toolkit"),
    ("/cuda-1", "the CUDA toolkit"),
    ("/include/c++/", "the C++ compiler's library"),
    ("/include/python3", "Python"),
];

fn owner_of(message: &str) -> Option<&'static str> {
    let file = message.split_whitespace().next()?;
    OWNERS.iter().find(|(folder, _)| file.contains(folder)).map(|(_, owner)| *owner)
}

/// The package that is built, as pip, uv or a folder below pip's temporary one names it.
pub(super) fn built_package(text: &str) -> Option<String> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_' || c == '.';
    for mark in [
        "Building wheel for ",
        "Failed building wheel for ",
        "Could not build wheels for ",
        "Failed to build `",
        "Failed to build ",
        "pip-install-",
    ] {
        for (at, _) in text.match_indices(mark) {
            let mut rest = &text[at + mark.len()..];
            if mark == "pip-install-" {
                rest = rest.split_once('/').map_or("", |(_, rest)| rest);
            }
            let word = &rest[..rest.find(|c: char| !letters(c)).unwrap_or(rest.len())];
            // pip's folder has a number after the name: `llama-cpp-python_f08f076e9211`.
            let word = match word.rsplit_once('_') {
                Some((name, hash)) if mark == "pip-install-" && hash.len() >= 16 => name,
                _ => word,
            };
            if word.len() > 1 && word != "installable" && word != "wheel" {
                return Some(facts::Dist::normalise(word));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::built_package;
    use crate::explain::{Certainty, Leader, explain_text};
    use crate::test_support::machines;

    #[test]
    fn package_under_build_is_read_from_pip_and_its_folders() {
        for (text, expect) in [
            ("Building wheel for flash-attn (setup.py): started", Some("flash-attn")),
            (
                "/tmp/pip-install-lps8mve2/llama-cpp-python_f08f076e92114539aaa45aee27b04713/vendor/x.cpp",
                Some("llama-cpp-python"),
            ),
            ("make: *** [all] Error 2", None),
        ] {
            assert_eq!(built_package(text).as_deref(), expect, "{text}");
        }
    }

    #[test]
    fn compiler_error_is_stated_with_its_owner_and_open_causes() {
        let text = "Building wheel for mykernel (pyproject.toml): started\n/v/lib/python3.12/site-packages/torch/include/ATen/core/x.h(12): error: expected a type specifier\nninja: build stopped: subcommand failed.";
        let found = explain_text(text, &machines::x86(), &[], &[]);
        let Some(Leader::Entity(entity)) = found.leader() else { panic!("{:?}", found.leader()) };
        assert!(entity.meaning.contains("belongs to torch"), "{}", entity.meaning);
        assert_eq!(entity.certainty(), Certainty::Possible);
        assert!(entity.packages.iter().any(|name| name == "mykernel"));
    }
}
