//! Releases of two packages that do not fit, according to the text.

use super::{Entity, Form, form};
use crate::explain::cause::Cause;
use crate::explain::modules::{installed, provider, version_in};
use crate::rules::PastedError;
use facts::Dist;

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("{one} version ({a}) does not match {other} version ({b})", siblings),
        form("{one} version {a} does not match {other} version {b}", siblings),
        form("{one} version mismatch: {a} vs {b}", siblings),
        form(
            "{wanted} is required for a normal functioning of this module, but found {found}",
            wanted,
        ),
        form("{one} requires {other}>={least}, but {other2}=={b} is installed", least),
        form("Please install {wanted} via", install),
        form("Please install {wanted} with 'pip install", install),
        form("Run 'pip install {wanted}'", install),
        form("Please run 'pip install {wanted}'", install),
        form("Requires {one} version {range} but got {b}", range),
        form("{one} needs NumPy {most} or less. Got NumPy {b}", most),
        form("{one} requires {other} version >= {least}", least),
        form("{one} requires {other} >= {least}", least_known),
        form("{one} requires {other}>={least}", least_known),
        form("{one} needs {other} >= {least}", least_known),
        form("{one} requires at least {other} {least}", least_known),
        form("please install '{wanted}'", install),
        form("'pip install {wanted}'", install),
        form("'pip install -U {wanted}'", install),
        form("'pip install --upgrade {wanted}'", install),
        form("{other}>={least} is required", least),
        form("incompatible torch version {b} for {one} version {a}", pair),
        form("{one} was built for: PyTorch {a} with CUDA", built_for),
        form("{one} was built for: PyTorch {a}", built_for),
        form("{one} can't load C++/CUDA extensions", cannot_load),
        form("Using a `{kind}` quantization requires the latest version of {one}", latest),
        form("requires the latest version of {one}", latest),
    ]
}

/// The distribution that words such as `flashinfer` or `xFormers` mean.
fn dist_of(seen: &PastedError, word: &str) -> String {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    match installed(seen, word) {
        Some((_, dist)) => Dist::normalise(&dist.name),
        None => match Dist::normalise(word).as_str() {
            "pytorch" => "torch".into(),
            "flash-attention" => "flash-attn".into(),
            _ => provider(&word.replace('-', "_").to_ascii_lowercase(), seen.context.envs),
        },
    }
}

fn with_installed(mut entity: Entity, seen: &PastedError, names: &[&str]) -> Entity {
    for name in names {
        if let Some((_, dist)) = installed(seen, name) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
        entity = entity.package(*name);
    }
    entity
}

/// Two packages of one project that must have the same release.
fn siblings(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let one = seen.word("one")?;
    let other = seen.word("other").unwrap_or(one);
    let (a, b) = (seen.word("a")?, seen.word("b")?);
    [a, b].iter().all(|word| word.starts_with(|c: char| c.is_ascii_digit())).then_some(())?;
    let (one, other) = (dist_of(seen, one), dist_of(seen, other));
    let installer = seen.installer();
    let version = b.trim_end_matches(['.', ',']);
    let entity = Entity::new("package-versions", format!("{one} {a}, {other} {version}"))
        .meaning(format!(
            "{one} and {other} belong to one project and have to be of one release; {one} is of {a} and {other} of {version}. An upgrade took one of them alone. Install \
             both at one version, or remove {one} if nothing requires it."
        ))
        .fix([
            installer.install(&[format!("{one}=={version}"), format!("{other}=={version}")], None),
            "# or, where it is an optional part such as precompiled kernels:".into(),
            installer.uninstall(&[&one]),
        ])
        .rank(4);
    let differ = [&one, &other]
        .iter()
        .filter_map(|name| installed(seen, name))
        .map(|(_, dist)| &dist.version)
        .collect::<Vec<_>>();
    let confirmed = (differ.len() == 2).then(|| differ[0] != differ[1]);
    Some(with_installed(entity, seen, &[&one, &other]).confirmed(confirmed))
}

/// transformers' check of its requirements: `tokenizers>=0.22,<0.23 is required ..., but found tokenizers==0.19.1`.
fn wanted(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let wanted = seen.word("wanted")?;
    // A word at the end of a pattern does not include the version.
    let found = seen.text.split_once("but found ").map(|(_, rest)| rest);
    let found = found.and_then(|rest| rest.split([' ', ',']).next())?.trim_end_matches('.');
    let name = wanted.split(['>', '<', '=', '!', '~']).next().filter(|name| !name.is_empty())?;
    let entity = Entity::new("package-versions", wanted)
        .meaning(format!("A package checks its requirements when it is imported: it needs {wanted}, and {found} is installed."))
        .fix([seen.installer().install(&[wanted.to_owned()], None)])
        .rank(4);
    Some(with_installed(entity, seen, &[&Dist::normalise(name)]))
}

/// `Numba needs NumPy 2.2 or less. Got NumPy 2.3.`
fn most(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let (one, other) = (dist_of(seen, seen.word("one")?), "numpy");
    let (most, got) = (seen.word("most")?, seen.word("b")?.trim_end_matches('.'));
    let above = next(most);
    let installer = seen.installer();
    let entity = Entity::new("package-versions", format!("{one}, {other} {got}"))
        .meaning(format!(
            "The installed {one} supports {other} up to {most}, and {other} {got} is installed. Take an older {other}, or a newer {one} that supports it."
        ))
        .fix([
            installer.install(&[format!("{other}<{above}")], None),
            "# or:".into(),
            format!("{} --upgrade", installer.install(std::slice::from_ref(&one), None)).into(),
        ])
        .rank(4);
    Some(with_installed(entity, seen, &[&one, other]))
}

/// The first minor release after `2.2`: `2.3`.
fn next(version: &str) -> String {
    match knowledge::minor_of(version) {
        Some((major, minor)) => format!("{major}.{}", minor + 1),
        None => version.to_owned(),
    }
}

/// `Please install bitsandbytes>=0.44.0 via`: a package did not find another one in a release that it accepts.
fn install(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let wanted = seen.word("wanted")?.trim_end_matches(['.', ',', '\'']);
    let name = wanted.split(['>', '<', '=', '!', '~', '[']).next().filter(|name| name.len() > 1)?;
    let letters = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic()) && name.chars().all(letters);
    (is_name && crate::explain::modules::is_distribution(seen, name)).then_some(())?;
    let installer = seen.installer();
    let python = installer.python();
    let entity = Entity::new("package-versions", wanted)
        .meaning(format!("A package needs {wanted} and did not find it."))
        .causes([
            Cause::new(format!("{name} is not installed, or an older one than {wanted}."))
                .check([format!("{python} -m pip show {name} | grep -E '^(Name|Version)'")])
                .fix([String::from(installer.install(&[wanted.to_owned()], None))]),
            Cause::new(format!(
                "{name} is installed, and its import fails, or another Python runs."
            ))
            .check([format!(
                "{python} -c 'import {}'; which -a python python3",
                name.replace('-', "_")
            )]),
        ])
        .rank(3);
    Some(with_installed(entity, seen, &[&Dist::normalise(name)]))
}

/// `Requires Flash-Attention version >=2.7.1,<=2.7.4 but got 2.8.0.post2.`
fn range(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let one = dist_of(seen, seen.word("one")?);
    let (range, got) = (seen.word("range")?, seen.word("b")?.trim_end_matches(['.', ',']));
    let caller = crate::explain::modules::frames(seen.text)
        .last()
        .map(|top| provider(top, seen.context.envs));
    // xformers names flash-attn in this way when it is imported.
    let caller = caller
        .filter(|caller| *caller != one)
        .or_else(|| (one == "flash-attn").then(|| "xformers".to_owned()));
    let who = caller.clone().unwrap_or_else(|| "A package that imports it".to_owned());
    let installer = seen.installer();
    let entity = Entity::new("package-versions", format!("{one} {got}"))
        .meaning(format!("{who} takes {one} {range}, and {one} {got} is installed."))
        .causes([
            Cause::new(format!(
                "The importing package is older than {one} {got} and does not know it yet."
            ))
            .check([format!(
                "{} -m pip index versions {}",
                installer.python(),
                caller.as_deref().unwrap_or("PACKAGE")
            )])
            .fix(caller.iter().map(|caller| {
                String::from(installer.install(std::slice::from_ref(caller), None).upgraded())
            })),
            Cause::new(format!(
                "{one} was upgraded, or built, beyond what the installed packages take."
            ))
            .check([format!("{} -m pip check", installer.python())])
            .fix([String::from(installer.install(&[format!("{one}{range}")], None))]),
        ])
        .rank(4);
    Some(with_installed(entity, seen, &[&one]))
}

/// The least release of a library of the tables that another one names.
fn least_known(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let word = seen.word("other")?.to_ascii_lowercase();
    let known = word == "pytorch" || crate::explain::modules::is_known(&word.replace('-', "_"));
    let mut entity = known.then(|| least(seen, ""))??;
    if entity.packages.iter().any(|name| name == "torch") {
        entity.meaning.push_str(
            " A pre-release, such as the 2.1.0a0 of NVIDIA's containers, counts as older than its release.",
        );
    }
    Some(entity)
}

fn least(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let other = dist_of(seen, seen.word("other")?);
    let least = seen.word("least")?.trim_end_matches(['.', ',']);
    let python = other == "python" || other == "python3";
    (least.starts_with(|c: char| c.is_ascii_digit()) && !python).then_some(())?;
    let entity = Entity::new("package-versions", format!("{other}>={least}"))
        .meaning(format!(
            "A package needs {other} {least} or newer, and an older one or none is installed."
        ))
        .fix([seen.installer().install(&[format!("{other}>={least}")], None)])
        .rank(3);
    Some(with_installed(entity, seen, &[&other]))
}

/// `Skipping import of cpp extensions due to incompatible torch version 2.15.0 for torchao version 0.14.0`.
fn pair(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let one = dist_of(seen, seen.word("one")?);
    let (a, b) = (seen.word("a")?, seen.word("b")?);
    let entity = Entity::new("package-versions", format!("{one} {a}, torch {b}"))
        .meaning(format!(
            "{one} {a} was compiled for other releases of torch than {b}, notices it and leaves its compiled functions out. It is a notice: {one} works, its functions in \
             Python do, and what needs the compiled ones fails or is slower. The release of {one} that names this torch has them."
        ))
        .fix([
            format!("{} --upgrade", seen.installer().install(std::slice::from_ref(&one), None)),
        ])
        .rank(4);
    Some(with_installed(entity, seen, &[&one, "torch"]))
}

fn built_for(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let one = dist_of(seen, seen.word("one")?);
    let built = seen.word("a")?;
    let have = seen.text.find("you have ").map(|at| &seen.text[at + 9..]);
    let have = have.and_then(|rest| rest.split([')', ' ', ',']).next()).unwrap_or("another");
    if have.ends_with("+cpu") {
        let (release, label) = built.split_once('+').unwrap_or((built, ""));
        let spec = [format!("torch=={release}")];
        let install = match label.starts_with("cu") {
            true => seen
                .installer()
                .install_from(&spec, &format!("https://download.pytorch.org/whl/{label}")),
            false => seen.installer().install(&spec, None),
        };
        let entity = Entity::new("package-versions", format!("torch {have} is built for the CPU"))
            .meaning(format!(
                "The installed torch {have} is the CPU build, which uses no GPU, and {one} was compiled for torch {built}. Install the CUDA build of that torch release; \
                 the CUDA toolkit of the system is not used."
            ))
            .fix([
                install.into(),
                format!("{} -c 'import torch; print(torch.version.cuda)'", seen.installer().python()),
            ])
            .rank(5);
        return Some(with_installed(entity, seen, &[&one, "torch"]));
    }
    let entity = Entity::new("package-versions", format!("{one} built for torch {built}"))
        .meaning(format!(
            "{one} was compiled for torch {built}, and torch {have} is installed: its compiled functions cannot be loaded. Each release of {one} goes with one torch; install \
             the one that requires the installed torch, or leave {one} out."
        ))
        .fix([
            format!("{} --upgrade  # takes the torch that it requires along", seen.installer().install(std::slice::from_ref(&one), None)),
            format!("# {one} is optional for most programs:"),
            seen.installer().uninstall(&[&one]).into(),
        ])
        .rank(5);
    Some(with_installed(entity, seen, &[&one, "torch"]))
}

fn cannot_load(seen: &PastedError, _: &'static str) -> Option<Entity> {
    // The line that names the torch of the build has more facts.
    if seen.text.contains("was built for: PyTorch") {
        return built_for(
            &PastedError {
                context: seen.context,
                text: seen.text,
                words: vec![
                    ("one".into(), seen.word("one")?.to_owned()),
                    ("a".into(), version_in(seen.text, "for: pytorch")?),
                ],
            },
            "",
        );
    }
    let one = dist_of(seen, seen.word("one")?);
    let entity = Entity::new("package-versions", one.clone())
        .meaning(format!(
            "The compiled files of {one} were built for another torch or another CUDA release than those installed. Install the release of {one} that goes with the \
             installed torch."
        ))
        .fix([format!("{} --upgrade", seen.installer().install(std::slice::from_ref(&one), None)), "firstlight doctor".into()])
        .rank(4);
    Some(with_installed(entity, seen, &[&one, "torch"]))
}

fn latest(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let one = dist_of(seen, seen.word("one")?);
    let entity = Entity::new("package-versions", one.clone())
        .meaning(format!(
            "transformers did not find a usable {one}: it is not installed, too old, or its import fails (its CUDA library is missing). A version that is new enough and still \
             refused fails to import."
        ))
        .fix([
            format!("{} --upgrade", seen.installer().install(std::slice::from_ref(&one), None)),
            format!("{} -c 'import {}'", seen.installer().python(), one.replace('-', "_")),
        ])
        .rank(3);
    Some(with_installed(entity, seen, &[&one]))
}
