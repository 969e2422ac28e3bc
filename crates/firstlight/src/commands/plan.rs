//! `firstlight plan [WANT..]`: a compatible stack for a machine, or why there is none; and a check of a written plan.

pub(super) mod libraries;
mod suggest;

use super::ask_nvml::live;
use super::doctor::{cache_folder, find_uv, model, native_cache};
use super::matrix;
use crate::Outcome;
use crate::cli::{MachineChoice, Plan};
use crate::destination;
use crate::failure::{Failure, hint_for_write};
use crate::output::Output;
use crate::progress::Progress;
use crate::run_folder::write_atomically;
use crate::stopping::PrintOnSignals;
use anyhow::Context;
use facts::{Dist, Fact, Machine, PlanRefusal, PlanTarget, SCHEMA};
use probe::EnvOptions;
use report::{count, terminal};
use serde::Serialize;
use setup::index::{IndexClient, IndexError};
use setup::lock::LockError;
use setup::profile_yaml::{ProfileFile, Purpose};
use setup::python::{self, InterpreterSource};
use setup::uv::Uv;
use setup::{PlanRequest, RequestedPackage, emit};
use std::path::Path;
use suggest::{did_you_mean_package, misspelt, other_machine, similar, with_torch_of_pypi};

/// The reason for a package that the command line names.
const REQUIREMENT: &str = "requirement";

pub(super) fn run(arguments: &Plan, output: &Output) -> anyhow::Result<Outcome> {
    if arguments.matrix {
        return matrix::of_plan(arguments, output);
    }
    // An unknown format is reported before a machine is probed.
    if let Some(format) = &arguments.emit {
        known_format(format)?;
    }
    arguments.output.as_deref().map(destination::file).transpose()?;
    if let Some(path) = &arguments.from {
        return written(path, arguments, output);
    }
    let mut request = request(arguments)?;
    let target = match named(&arguments.machine)? {
        Some(target) => target,
        None => {
            let (target, pythons) = this(arguments)?;
            request.pythons = pythons;
            target
        }
    };
    if let (Some(cuda), true) = (arguments.cuda, target.gpus.is_empty()) {
        let what = format!("CUDA {}.{} was asked for, and there is no NVIDIA GPU", cuda.0, cuda.1);
        return Err(Failure::hinted(what, other_machine(&arguments.wants)));
    }
    match chosen(&request, &target)? {
        Ok(mut plan) => {
            plan.warnings.extend(around_conda(arguments)?);
            let (warnings, outcome) = before_locking(&plan, &request.pythons, arguments)?;
            plan.warnings.extend(warnings);
            plan.warnings.extend(misspelt(&request));
            show(&plan, arguments, output)
                .map_err(|error| with_torch_of_pypi(error, &plan, &request))?;
            Ok(outcome)
        }
        Err(refusal) => {
            // The requested file is not written, and standard output must not look like it.
            if arguments.emit.is_some() {
                let hint = "without --emit, `firstlight plan` shows the alternatives";
                let what: Vec<&str> =
                    refusal.conflict.iter().map(|fact| fact.value.as_str()).collect();
                let what = format!("there is no plan: {}", what.join("; "));
                return Err(Failure::hinted(what, hint));
            }
            let next = alternative(&request, &target, arguments);
            refused(&refusal, next, arguments, output)
        }
    }
}

/// The plan from the tables, and from the index if a Python on this machine can query it.
fn chosen(
    request: &PlanRequest,
    target: &PlanTarget,
) -> anyhow::Result<Result<facts::InstallPlan, Box<PlanRefusal>>> {
    let python = setup::index::interpreter(std::env::var_os("PATH").as_deref());
    let (Some(python), Some(cache)) = (python, cache_folder()) else {
        return Ok(setup::plan(request, target));
    };
    let mut index = IndexClient {
        url: setup::index::PYPI.to_owned(),
        cache: cache.join("index"),
        python,
        libraries: &libraries::read,
        timeout: setup::index::TIMEOUT,
        deadline: None,
    };
    let _progress = Progress::start("choosing releases");
    setup::plan_with(request, target, &mut index).map_err(|error| {
        let near = match &error {
            IndexError::Absent { package, .. } => similar(package),
            IndexError::Unreadable { .. } => None,
        };
        let hint = near.map_or_else(|| error.hint().to_owned(), did_you_mean_package);
        Failure::hinted(error.to_string(), hint)
    })
}

/// Prints the plan, locked and in the requested format.
fn show(plan: &facts::InstallPlan, arguments: &Plan, output: &Output) -> anyhow::Result<()> {
    let locked = arguments.lock.then(|| locked(plan)).transpose()?;
    let plan = locked.as_ref().unwrap_or(plan);
    match &arguments.emit {
        Some(format) => {
            write(&emit::emit(plan, format)?, arguments, output)?;
            arguments.output.as_deref().map_or(Ok(()), |path| output.text(&wrote(path, plan)))
        }
        None => output
            .either(plan, |style| terminal::plan(plan, arguments.explain, &next(arguments), style)),
    }
}

/// A written plan. A different choice today is a finding, unless the file is requested in another format, which repeats
/// the plan.
fn written(path: &Path, arguments: &Plan, output: &Output) -> anyhow::Result<Outcome> {
    let mut plan = super::apply::read(path)?;
    if arguments.emit.is_some() {
        show(&plan, arguments, output)?;
        return Ok(Outcome::Good);
    }
    match setup::differences(&plan, chosen)? {
        Ok(differences) => {
            let outcome = if differences.is_empty() { Outcome::Good } else { Outcome::Bad };
            plan.warnings.extend(differences);
            show(&plan, arguments, output)?;
            Ok(outcome)
        }
        Err(refusal) => refused(&refusal, None, arguments, output),
    }
}

/// The output of `plan --json` without a plan.
#[derive(Serialize)]
struct JsonRefusal<'a> {
    schema: u32,
    #[serde(flatten)]
    refusal: &'a PlanRefusal,
}

fn refused(
    refusal: &PlanRefusal,
    next: Option<String>,
    arguments: &Plan,
    output: &Output,
) -> anyhow::Result<Outcome> {
    let next: Vec<String> = next.into_iter().collect();
    let document = JsonRefusal { schema: SCHEMA, refusal };
    output
        .either(&document, |style| terminal::refusal(refusal, arguments.explain, &next, style))?;
    Ok(Outcome::Bad)
}

/// The machine for which a plan is proposed where this one has no GPU.
const OTHER: &str = "a100";

/// A similar command that has a plan: for a machine with a GPU where this one has none, or with releases that exist and
/// fit instead of the requested ones. `None` if none of them has one.
fn alternative(request: &PlanRequest, target: &PlanTarget, arguments: &Plan) -> Option<String> {
    let typed = &arguments.wants;
    let without_gpu = arguments.machine.is_this() && target.gpus.is_empty();
    let other = setup::machine(OTHER).filter(|_| without_gpu);
    let read = |line: &str| RequestedPackage::parse(line, REQUIREMENT).ok();
    // The name of each package whose versions can be left out.
    let name = |line: &String| {
        let wanted = read(line).filter(|wanted| wanted.marker.is_none())?.want;
        (!wanted.specifiers.is_empty()).then_some(wanted.package)
    };
    let names: Vec<Option<String>> = typed.iter().map(name).collect();
    let named = || (0..typed.len()).filter(|at| names[*at].is_some());
    let each = named().map(|at| vec![at]).chain([named().collect()]);
    let first = request.wants.len().checked_sub(typed.len())?;
    for free in std::iter::once(Vec::new()).chain(each) {
        let mut changed = request.clone();
        for at in &free {
            changed.wants[first + at].want.specifiers.clear();
        }
        let here = Some(target).filter(|_| !free.is_empty());
        for machine in here.into_iter().chain(&other) {
            let Ok(Ok(plan)) = chosen(&changed, machine) else { continue };
            let mut words: Vec<String> = std::env::args().skip(1).collect();
            for (line, name) in
                free.iter().filter_map(|at| Some((&typed[*at], names[*at].as_ref()?)))
            {
                let planned = plan.packages.iter().find(|package| package.name == *name);
                let version = planned.map_or("", |package| package.version.as_str());
                let pinned = match version.split('+').next().unwrap_or_default() {
                    "" => name.clone(),
                    version => format!("{name}=={version}"),
                };
                words
                    .iter_mut()
                    .filter(|word| *word == line)
                    .for_each(|word| word.clone_from(&pinned));
            }
            if machine.name == OTHER && without_gpu {
                words.extend(["--machine".to_owned(), OTHER.to_owned()]);
            }
            let words: Vec<String> =
                words.iter().map(|word| facts::quote(word).to_string()).collect();
            return Some(format!("firstlight {}", words.join(" ")));
        }
    }
    None
}

/// The requirements: a profile or the needs of a model's layers, then those of the command line.
fn request(arguments: &Plan) -> anyhow::Result<PlanRequest> {
    let mut request = match &arguments.purpose {
        Some(purpose) if is_yaml(purpose) => of_yaml(purpose)?,
        Some(purpose) if Path::new(purpose).exists() => of_model(Path::new(purpose))?,
        Some(purpose) => of_profile(purpose)?,
        None => PlanRequest::default(),
    };
    for line in &arguments.wants {
        let wanted = RequestedPackage::parse(line, REQUIREMENT).map_err(|wrong| {
            Failure::hinted(wrong.to_string(), "write it in pip's syntax: 'flash-attn>=2.8'")
        })?;
        request.wants.push(wanted);
    }
    request.python = arguments.python.or(request.python);
    request.cuda = arguments.cuda.or(request.cuda);
    request.community |= arguments.community;
    let wanted = |name: &&String| {
        let name = Dist::normalise(name);
        name == "all" || request.wants.iter().any(|wanted| wanted.want.package == name)
    };
    if let Some(name) = arguments.allow_source.iter().find(|name| !wanted(name)) {
        let names: Vec<&str> =
            request.wants.iter().map(|wanted| wanted.want.package.as_str()).collect();
        let what = format!("--allow-source {name}: the plan has no requirement `{name}`");
        let hint = format!("name one of {}, or `all`", names.join(", "));
        return Err(Failure::hinted(what, hint));
    }
    request.allow_builds(&arguments.allow_source);
    Ok(request)
}

fn of_model(path: &Path) -> anyhow::Result<PlanRequest> {
    let model = model::read(path)?;
    let kinds = model::layer_kinds(&model)?;
    Ok(PlanRequest::of_layers(&kinds))
}

/// Checks that need this machine, uv and the index: whether the plan's Python is installed, and whether packages that
/// no table has exist; unclear if that could not be checked.
fn before_locking(
    plan: &facts::InstallPlan,
    pythons: &[(u32, u32)],
    arguments: &Plan,
) -> anyhow::Result<(Vec<Fact<String>>, Outcome)> {
    let mut said = Vec::new();
    let mut outcome = Outcome::Good;
    let tools = cache_folder().map(|cache| cache.join("tools"));
    let uv = || {
        let tools = tools.as_ref().ok_or_else(|| vec!["HOME is not set".to_owned()])?;
        Uv::found(std::env::var_os("PATH").as_deref(), tools)
    };
    let here = || pythons.iter().any(|(major, minor)| plan.python == format!("{major}.{minor}"));
    if plan.target.name == "this" && !here() {
        let uv = if arguments.lock { Some(locker()?) } else { uv().ok() };
        let supply = uv.as_ref().map(|uv| python::query_interpreter(uv, &plan.python));
        let install = python::install(uv.as_ref().map(|uv| uv.program.as_path()), &plan.python);
        said.extend(of_python(&plan.python, supply, pythons, &install)?);
    }
    let unlisted = setup::unlisted(plan);
    // Locking queries the index for every package.
    if !unlisted.is_empty() && !arguments.lock {
        let names: Vec<&str> = unlisted.iter().map(|package| package.name.as_str()).collect();
        let names = names.join(", ");
        let asked = uv().map_err(|tried| format!("no uv: {}", tried.join("; ")));
        let asked = asked.map(|uv| setup::lock::exist(plan, unlisted, &uv));
        let reason = match asked {
            Ok(Ok(())) => return Ok((said, outcome)),
            Ok(Err(LockError::Unreachable { reason, .. })) => reason,
            Ok(Err(wrong)) => {
                let near = match &wrong {
                    LockError::Absent { package, .. } => similar(package),
                    _ => None,
                };
                return Err(match near {
                    Some(near) => Failure::hinted(wrong.to_string(), did_you_mean_package(near)),
                    None => wrong.into(),
                });
            }
            Err(reason) => reason,
        };
        let text = format!(
            "unchecked: the tables have no package {names}, and the package index could not be queried: {reason}"
        );
        said.push(Fact::new(text, "uv"));
        outcome = Outcome::Unclear;
    }
    Ok((said, outcome))
}

/// The message about a plan's Python that was not found on this machine.
fn of_python(
    python: &str,
    supply: Option<InterpreterSource>,
    pythons: &[(u32, u32)],
    install: &str,
) -> anyhow::Result<Option<Fact<String>>> {
    let here = match pythons {
        [] => "none was found here".to_owned(),
        pythons => format!("here are {}", python::words(pythons)),
    };
    match supply {
        Some(InterpreterSource::Here(_)) => Ok(None),
        Some(InterpreterSource::ByUv(name)) => Ok(Some(Fact::new(
            format!(
                "Python {python} is not on this machine: `{install}` gets {name}, and then the plan can be applied"
            ),
            "uv python list",
        ))),
        Some(InterpreterSource::Nowhere(found)) => {
            let found =
                if found.is_empty() { here } else { format!("here are {}", found.join(", ")) };
            Err(Failure::hinted(
                format!("Python {python} is not on this machine, and uv cannot get it: {found}"),
                "use an installed one: --python 3.11; or install this one and add it to PATH",
            ))
        }
        None => Ok(Some(Fact::new(
            format!(
                "Python {python} was not found on this machine ({here}); uv gets it: {install}"
            ),
            "PATH",
        ))),
    }
}

fn is_yaml(purpose: &str) -> bool {
    Path::new(purpose).extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// A team's stack: versions and CUDA are pinned.
fn of_yaml(path: &str) -> anyhow::Result<PlanRequest> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_owned())?;
    let profile = ProfileFile::read(&text, Purpose::Use)?;
    Ok(PlanRequest::of_versions(&profile, path)?)
}

fn of_profile(name: &str) -> anyhow::Result<PlanRequest> {
    let profiles = setup::profiles();
    let Some(profile) = profiles.iter().find(|profile| profile.name == name) else {
        let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
        let what = format!("`{name}` is not a folder, a config.json or a profile");
        return Err(Failure::hinted(what, did_you_mean(name, &names, "profiles")));
    };
    Ok(PlanRequest::of_profile(profile)?)
}

/// The selected machine; `None` for this one.
pub(super) fn named(which: &MachineChoice) -> anyhow::Result<Option<PlanTarget>> {
    if which.is_this() {
        return match which.driver {
            None => Ok(None),
            Some(_) => Err(Failure::hinted(
                "this machine's driver is read from it",
                "--driver is for a machine named by --machine or --compute-capability",
            )),
        };
    }
    let found = match which.gpu {
        Some(gpu) => Some(setup::with_gpu(gpu, which.arch)),
        None => setup::machine(&which.machine),
    };
    if let (Some(_), Some(target)) = (&which.driver, &found) {
        let why = match (target.gpus.is_empty() || target.os == "macos", target.tegra) {
            (true, _) => Some("has no NVIDIA GPU"),
            (false, true) => Some("is a Jetson, whose driver is part of JetPack"),
            (false, false) => None,
        };
        if let Some(why) = why {
            let what = format!("--driver does not apply: {} {why}", target.name);
            return Err(Failure::hinted(what, "leave out --driver"));
        }
    }
    let found = found.map(|it| PlanTarget { driver: which.driver.clone(), ..it });
    found.map(Some).ok_or_else(|| {
        let machines = setup::machines();
        let mut names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
        names.push("this");
        let what = format!("there is no machine `{}`", which.machine);
        let near = did_you_mean(&which.machine, &names, "machines");
        Failure::hinted(
            what,
            format!("{near}; --compute-capability 8.0 selects any machine with such a GPU"),
        )
    })
}

/// This machine and its Pythons.
fn this(arguments: &Plan) -> anyhow::Result<(PlanTarget, Vec<(u32, u32)>)> {
    let options =
        probe::ProbeOptions { source: live(&arguments.waiting), site_packages: Vec::new() };
    let machine: Machine = probe::machine(&options);
    let target = setup::target_of(&machine).ok_or_else(|| {
        let hint =
            "plans are for Linux and macOS on x86_64 and 64-bit Arm; name one with --machine";
        Failure::hinted(format!("nothing is published for {}", machine.platform), hint)
    })?;
    let path = std::env::var_os("PATH");
    let pythons = python::installed(path.as_deref(), python::data_folder().as_deref());
    Ok((target, pythons))
}

/// The warning about an active conda environment. Without one no environment is read, so that a plan takes
/// milliseconds.
fn around_conda(arguments: &Plan) -> anyhow::Result<Option<Fact<String>>> {
    if !arguments.machine.is_this() || std::env::var_os("CONDA_PREFIX").is_none() {
        return Ok(None);
    }
    let source = live(&arguments.waiting);
    let options = EnvOptions { source, venv: None, cache: native_cache(), verify_files: false };
    Ok(setup::conda::around(&probe::environments(&options)?))
}

fn known_format(format: &str) -> anyhow::Result<()> {
    let names: Vec<&str> = emit::FORMATS.iter().map(|format| format.name).collect();
    match names.contains(&format) {
        true => Ok(()),
        false => {
            let what = format!("there is no format `{format}`");
            Err(Failure::hinted(what, did_you_mean(format, &names, "formats")))
        }
    }
}

fn did_you_mean(typed: &str, names: &[&str], what: &str) -> String {
    match diagnose::nearest_name(typed, names) {
        Some(near) => format!("did you mean `{near}`? the {what} are {}", names.join(", ")),
        None => format!("the {what} are {}", names.join(", ")),
    }
}

fn write(text: &str, arguments: &Plan, output: &Output) -> anyhow::Result<()> {
    let Some(path) = &arguments.output else { return output.text(text) };
    write_atomically(path, text.as_bytes()).map_err(|error| {
        let hint = "name a file in an existing folder, or leave out -o";
        Failure::hinted(format!("{error:#}"), hint_for_write(error.as_ref(), hint))
    })
}

/// `plan.toml: 61 packages, locked`.
fn wrote(path: &Path, plan: &facts::InstallPlan) -> String {
    let packages = count(plan.packages.len(), "package");
    let locked = if plan.locked { "locked" } else { "not locked" };
    format!("wrote {}: {packages}, {locked}\n", path.display())
}

/// The plan with every file and its hash, by uv.
fn locked(plan: &facts::InstallPlan) -> anyhow::Result<facts::InstallPlan> {
    let uv = locker()?;
    let _progress = Progress::start("uv resolves the packages");
    let interrupted = "interrupted: nothing was written".to_owned();
    let _until_then = PrintOnSignals::start(interrupted, None)?;
    Ok(setup::lock::lock(plan, &uv)?)
}

/// uv, installed if it is missing.
fn locker() -> anyhow::Result<Uv> {
    let Some(cache) = cache_folder() else {
        let hint = "set XDG_CACHE_HOME";
        return Err(Failure::hinted("there is no folder for uv: HOME is not set", hint));
    };
    Ok(find_uv(&cache.join("tools"))?)
}

/// The commands that lock this plan and apply it.
fn next(arguments: &Plan) -> Vec<String> {
    let words: Vec<String> = std::env::args().skip(1).map(|word| facts::quote(&word)).collect();
    let lock = if arguments.lock { "" } else { " --lock" };
    let mut next =
        vec![format!("firstlight {}{lock} --emit plan.toml -o plan.toml", words.join(" "))];
    if arguments.machine.is_this() {
        next.push("firstlight apply plan.toml --venv .venv".to_owned());
    }
    next
}
