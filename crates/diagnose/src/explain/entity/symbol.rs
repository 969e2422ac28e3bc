//! Undefined symbols: the file that lacks one, the package that owns the file, and the library that has it.

use super::super::cause::Cause;
use super::{Entity, Form, form};
use crate::abi::{is_torch_symbol, words};
use crate::explain::modules::{installed, provider};
use crate::extension::has_source;
use crate::host;
use crate::rules::PastedError;
use facts::{MissingSymbol, NativeFile};

pub(super) fn forms() -> Vec<Form> {
    vec![
        form("{file}: undefined symbol: {symbol}", read),
        form("undefined symbol: {symbol}", read),
        form("{file}: cannot open shared object file: undefined symbol", read),
        form("Symbol not found: {symbol}", read),
        form("symbol lookup for {symbol} failed", of_driver),
    ]
}

/// A function that a program looks up in the driver's library.
fn of_driver(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let symbol = seen.word("symbol")?;
    is_driver_symbol(symbol).then(|| driver_lacks(seen, symbol, symbol, None))
}

/// The driver's library has no function of this name. `owner` is the package whose file calls it.
fn driver_lacks(seen: &PastedError, symbol: &str, shown: &str, owner: Option<&str>) -> Entity {
    let (file, who) = match owner {
        Some(owner) => (format!("A file of {owner}"), owner),
        None => ("The program".to_owned(), "the program"),
    };
    let why = format!(
        "{file} calls {shown}, a function of the driver's own library (libcuda). Each driver release has the \
         functions of its CUDA release and of those before: this driver is older than the CUDA that {who} was built with."
    );
    let mut lines = vec!["firstlight doctor  # the driver and the CUDA it runs".to_owned()];
    lines.extend(host::update_driver(seen.machine(), NEWEST_BRANCH));
    lines.push(format!("# or a release of {who} that was built with an older CUDA"));
    Entity::new("symbol", symbol).meaning(why).fix(lines).rank(4)
}

fn read(seen: &PastedError, _: &'static str) -> Option<Entity> {
    let symbol = seen.word("symbol")?.trim_end_matches(['.', ',', ')']);
    let path = seen
        .word("file")
        .map(|file| file.trim_start_matches("ImportError:").trim_start_matches("OSError:"));
    let files = || {
        seen.context
            .envs
            .iter()
            .flat_map(|env| env.native_files.iter().map(move |file| (env, file)))
    };
    let lacks = |file: &NativeFile| -> Option<MissingSymbol> {
        file.elf.as_ref()?.missing_symbols.iter().find(|missing| missing.symbol == symbol).cloned()
    };
    let same = |file: &NativeFile| {
        path.is_some_and(|path| file.path == path || ends_alike(&file.path, path))
    };
    let here = files()
        .find(|(_, file)| same(file))
        .or_else(|| files().find(|(_, file)| lacks(file).is_some()));
    let missing = here.and_then(|(_, file)| lacks(file));
    let in_packages = path
        .and_then(|path| path.split_once("-packages/"))
        .map(|(_, rest)| rest.split(['/', '.']).next().unwrap_or(rest));
    let by_path = in_packages.map(|top| provider(top, seen.context.envs));
    let owner = here.and_then(|(_, file)| file.dist.clone()).or(by_path);
    let Some(owner) = owner else { return of_driver(seen, "") };
    let shown = words(symbol, missing.as_ref().and_then(|missing| missing.demangled.as_deref()));
    let of_torch = is_torch_symbol(symbol);
    let mut entity = Entity::new("symbol", symbol).package(owner.clone()).rank(2);
    if let Some((_, file)) = here {
        entity = entity.evidence(format!("{} belongs to {owner}", file.name()), file.path.clone());
    }
    if let Some(missing) = &missing {
        entity = entity.evidence(
            format!("no library here exports {shown}"),
            here.map_or(String::new(), |(_, file)| file.path.clone()),
        );
        for instead in &missing.instead {
            entity = entity.evidence(format!("there is {}", instead.symbol), instead.path.clone());
        }
        entity = entity.confirmed(Some(true));
    } else if here.is_some() {
        entity = entity.confirmed(Some(false));
    }
    for name in [owner.as_str(), "torch"] {
        if let Some((_, dist)) = installed(seen, name).filter(|_| name == owner || of_torch) {
            entity = entity.evidence(format!("{} {}", dist.name, dist.version), dist.path.clone());
        }
    }
    let installer = seen.installer();
    if is_driver_symbol(symbol) {
        let lacks = driver_lacks(seen, symbol, &shown, Some(&owner));
        return Some(entity.meaning(lacks.meaning).fix(lacks.fix));
    }
    if owner == "torch" {
        let why = format!(
            "A file of torch itself calls {shown}, which the torch libraries of the process do not have: they are of different builds."
        );
        return Some(entity.meaning(why).causes([
            Cause::new("Files of an earlier torch remain, or two packages (pip and conda, libtorch) own torch's files.")
                .check([format!("find / -name 'libtorch*.so*' -o -name 'libc10*.so*' 2>/dev/null; {} -m pip list | grep -i torch; conda list 2>/dev/null | grep -i torch", installer.python())])
                .fix([format!("{} # until none is left, then install it once", String::from(installer.uninstall(&["torch"])))]),
            Cause::new("LD_LIBRARY_PATH puts another build of torch or of a library that it needs first.")
                .check(["echo \"$LD_LIBRARY_PATH\"; env -u LD_LIBRARY_PATH python -c 'import torch'  # works so: this is the cause"])
                .fix(["unset LD_LIBRARY_PATH"]),
            Cause::new("torch was built here over the files of an earlier build.")
                .check(["# python setup.py install or develop ran in a checkout with a build folder"])
                .fix(["rm -rf build torch/lib/build && python setup.py clean  # then build again"]),
        ]));
    }
    let why = match of_torch {
        true => format!(
            "{owner} was compiled for another release of torch than the one that is loaded: {shown} is a function of torch."
        ),
        false => format!(
            "A file of {owner} calls {shown}, and no library that the process loaded has it: it was built for another release of that library."
        ),
    };
    let fix = match (of_torch, has_source(&owner)) {
        (true, true) => vec![
            format!(
                "# the release of {owner} that is built for the installed torch; where none is published, build it here:"
            ),
            installer.build(&[&owner]).into(),
        ],
        (true, false) => vec![
            format!(
                "# {owner} has no source distribution: take its release for this torch, or the torch that its release names"
            ),
            format!("{} -m pip index versions {owner}", installer.python()),
            format!("{} -m pip show {owner} torch", installer.python()),
        ],
        (false, _) if missing.is_some() => vec![installer.reinstall(&[&owner]).into()],
        (false, _) => {
            entity = entity.causes([
                Cause::new(format!("{owner} was built for another release of the library that has it."))
                    .check([format!("{} -m pip show {owner} | grep -E '^(Version|Requires)'", installer.python()), "firstlight doctor".to_owned()])
                    .fix([String::from(installer.reinstall(&[&owner]))]),
                Cause::new("Another copy of that library is loaded first: LD_LIBRARY_PATH, conda or the system before the environment's.")
                    .check(["echo \"$LD_LIBRARY_PATH\"; LD_DEBUG=libs python -c 'import NAME' 2>&1 | grep -E 'calling init|trying file' | tail -40".to_owned()])
                    .fix(["unset LD_LIBRARY_PATH"]),
            ]);
            Vec::new()
        }
    };
    Some(entity.meaning(why).fix(fix))
}

/// The driver branch of the newest CUDA major version.
const NEWEST_BRANCH: u32 = 580;

/// Whether a symbol belongs to the driver's library: `cuGreenCtxDestroy`, unlike `cudaMalloc` and `cublasCreate_v2`.
fn is_driver_symbol(symbol: &str) -> bool {
    symbol.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// Whether two paths name the same file of site-packages, in any environment folder.
fn ends_alike(one: &str, other: &str) -> bool {
    let tail = |path: &str| path.split_once("-packages/").map(|(_, rest)| rest.to_owned());
    matches!((tail(one), tail(other)), (Some(one), Some(other)) if one == other)
}
