//! Tests the doctor on real environments, which are built from the Python registry, broken by small edits and imported.
//!
//! The work folder caches the results of imports, so that a run with another build of the doctor only rebuilds environments from
//! uv's cache and judges them.

mod build;
mod judge;
mod list;
mod oracle;
mod record;
mod table;

use crate::cargo;
use crate::registry;
use crate::steps::output;
use anyhow::{Context, bail};
use build::EnvironmentFolder;
use judge::{Doctor, Reality, Verdict};
use list::{Edit, Environment};
use record::Record;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The list of environments.
const LIST: &str = include_str!("reality/environments.toml");

/// Arguments of `cargo xtask reality`, documented in its help text.
#[derive(Debug, Default)]
pub(crate) struct RealityRequest {
    pub(crate) sample: bool,
    pub(crate) untouched: bool,
    pub(crate) only: Vec<String>,
    pub(crate) firstlight: Option<PathBuf>,
    pub(crate) work: Option<PathBuf>,
    pub(crate) fix: bool,
    pub(crate) keep: bool,
    pub(crate) again: bool,
    pub(crate) known: bool,
    pub(crate) imports_only: bool,
    pub(crate) rejudge: bool,
    pub(crate) alone: bool,
    pub(crate) record: Option<String>,
}

impl RealityRequest {
    fn wants(&self, environment: &Environment) -> bool {
        let named = |name: &String| name.split('/').next() == Some(&environment.name);
        (!self.sample || environment.sample)
            && (self.only.is_empty() || self.only.iter().any(named))
    }

    fn wants_variant(&self, environment: &str, variant: &str) -> bool {
        if self.untouched {
            return false;
        }
        let full = format!("{environment}/{variant}");
        self.only.is_empty() || self.only.iter().any(|name| name == environment || *name == full)
    }
}

/// Programs and folders of a run.
struct Tools {
    uv: PathBuf,
    rigsolve: Option<PathBuf>,
    doctor: Doctor,
    work: PathBuf,
    record: Option<Record>,
}

impl Tools {
    /// Writes the rows so far, so that a killed run loses at most one.
    fn write(&self, rows: &[Value]) -> anyhow::Result<()> {
        fs::write(self.work.join("rows.json"), serde_json::to_string_pretty(rows)?)?;
        self.record.as_ref().map_or(Ok(()), |record| record.write(rows))
    }
}

/// Runs the test; fails if the doctor reports an error in an untouched environment.
pub(crate) fn run(root: &Path, asked: &RealityRequest) -> anyhow::Result<()> {
    let list = list::parse(LIST)?;
    let target = cargo::target_directory(root)?;
    let work = std::path::absolute(asked.work.clone().unwrap_or_else(|| target.join("reality")))?;
    fs::create_dir_all(&work)?;
    let Some(uv) = tool(&work, "uv")? else {
        eprintln!("skipped: no registry answers");
        return Ok(());
    };
    let rigsolve = if asked.sample { None } else { tool(&work, "rigsolve")? };
    let firstlight = match &asked.firstlight {
        Some(program) => std::path::absolute(program)?,
        None => {
            cargo::run(root, &["build", "--quiet", "-p", "firstlight"])?;
            target.join("debug/firstlight")
        }
    };
    let empty = EnvironmentFolder::new(&work, "empty", uv.clone());
    output(
        Command::new(&uv)
            .args(["venv", "--quiet", "--clear", "--no-project", "--python", "python3"])
            .arg(&empty.venv),
    )?;
    let doctor = Doctor::new(&firstlight, &work, &uv, &empty)?;
    let record = asked.record.as_ref().map(|date| Record::open(root, date, names(&list), &work));
    let tools = Tools { uv, rigsolve, doctor, work, record: record.transpose()? };
    let mut rows = Vec::new();
    for environment in list.iter().filter(|environment| asked.wants(environment)) {
        if asked.known && !kept(&tools, &environment.name).exists() {
            continue;
        }
        let mut place = EnvironmentFolder::new(&tools.work, &environment.name, tools.uv.clone());
        let done = one(environment, &mut place, &tools, asked, &mut rows);
        if !asked.keep {
            place.remove()?;
        }
        if let Err(error) = done {
            // A package that the registry does not have is not an error of the doctor.
            eprintln!("{}: not built: {error:#}", environment.name);
            rows.push(json!({
                "name": environment.name, "not_built": format!("{error:#}"), "doctor": tools.doctor.version,
            }));
        }
        tools.write(&rows)?;
    }
    if rows.is_empty() {
        bail!(
            "no environment has this name\nhint: the names are in xtask/src/reality/environments.toml"
        );
    }
    print!("{}", table::totals(&rows));
    // A miss is printed and counted; an error in an untouched environment fails the run.
    let pristine = |row: &&Value| !row["name"].as_str().unwrap_or_default().contains('/');
    match rows.iter().filter(pristine).find(|row| row["verdict"] == "FALSE") {
        Some(row) => bail!("the doctor reports an error in the untouched {}", row["name"]),
        None => Ok(()),
    }
}

/// The names of all environments and variants, in the order of the list.
fn names(list: &[Environment]) -> Vec<String> {
    let names = list.iter().flat_map(|environment| {
        let variants = environment.variants.iter();
        std::iter::once(environment.name.clone())
            .chain(variants.map(|variant| format!("{}/{}", environment.name, variant.name)))
    });
    names.collect()
}

/// Builds, imports and judges an environment and its variants.
fn one(
    environment: &Environment,
    place: &mut EnvironmentFolder,
    tools: &Tools,
    asked: &RealityRequest,
    rows: &mut Vec<Value>,
) -> anyhow::Result<()> {
    if !environment.sample {
        place.free_space()?;
    }
    place.build(environment, !asked.rejudge)?;
    if asked.rejudge {
        return rejudge(environment, place, tools, asked, rows);
    }
    let name = &environment.name;
    let key = format!("{:?}", (&environment.python, &environment.install, &environment.watch));
    let pristine =
        known(tools, asked, name, &key, || reality(place, tools, None, !asked.imports_only))?;
    row(environment, name, &[], &[], &pristine, &pristine, place, tools, asked, rows)?;
    for variant in environment.variants.iter().filter(|it| asked.wants_variant(name, &it.name)) {
        let name = format!("{name}/{}", variant.name);
        if asked.known && !kept(tools, &name.replace('/', ".")).exists() {
            continue;
        }
        if let Err(error) = place.vary(&variant.edits) {
            eprintln!("{name}: not made: {error:#}");
            rows.push(json!({
                "name": name, "not_built": format!("{error:#}"), "doctor": tools.doctor.version,
            }));
            continue;
        }
        let key = format!("{key}{:?}", variant.edits);
        let watched = watched(&pristine, &environment.watch);
        let now = known(tools, asked, &name.replace('/', "."), &key, || {
            reality(place, tools, Some(&watched), false)
        })?;
        row(
            environment,
            &name,
            &variant.edits,
            &variant.names,
            &pristine,
            &now,
            place,
            tools,
            asked,
            rows,
        )?;
    }
    Ok(())
}

/// Judges rebuilt environments by the recorded results of their imports, for a newer build of the doctor.
fn rejudge(
    environment: &Environment,
    place: &mut EnvironmentFolder,
    tools: &Tools,
    asked: &RealityRequest,
    rows: &mut Vec<Value>,
) -> anyhow::Result<()> {
    let record = tools.record.as_ref().context("--rejudge is for a --record of that date")?;
    let name = &environment.name;
    let wanted = environment.variants.iter().filter(|it| asked.wants_variant(name, &it.name));
    let variants = wanted.map(|it| (format!("{name}/{}", it.name), it.edits.as_slice()));
    for (name, edits) in std::iter::once((name.clone(), [].as_slice())).chain(variants) {
        let Some(earlier) = record.row(&name).filter(|row| row["broken"].is_array()) else {
            eprintln!("{name}: no run of this date imported it");
            continue;
        };
        if !edits.is_empty() {
            place.vary(edits)?;
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let list = |key: &str| earlier[key].as_array().into_iter().flatten();
        let reality = Reality {
            broken: list("broken").map(|it| (text(&it[0]), String::new(), text(&it[1]))).collect(),
            names: list("names").map(text).collect(),
            pristine: edits.is_empty(),
        };
        let mut row = judged(&name, &reality, place, tools)?;
        for key in ["imported", "libraries"] {
            row[key] = earlier[key].clone();
        }
        println!("{}", table::line(&row));
        rows.push(row);
        tools.write(rows)?;
    }
    Ok(())
}

/// Runs the doctor and returns a row with its findings and the verdict.
fn judged(
    name: &str,
    reality: &Reality,
    place: &EnvironmentFolder,
    tools: &Tools,
) -> anyhow::Result<Value> {
    let (findings, seconds) = tools.doctor.findings(place)?;
    let milli = |seconds: f64| (seconds * 1e3).round() / 1e3;
    Ok(json!({
        "name": name,
        "doctor": tools.doctor.version,
        "broken": reality.broken.iter().map(|(module, _, error)| json!([module, error])).collect::<Vec<_>>(),
        "names": reality.names,
        "verdict": judge::verdict(reality, &findings).word(),
        "findings": findings.iter().map(|it| json!({
            "severity": it["severity"], "rule": it["rule"], "title": it["title"], "fix": it["fix"]
        })).collect::<Vec<_>>(),
        "doctor_seconds": milli(seconds[0]),
        "doctor_median_seconds": milli(seconds[seconds.len() / 2]),
    }))
}

/// The cached result of an earlier run with this key, or a new one.
fn known(
    tools: &Tools,
    asked: &RealityRequest,
    name: &str,
    key: &str,
    make: impl FnOnce() -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let path = kept(tools, name);
    if let (false, Ok(text)) = (asked.again, fs::read_to_string(&path)) {
        let kept: Value = serde_json::from_str(&text)?;
        if kept["key"] == key {
            return Ok(kept["reality"].clone());
        }
    }
    let reality = make()?;
    fs::create_dir_all(tools.work.join("reality"))?;
    fs::write(&path, serde_json::to_string(&json!({ "key": key, "reality": reality }))?)?;
    Ok(reality)
}

/// The file with the cached result of imports.
fn kept(tools: &Tools, name: &str) -> PathBuf {
    tools.work.join("reality").join(format!("{name}.json"))
}

/// Imports all modules or `only` these, and optionally opens every library.
fn reality(
    place: &EnvironmentFolder,
    tools: &Tools,
    only: Option<&[(String, String)]>,
    libraries: bool,
) -> anyhow::Result<Value> {
    let stub = oracle::libcuda(&place.site()?, &tools.work.join("stub"))?;
    let imports = oracle::imports(place, only, &stub)?;
    let libraries = if libraries { oracle::libraries(place, &stub)? } else { Vec::new() };
    Ok(json!({ "imports": imports, "libraries": libraries }))
}

/// Packages and modules to import in every variant: of each watched package the module with its name, otherwise all its modules.
fn watched(pristine: &Value, watch: &[String]) -> Vec<(String, String)> {
    let lines = || pristine["imports"].as_array().into_iter().flatten();
    let modules = |package: &String| -> Vec<String> {
        let own = lines().filter(|line| line["package"] == package.as_str());
        let all: Vec<String> =
            own.filter_map(|line| line["module"].as_str().map(str::to_owned)).collect();
        let called = all.iter().find(|module| **module == package.replace('-', "_")).cloned();
        called.map_or(all, |module| vec![module])
    };
    watch
        .iter()
        .flat_map(|package| modules(package).into_iter().map(|module| (package.clone(), module)))
        .collect()
}

/// The modules of watched packages whose import fails: module, package, error.
fn broken(reality: &Value, watch: &[String]) -> Vec<(String, String, String)> {
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
    let imports = reality["imports"].as_array().into_iter().flatten();
    imports
        .filter(|line| !line["error"].is_null() && watch.contains(&text(line, "package")))
        .map(|line| (text(line, "module"), text(line, "package"), text(line, "error")))
        .collect()
}

#[expect(clippy::too_many_arguments, reason = "one call, from one place")]
fn row(
    environment: &Environment,
    name: &str,
    edits: &[Edit],
    names: &[String],
    pristine: &Value,
    now: &Value,
    place: &EnvironmentFolder,
    tools: &Tools,
    asked: &RealityRequest,
    rows: &mut Vec<Value>,
) -> anyhow::Result<()> {
    let mut reality = Reality {
        broken: broken(now, &environment.watch),
        names: names.iter().cloned().collect(),
        pristine: edits.is_empty(),
    };
    if !reality.pristine {
        // A failed import counts only if the untouched environment imports the module. A module without files is not listed and
        // counts as failed.
        let before = broken(pristine, &environment.watch);
        reality.broken.retain(|it| before.iter().all(|other| other.0 != it.0));
        let tried = |value: &Value| -> BTreeSet<String> {
            let lines = value["imports"].as_array().into_iter().flatten();
            lines.filter_map(|line| line["module"].as_str().map(str::to_owned)).collect()
        };
        let wanted = watched(pristine, &environment.watch);
        let imported = pristine["imports"].as_array().into_iter().flatten().filter(|line| {
            line["error"].is_null()
                && wanted.iter().any(|(_, module)| line["module"] == module.as_str())
        });
        let now = tried(now);
        for line in
            imported.filter(|line| !now.contains(line["module"].as_str().unwrap_or_default()))
        {
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            reality.broken.push((text("module"), text("package"), "it is not there".to_owned()));
        }
    }
    if names.is_empty() {
        reality.names = edits.iter().filter_map(Edit::package).map(str::to_owned).collect();
        reality.names.extend(reality.broken.iter().map(|(_, package, _)| package.clone()));
    }
    let mut row = judged(name, &reality, place, tools)?;
    row["imported"] = json!(now["imports"].as_array().map_or(0, Vec::len));
    row["libraries"] = json!(now["libraries"].as_array().map_or(0, Vec::len));
    if asked.record.is_some() && !asked.alone {
        row["others"] = judge::others(&place.venv, &reality, tools.rigsolve.as_deref());
    }
    if asked.fix && (!reality.broken.is_empty() || row["verdict"] != Verdict::Quiet.word()) {
        let watched = watched(pristine, &environment.watch);
        row["fix"] = fixed(environment, &watched, place, tools)?;
    }
    println!("{}", table::line(&row));
    rows.push(row);
    tools.write(rows)
}

/// Runs `doctor --fix --yes` and returns its outcome and the imports that still fail.
fn fixed(
    environment: &Environment,
    watched: &[(String, String)],
    place: &EnvironmentFolder,
    tools: &Tools,
) -> anyhow::Result<Value> {
    let before = table::listing(&place.venv)?;
    let mut fix = tools.doctor.fix(place, &tools.work.join("cache"))?;
    let same = before == table::listing(&place.venv)?;
    let stub = oracle::libcuda(&place.site()?, &tools.work.join("stub"))?;
    let imports = oracle::imports(place, Some(watched), &stub)?;
    let left = broken(&json!({ "imports": imports }), &environment.watch);
    fix["unchanged"] = json!(same);
    fix["broken_after"] =
        json!(left.iter().map(|(module, _, error)| json!([module, error])).collect::<Vec<_>>());
    Ok(fix)
}

/// A program installed from the Python registry into the work folder; `None` if no registry answers.
fn tool(work: &Path, name: &str) -> anyhow::Result<Option<PathBuf>> {
    let folder = work.join("tools").join(name);
    let program = folder.join("bin").join(name);
    if program.exists() {
        return Ok(Some(program));
    }
    output(Command::new("python3").args(["-m", "venv"]).arg(&folder))
        .context("hint: `apt-get install python3-venv`")?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--retries=1",
        "--timeout=10",
        name,
    ]);
    match output(&mut pip) {
        Ok(_) => Ok(Some(program)),
        Err(error) if registry::is_unreachable(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
