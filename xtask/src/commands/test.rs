//! `cargo xtask test`: sets itself up and runs every test.

use super::{Command, no_arguments};
use crate::cargo;
use crate::steps::{self, Steps, require};
use crate::templates;
use crate::torch;
use crate::wheels;

pub(super) const COMMAND: Command = Command {
    name: "test",
    arguments: "",
    about: "every test of every room; checks first that what they need is here",
    details: "Wheels of the Python registry (85 MB, kept below target/) are judged too, chat templates (170 MB) are rendered by\n\
              transformers, the ops are called on numpy's arrays (20 MB), the package is tried with two\n\
              releases of torch and of transformers (1.6 GB), whose models' logits are those of ours, and the packers of weights (35 MB), emitted files are held against
\
              Kubernetes' schemas (110 MB), and OpenAI's client (70 MB) and, where npm is there, those of npm (40 MB) ask a server; without a
\
              network these are skipped, which is said and is no pass.",
    run,
};

fn run(arguments: &[String]) -> anyhow::Result<()> {
    no_arguments(arguments)?;
    let root = cargo::workspace_root()?;
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
    // Every failure is shown, not only those of the first room that fails.
    steps.run("tests", || {
        // Neither programs that developers time with nor examples in documentation, of which there are none: optimised, they would
        // take as long to build as some rooms.
        let targets = ["--lib", "--bins", "--tests"];
        let test = ["test", "--workspace", "--locked", "--no-fail-fast"];
        cargo::run(&root, &[&test[..], &targets].concat())
    })?;
    // What follows is of the whole workspace too, whose features the tests were built with: a room by itself would build every room
    // again.
    let mut skipped = false;
    steps.run("published wheels", || {
        // They are judged as the dynamic loader of this processor and system would.
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            skipped = true;
            return Ok(());
        }
        let Some(folder) = wheels::prepare(&cargo::target_directory(&root)?)? else {
            skipped = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "wheels"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_WHEELS", folder))
    })?;
    let mut without_transformers = false;
    steps.run("chat templates by transformers", || {
        let Some(folder) = templates::prepare(&cargo::target_directory(&root)?)? else {
            without_transformers = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "templates_live"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_TEMPLATES", folder))
    })?;
    let mut no_arrays = false;
    steps.run("ops on Python's arrays", || {
        let Some(python) = wheels::arrays(&cargo::target_directory(&root)?)? else {
            no_arrays = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "package"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_ARRAYS_PYTHON", python))
    })?;
    let (mut no_torch, mut no_packers) = (false, true);
    steps.run("the package with torch", || {
        // Its wheels are for this processor; elsewhere torch has no libraries of CUDA to leave out.
        let stacks = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            torch::prepare(&root, &cargo::target_directory(&root)?)?
        } else {
            None
        };
        let Some(stacks) = stacks else {
            no_torch = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "package", "torch"];
        steps::run(
            cargo::command(&root, &test)
                .env("FIRSTLIGHT_TORCH_PYTHONS", std::env::join_paths(&stacks)?),
        )?;
        // Its models, in float32, beside the engine on the processor.
        let test = ["test", "--locked", "--workspace", "--test", "transformers"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_TRANSFORMERS_PYTHON", &stacks[0]))?;
        let Some(packers) = torch::packers(&cargo::target_directory(&root)?, &stacks[0])? else {
            return Ok(());
        };
        no_packers = false;
        let test = ["test", "--locked", "--workspace", "--lib", "packed_weights"];
        steps::run(
            cargo::command(&root, &test)
                .env("FIRSTLIGHT_PACKERS_PYTHON", &stacks[0])
                .env("FIRSTLIGHT_PACKERS", packers),
        )
    })?;
    let mut no_client = false;
    steps.run("OpenAI's client", || {
        let Some(python) = wheels::client(&cargo::target_directory(&root)?)? else {
            no_client = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "openai_client", "openais"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_OPENAI_PYTHON", python))
    })?;
    let mut no_schemas = false;
    steps.run("files of Kubernetes", || {
        let Some(program) = wheels::kubernetes(&cargo::target_directory(&root)?)? else {
            no_schemas = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "kubernetes"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_KUBERNETES_VALIDATE", program))
    })?;
    let mut no_npm = false;
    steps.run("npm's clients", || {
        let Some(folder) = wheels::npm_clients(&cargo::target_directory(&root)?)? else {
            no_npm = true;
            return Ok(());
        };
        let test = ["test", "--locked", "--workspace", "--test", "openai_client", "npms"];
        steps::run(cargo::command(&root, &test).env("FIRSTLIGHT_NPM_CLIENTS", folder))
    })?;
    steps.finish();
    if without_transformers {
        eprintln!(
            "SKIP, which is no pass: chat templates were not rendered by transformers; that needs the Python registry"
        );
    }
    if no_arrays {
        eprintln!(
            "SKIP, which is no pass: the ops were not called on numpy's arrays; that needs the Python registry"
        );
    }
    if no_torch {
        eprintln!(
            "SKIP, which is no pass: the package was not tried with torch; that needs x86_64 Linux and the Python registry"
        );
    }
    if no_packers {
        eprintln!(
            "SKIP, which is no pass: weights in integers were not held against their formats' libraries; that needs torch, as above"
        );
    }
    if no_client {
        eprintln!(
            "SKIP, which is no pass: OpenAI's client did not ask a server; it needs the Python registry"
        );
    }
    if no_schemas {
        eprintln!(
            "SKIP, which is no pass: the files for Kubernetes were not held against its schemas; that needs the Python registry"
        );
    }
    if no_npm {
        eprintln!(
            "SKIP, which is no pass: npm's clients did not ask a server; they need Node 18 or newer, npm and its registry"
        );
    }
    if skipped {
        eprintln!(
            "SKIP, which is no pass: published wheels were not judged; they need x86_64 Linux and the Python registry"
        );
    }
    Ok(())
}
