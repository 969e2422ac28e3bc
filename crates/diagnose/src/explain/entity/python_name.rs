//! Modules and names that an import or an attribute access does not find.

use super::{Entity, Form, NameLookup, compiled_module, form};
use crate::explain::cause::Cause;
use crate::explain::modules::{self, PARTS, frames, installed, provider, requirement, version_in};
use crate::extension::elsewhere;
use crate::rules::PastedError;
use facts::Dist;
use knowledge::{Version, torch_series};

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("cannot import name '{name}' from partially initialized module '{module}'", circular),
        form("partially initialized module '{module}' has no attribute '{name}'", circular),
        form("cannot import name '{name}' from '{module}' (unknown location)", namespace),
        form("cannot import name '{name}' from '{module}'", name),
        form("No module named '{module}'", module),
        form("No module named {module}", module),
        form("module '{module}' has no attribute '{name}'", attribute),
        form("type object '{class}' has no attribute '{name}'", class),
        form("'{class}' object has no attribute '{name}'", class),
        form("{class} has no attribute {name}", class),
        form("Failed to import {module} because of the following error", failed),
        form("Could not import module '{name}'", could_not),
    ]
}

/// Distributions whose frames only forward an exception.
const PASSES_ON: [&str; 3] = ["six", "wrapt", "decorator"];

/// The installed package that imports: that of the last frame of the traceback outside the imported package.
fn importer(seen: &PastedError, package: &str) -> Option<String> {
    let envs = seen.context.envs;
    let of = |module: &&str| provider(module, envs);
    let other = |dist: &String| *dist != package && !PASSES_ON.contains(&dist.as_str());
    frames(seen.text).iter().rev().map(of).find(other)
}

/// The release of a package for the torch here or in the text, by the table of torch's series.
fn with_torch(seen: &PastedError, package: &str) -> Option<(String, String)> {
    let here = seen.env().and_then(|env| env.torch.as_ref()).map(|torch| torch.version.clone());
    let version = here.or_else(|| version_in(seen.text, "torch"))?;
    let row = torch_series::series(Version::parse(&version)?.minor())?;
    let constraint = match package {
        "triton" => format!("=={}.{}.*", row.triton.0, row.triton.1),
        "torchvision" => row.torchvision.constraint(),
        "torchaudio" => row.torchaudio.constraint(),
        _ => return None,
    };
    Some((format!("torch {version}"), constraint))
}

fn circular(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let module = seen.word("module")?;
    let top = module.split('.').next()?;
    Some(
        Entity::new("python-name", module)
            .meaning(format!(
                "Python imports {module} while it is still being imported. Most often a file or folder of yours has the name of the package ({top}.py or \
                 {top}/) and is imported instead; the path in brackets is the file that Python took."
            ))
            .fix([format!("ls -d {top}.py {top} __pycache__ 2>/dev/null  # in the folder the program starts in; rename it")])
            .package(provider(module, seen.context.envs))
            .rank(2),
    )
}

/// Python found a folder of that name without an `__init__.py`.
fn namespace(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (name, module) = (seen.word("name")?, seen.word("module")?);
    let top = module.split('.').next()?;
    let package = provider(module, seen.context.envs);
    let mut entity =
        Entity::new("python-name", format!("{module}.{name}")).package(package.clone()).rank(4);
    let mut words = format!(
        "`(unknown location)` means that Python found a folder {module} without an __init__.py, a namespace package, and not the files of {package}."
    );
    for (part, of, what) in PARTS {
        let of_this = of == top;
        if let Some((_, dist)) = installed(seen, part).filter(|_| of_this) {
            entity = entity.evidence(
                format!("{} {} is installed, which has {what} alone", dist.name, dist.version),
                dist.path.clone(),
            );
            entity = entity.package(part).confirmed(Some(installed(seen, &package).is_none()));
        }
        if of_this {
            words.push_str(&format!(
                " {part} is another package that installs {what} alone: it does not replace {package}. Either install {package}, or have the program import \
                 from {what}."
            ));
        }
    }
    let installer = seen.installer();
    let python = installer.python();
    let install = match installed(seen, &package) {
        Some((_, dist)) => {
            entity = entity.evidence(
                format!("{} {} is installed", dist.name, dist.version),
                dist.path.clone(),
            );
            installer.reinstall(&[&package])
        }
        None => installer.install(std::slice::from_ref(&package), None),
    };
    let entity = entity.causes([
        Cause::new(format!("{package} is not installed in the Python that runs, or lost its files."))
            .check([format!("{python} -m pip show -f {package} | grep __init__")])
            .fix([String::from(install)]),
        Cause::new(format!(
            "A folder named {top} where the program starts, such as a checkout of its source, hides the package."
        ))
        .check([format!("{python} -c 'import {top}; print({top}.__path__)'; ls -d {top}")])
        .fix(["# start the program in another folder, or rename that one"]),
    ]);
    Some(entity.meaning(words))
}

fn name(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (name, module) = (seen.word("name")?, seen.word("module")?);
    mismatch(seen, name, module, "a name that an import asks for")
}

fn attribute(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (name, module) = (seen.word("name")?, seen.word("module")?);
    modules::is_known(module).then_some(())?;
    let envs = seen.context.envs;
    let package = provider(module, envs);
    if importer(seen, &package).is_some() {
        return mismatch(seen, name, module, "an attribute that another package uses");
    }
    // A submodule's name in the user's own code is more often misspelt. A package that looks a name up in itself, as
    // Triton does for a kernel, and names of the package itself are of another release.
    let inside = frames(seen.text).iter().any(|frame| provider(frame, envs) == package);
    (inside || !module.contains('.')).then_some(())?;
    let mut entity = mismatch(seen, name, module, "an attribute that the program uses")?;
    if !entity.causes.is_empty() {
        entity.causes.push(
            Cause::new(format!(
                "The name is misspelt, or {name} is a submodule that the program has to import."
            ))
            .check([format!("{} -c 'import {module}.{name}'", seen.installer().python())])
            .fix([format!("# import {module}.{name}")]),
        );
    }
    Some(entity)
}

/// An attribute that a class of a known library does not have.
fn class(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (class, name) = (seen.word("class")?, seen.word("name")?);
    let attached = knowledge::causes::attached(class, name);
    let package = attached.or_else(|| modules::of_class(class))?;
    let importer = importer(seen, package);
    let who = importer.as_deref().unwrap_or("the code that uses it");
    let what = match attached {
        Some(package) if package != "packaging" => {
            format!("{package} adds {name} to objects of {class} and did not here")
        }
        _ => format!("{class} of the installed {package} has no {name}"),
    };
    let mut entity = Entity::new("python-name", format!("{class}.{name}"))
        .meaning(format!("{what}: {package} and {who} do not fit together, or this release of {package} has a fault."))
        .causes(ages(seen, package, importer.as_deref(), who, name))
        .package(package)
        .rank(2);
    for name in [Some(package), importer.as_deref()].into_iter().flatten() {
        if let Some((_, dist)) = installed(seen, name) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
        entity = entity.package(name);
    }
    Some(entity)
}

/// The import of the name that the doctor found in the files of the environments.
fn asked_here<'a>(
    seen: &'a PastedError,
    name: &str,
    module: &str,
) -> Option<&'a facts::MissingName> {
    let all = seen.context.envs.iter().flat_map(|env| &env.missing_names);
    let mut same = all.filter(|missing| missing.name == name && missing.module == module);
    same.next()
}

/// A name that a module does not have: a mismatch of two releases.
fn mismatch(seen: &PastedError, name: &str, module: &str, what: &str) -> Option<Entity> {
    let package = provider(module, seen.context.envs);
    let known = modules::is_known(module) || installed(seen, &package).is_some();
    let in_packages = frames(seen.text).iter().any(|frame| module.starts_with(frame));
    (known || in_packages).then_some(())?;
    let asked = asked_here(seen, name, module);
    let importer = importer(seen, &package)
        .or_else(|| asked?.dist.as_deref().map(Dist::normalise))
        .filter(|importer| *importer != package);
    let mut entity =
        Entity::new("python-name", format!("{module}.{name}")).package(package.clone()).rank(3);
    if let Some(missing) = asked {
        entity = entity
            .evidence(format!("imports {module}.{name}"), missing.at.clone())
            .confirmed(Some(true));
    }
    let who = importer.as_deref().unwrap_or("the program that imports it");
    let mut words = format!(
        "The {package} that raised this error has no {name} in {module}, {what}: {package} and {who} do not fit together."
    );
    let here = installed(seen, &package);
    if let Some((_, dist)) = here {
        entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
    }
    if let Some((_, dist)) = importer.as_deref().and_then(|name| installed(seen, name)) {
        entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
    }
    let installer = seen.installer();
    // Kernels use triton and triton.language; torch and other packages use Triton's other modules.
    let required = requirement(seen, &package);
    let fits = required.or_else(|| with_torch(seen, &package));
    match fits {
        Some((by, constraint)) => {
            words.push_str(&format!(" {by} goes with {package}{constraint}."));
            let evidence = format!("{by} requires {package}{constraint}");
            entity = entity
                .evidence(
                    evidence,
                    "requirements of the installed packages, and the table of torch's series",
                )
                .confirmed(here.and(Some(true)))
                .fix([installer.install(&[format!("{package}{constraint}")], None)]);
        }
        None if module.starts_with("triton.") && !module.starts_with("triton.language") => {
            words.push_str(" Each torch release is built for one Triton release and pins it.");
            entity = entity.fix([
                format!("{} -m pip show torch triton", installer.python()),
                "# install the Triton that this torch requires: torch 2.8 goes with triton 3.4, 2.9 with 3.5, 2.10 and 2.11 with 3.6".into(),
                installer.install(&["torch".into(), "triton".into()], None).into(),
            ]);
        }
        None => {
            if let Some(importer) = &importer {
                entity = entity.package(importer.clone());
            }
            entity = entity.causes(ages(seen, &package, importer.as_deref(), who, name));
            let of = (module, Some(name));
            entity.name_lookup = NameLookup::new(seen, &package, of, importer.as_deref());
        }
    }
    Some(entity.meaning(words))
}

/// The causes of a name that a package does not have.
fn ages(
    seen: &PastedError,
    package: &str,
    importer: Option<&str>,
    who: &str,
    name: &str,
) -> Vec<Cause> {
    let installer = seen.installer();
    let python = installer.python();
    let upgraded =
        |name: &str| String::from(installer.install(&[name.to_owned()], None).upgraded());
    let top = package.replace('-', "_");
    // torch's wheels pin Triton.
    let mut older_fix = vec![upgraded(package)];
    if package == "triton" {
        older_fix.push(format!("# torch pins Triton: {}", upgraded("torch")));
    }
    let newer = match importer {
        Some(importer) => {
            vec![upgraded(importer), format!("# or a {package} of the time of {importer}")]
        }
        None => vec![format!("# a {package} of the time of the program, or a newer program")],
    };
    vec![
        Cause::new(format!("{package} is too old: {who} is written for a release that has {name}."))
            .check([
                format!("{python} -m pip show {package} | grep Version; {python} -m pip index versions {package}"),
                format!("{python} -m pip check"),
            ])
            .fix(older_fix)
            .of_release(),
        Cause::new(format!("{package} is too new: it removed, renamed or moved {name}."))
            .check([format!("# the release notes of {package} after the time of {who}")])
            .fix(newer)
            .of_release(),
        Cause::new(format!(
            "Another file is imported instead of {package}, its files are of two releases, or it leaves {name} out because a package that {name} needs is absent."
        ))
        .check([format!("{python} -c 'import {top}; print({top}.__file__, getattr({top}, \"__version__\", None))'")])
        .fix([String::from(installer.reinstall(&[package]))]),
    ]
}

/// Modules of Python's standard library that a release removed, and their replacement.
const REMOVED: [(&str, &str, &str); 4] = [
    ("distutils", "3.12", "setuptools"),
    ("imp", "3.12", ""),
    ("asyncore", "3.12", ""),
    ("pipes", "3.13", ""),
];

/// Modules of Python's standard library that need a system library when Python is built; another rule reports them.
const OWN: [&str; 8] =
    ["_ctypes", "_lzma", "_bz2", "_sqlite3", "_ssl", "_tkinter", "tkinter", "readline"];

fn module(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let module = seen.word("module")?.trim_end_matches(['.', ',', ':', ';']);
    let top = module.split('.').next().filter(|top| !top.is_empty())?;
    if OWN.contains(&top) || !top.chars().next()?.is_ascii_alphabetic() && !top.starts_with('_') {
        return None;
    }
    let installer = seen.installer();
    let entity = Entity::new("python-module", module);
    if let Some((_, release, instead)) = REMOVED.iter().find(|(name, ..)| *name == top) {
        let mut entity = entity
            .meaning(format!(
                "Python {release} removed {top} from its own library, and a package still imports it: take a newer release of that package, or an older Python."
            ))
            .rank(3);
        if !instead.is_empty() {
            entity = entity.fix([installer.install(&[(*instead).to_owned()], None)]);
        }
        return Some(entity.fix(["uv venv --python 3.11"]));
    }
    let package = provider(module, seen.context.envs);
    let mut entity = entity.package(package.clone());
    if module.contains('.') {
        let importer = importer(seen, &package);
        entity.name_lookup = NameLookup::new(seen, &package, (module, None), importer.as_deref());
    }
    if compiled_module::names_one(module) {
        return Some(compiled_module::missing(seen, entity, &package, module));
    }
    match installed(seen, &package) {
        Some((env, dist)) if module.contains('.') => Some(
            entity
                .evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
                .meaning(format!(
                    "{package} {} is installed, and has no module {module}: another release has it, files of the package are missing, or a folder named {top} \
                     where the program starts hides it.",
                    dist.version
                ))
                .fix([
                    format!("{} --upgrade", installer.install(std::slice::from_ref(&package), None)),
                    format!("ls -d {top}"),
                    format!("firstlight doctor --venv {}", crate::remedy::quote(&env.root)),
                ])
                .confirmed(Some(true))
                .rank(3),
        ),
        Some((env, dist)) => Some(
            entity
                .evidence(format!("{} {} in {}", dist.name, dist.version, env.root), dist.path.clone())
                .meaning(format!(
                    "{package} {} is installed in {}: the Python that ran is another one, or the package's compiled module is missing.",
                    dist.version, env.root
                ))
                .fix([format!("{} -c 'import {top}'", installer.python()), "which -a python python3".into()])
                .confirmed(Some(false))
                .rank(3),
        ),
        // Python reports a whole path only if it found the packages on the way: a missing package is reported alone.
        None if module.contains('.') && seen.text.contains("No module named") => Some(
            entity
                .meaning(format!(
                    "Python found {top}, and no module {module} in it: the {package} that ran is older or newer than its importer expects, or incomplete."
                ))
                .causes(ages(seen, &package, importer(seen, &package).as_deref(), "the program", module))
                .rank(2),
        ),
        None => {
            let known = modules::is_known(module);
            let building = ["setup.py", "build_wheel", "Getting requirements to build wheel", "pyproject.toml"]
                .iter()
                .any(|words| seen.text.contains(words));
            let asked = seen.context.envs.iter().any(|env| env.found_by == "--venv");
            let mut words = format!("The Python that ran has no package with the module {top}");
            words.push_str(&match Dist::normalise(top) == package {
                true => ".".to_owned(),
                false => format!("; {package} provides it."),
            });
            let roots: Vec<String> = seen.context.envs.iter().map(|env| env.root.clone()).collect();
            let entity = roots.into_iter().fold(entity, |entity, root| entity.evidence(format!("no {package}"), root));
            let source = elsewhere(&package, &installer.python());
            if source.is_some() {
                words.push_str(&format!(" PyPI does not have this {package}: build it from its repository."));
            }
            let package_name = package.clone();
            let install = source.unwrap_or_else(|| installer.install(&[package], None).into());
            // A file of the user may have the name of an unrelated package on PyPI.
            let install = match known {
                true => install,
                false => format!("# if it is no file of yours: {install}"),
            };
            let python = installer.python();
            let mut causes = Vec::new();
            if building {
                causes.push(
                    Cause::new(format!(
                        "The build runs in isolation or before its requirements: {top} is installed for the environment, or not declared as a build requirement."
                    ))
                    .check([format!("{python} -c 'import {top}'  # works: this is the cause")])
                    .fix([format!("{python} -m pip install {top} ninja packaging wheel setuptools  # then the same install with --no-build-isolation")]),
                );
            }
            causes.push(Cause::new(format!("{top} is not installed.")).check([format!("{python} -m pip show {package_name}")]).fix([install]));
            causes.push(
                Cause::new("It is installed for another Python than the one that runs.")
                    .check(["which -a python python3 pip; python -m pip --version"])
                    .fix(["# python -m pip installs into the Python that runs it"]),
            );
            if !known {
                causes.push(
                    Cause::new(format!("{top} is a file or folder of your own project, which is not on the path of this Python."))
                        .check([format!("ls -d {top} {top}.py */{top} 2>/dev/null")])
                        .fix(["# start the program from the folder that has it, or set PYTHONPATH to that folder"]),
                );
            }
            if asked {
                causes.truncate(1 + usize::from(building));
            }
            Some(entity.meaning(words).causes(causes).confirmed(asked.then_some(true)).rank(2))
        }
    }
}

/// transformers wraps the import error of one of its modules.
fn failed(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let module = seen.word("module")?;
    let package = provider(module, seen.context.envs);
    Some(Entity::new("python-module", module).package(package))
}

/// transformers' lazy imports: the module that holds the class could not be imported.
fn could_not(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let name = seen.word("name")?;
    Some(
        Entity::new("python-name", name)
            .meaning(format!(
                "transformers found the class {name} and could not import the module that holds it: a package that this module imports fails. The first exception of \
                 the traceback names it; packages of another build of torch (torchvision, torchaudio, flash-attn) are the usual ones."
            ))
            .fix([format!("{} -c 'import torch, torchvision; import transformers'", seen.installer().python()), "firstlight doctor".into()])
            .package("transformers")
            .package("torchvision")
            .rank(2),
    )
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn missing_names_report_the_file_that_imports_them() {
        let mut env =
            env("/v").uv().dist("mamba-ssm", "2.2.2").dist("transformers", "5.24.0").build();
        env.missing_names.push(facts::MissingName {
            dist: Some("mamba-ssm".into()),
            at: "/v/lib/python3.12/site-packages/mamba_ssm/utils/generation.py:14".into(),
            module: "transformers.generation".into(),
            name: "GreedySearchDecoderOnlyOutput".into(),
            kind: facts::MissingKind::Name,
            provider: Some("transformers".into()),
            imports: vec!["mamba_ssm".into()],
            via: Vec::new(),
        });
        let text = "ImportError: cannot import name 'GreedySearchDecoderOnlyOutput' from 'transformers.generation' (/v/x.py)";
        let found = crate::explain_text(text, &machines::a10(), &[env], &[]);
        let entity = &found.entities[0];
        assert_eq!(entity.confirmed_here, Some(true));
        let evidence = format!("{:?}", entity.evidence);
        assert!(evidence.contains("mamba_ssm/utils/generation.py:14"), "{evidence}");
        assert!(entity.packages.iter().any(|name| name == "mamba-ssm"), "{:?}", entity.packages);
        assert!(
            entity.meaning.contains("transformers and mamba-ssm do not fit together"),
            "{}",
            entity.meaning
        );
    }
}
