//! The first error of a compiler, a linker or CMake that no other kind explains: its file, the package that owns the
//! file, and the possible causes.

use super::super::error_lines::ErrorLine;
use super::Entity;
use crate::rules::PastedError;

/// The root error of a build as an entity; `None` for a build that is unrelated to GPU stacks.
pub(in crate::explain) fn of_root(seen: &PastedError, root: &ErrorLine) -> Option<Entity> {
    let message = root.message.as_str();
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
    let wheel = built
        .as_ref()
        .map(|name| format!("firstlight plan {name}  # a combination that has a prebuilt wheel"));
    let mut facts = vec![
        ("python", seen.installer().python()),
        ("of", of),
        ("toolchain", "nvcc --version; c++ --version; cmake --version; ninja --version".to_owned()),
    ];
    facts.push(owner.map_or(("ownerless", String::new()), |owner| ("owner", owner.to_owned())));
    let known: Vec<&str> = facts.iter().map(|(name, _)| *name).collect();
    let rows = knowledge::causes::of_build(message, &known);
    let words_of = facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let filled = PastedError { context: seen.context, text: seen.text, words: words_of };
    Some(entity.meaning(words).causes(super::message::causes(&filled, rows)).fix(wheel))
}

/// Folders of headers, and the packages that install them.
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

/// The package that is built, from pip's or uv's message or from a folder below pip's temporary folder.
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
