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
    let Some(owner) = owner else {
        return of_driver(seen, "").or_else(|| without_owner(seen, symbol, path));
    };
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
    if let Some(library) = versioned_library(seen.text, symbol)
        && !owner.starts_with("nvidia-")
        && owner != "torch"
    {
        return Some(older_library(seen, entity, &owner, &shown, library));
    }
    if is_of_libstdcxx(symbol) {
        return Some(of_libstdcxx(seen, entity, &owner, &shown));
    }
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

/// A symbol of a file that belongs to no package that the text or the environments show.
fn without_owner(seen: &PastedError, symbol: &str, path: Option<&str>) -> Option<Entity> {
    // A program outside of Python has its own libraries.
    let file = path.and_then(|path| path.rsplit('/').next());
    let before_it = |word: &str| word.ends_with(':') && word.contains('/');
    let of_library = match file {
        Some(file) => file.contains(".so"),
        None => !seen.text.split_whitespace().any(before_it),
    };
    of_library.then_some(())?;
    let owner = file.unwrap_or("the file");
    let shown = words(symbol, None);
    let entity = Entity::new("symbol", symbol).rank(1);
    if let Some(library) = versioned_library(seen.text, symbol) {
        return Some(older_library(seen, entity, "the program", &shown, library));
    }
    // Rules cover torch's symbols.
    (!is_torch_symbol(symbol)).then_some(())?;
    if is_of_libstdcxx(symbol) {
        return Some(of_libstdcxx(seen, entity, owner, &shown).rank(2));
    }
    if let Some(library) = cuda_library_of(symbol) {
        return Some(
            entity
                .meaning(format!(
                    "{owner} calls {shown}, a function of CUDA's {library}, and no library that the process loaded has it."
                ))
                .causes([
                    Cause::new(format!("It was built without {library}: the build did not name it, or the linker did not find it, and left it to the process."))
                        .check([format!("readelf -d FILE.so | grep -E 'NEEDED.*{library}'  # no line: this is the cause")])
                        .fix([
                            "export CUDA_HOME=/usr/local/cuda LIBRARY_PATH=/usr/local/cuda/lib64:$LIBRARY_PATH LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH  # then build it again, in a newer release".to_owned(),
                            format!("LD_PRELOAD=/usr/local/cuda/lib64/{library}.so your_program  # shows whether the library is all that is absent"),
                        ]),
                    Cause::new(format!("Another release of {library} is loaded than it was built for."))
                        .check([format!("ldd FILE.so | grep {library}; echo \"$LD_LIBRARY_PATH\"")])
                        .fix(["# the release of the CUDA that it was built with, or build it again"]),
                ])
                .rank(2),
        );
    }
    Some(
        entity
            .meaning(format!(
                "{owner} calls {shown}, and none of the libraries that the process loaded has it: it was built for another release of the library that has the function, or \
                 built without that library."
            ))
            .causes([
                Cause::new("Another release of that library is loaded than it was built for, or an older copy first: LD_LIBRARY_PATH, conda, the system.")
                    .check([format!("ldd -r FILE.so 2>&1 | grep -E 'not found|{symbol}'; echo \"$LD_LIBRARY_PATH\"")])
                    .fix(["unset LD_LIBRARY_PATH", "# or the release of the file's package for the installed library: firstlight doctor"]),
                Cause::new("The build left out a source file or a library (-l), as where a part for CUDA was not compiled.")
                    .check([format!("nm -D --undefined-only FILE.so | c++filt | grep -n '{symbol}'")])
                    .fix(["# build it again from an empty build folder"]),
            ]),
    )
}

/// The CUDA library that the loader names after a symbol: `cublasLtX, version libcublasLt.so.13`.
fn versioned_library<'a>(text: &'a str, symbol: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(symbol)?;
    let name = rest.strip_prefix(", version ")?.split([' ', ',', ')', '\'']).next()?;
    crate::cuda_library::family(name).is_some().then_some(name)
}

/// A package calls a function that the loaded release of a CUDA library does not have.
fn older_library(
    seen: &PastedError,
    entity: Entity,
    owner: &str,
    shown: &str,
    library: &str,
) -> Entity {
    let installer = seen.installer();
    let package = crate::cuda_library::family(library).unwrap_or("cuda-runtime");
    let cuda = crate::cuda_library::cuda_of_library(library).unwrap_or(12);
    let dist = crate::cuda_library::distribution(package, cuda);
    entity
        .meaning(format!(
            "A file of {owner} calls {shown} of {library}, and the {library} that the process loaded does not have it: that one is older than the release that {owner} was \
             built with."
        ))
        .causes([
            Cause::new(format!("The installed {dist} is older than {owner} needs; torch pins an older one, or {owner} was upgraded alone."))
                .check([format!("{} -m pip list | grep -iE 'nvidia|torch'", installer.python())])
                .fix([String::from(installer.install(std::slice::from_ref(&dist), None).upgraded()), format!("# or the release of {owner} for the installed torch")]),
            Cause::new("An older copy is loaded first: LD_LIBRARY_PATH, conda or the system's CUDA before the environment's.")
                .check([format!("echo \"$LD_LIBRARY_PATH\"; ldconfig -p | grep {library}  # and once with: env -u LD_LIBRARY_PATH")])
                .fix(["unset LD_LIBRARY_PATH"]),
        ])
        .package(dist)
        .rank(4)
}

/// The CUDA library that a C function belongs to, by the beginning of its name.
fn cuda_library_of(symbol: &str) -> Option<&'static str> {
    [
        ("cublasLt", "libcublasLt"),
        ("cublas", "libcublas"),
        ("cudnn", "libcudnn"),
        ("cufft", "libcufft"),
        ("curand", "libcurand"),
        ("cusolver", "libcusolver"),
        ("cusparse", "libcusparse"),
        ("nccl", "libnccl"),
        ("nvrtc", "libnvrtc"),
    ]
    .iter()
    .find(|(begin, _)| symbol.starts_with(begin))
    .map(|(_, library)| *library)
}

/// Whether a mangled symbol is a function of the C++ standard library.
fn is_of_libstdcxx(symbol: &str) -> bool {
    ["_ZNSt", "_ZNKSt", "_ZSt", "_ZTVNSt", "_ZTINSt", "_ZTISt", "_ZTVSt"]
        .iter()
        .any(|prefix| symbol.starts_with(prefix))
}

/// A function of the C++ standard library that the loaded libstdc++ does not have.
fn of_libstdcxx(seen: &PastedError, entity: Entity, owner: &str, shown: &str) -> Entity {
    let installer = seen.installer();
    let filesystem = shown.contains("filesystem");
    // An owner that is not a package is a file.
    let rebuild = match crate::explain::modules::is_distribution(seen, owner) {
        true => String::from(installer.build(&[owner])),
        false => "# build its source again, from an empty build folder".to_owned(),
    };
    let mut causes = vec![
        Cause::new(format!("{owner} was compiled by a newer g++ than the one whose libstdc++ the process loads: conda's, an old system's, or one on LD_LIBRARY_PATH."))
            .check(["ldconfig -p | grep libstdc++; echo \"$LD_LIBRARY_PATH $CONDA_PREFIX\"; g++ --version"])
            .fix([String::from(installer.conda(&["libstdcxx-ng".into()])), "# outside of conda: unset LD_LIBRARY_PATH, or a newer system image".to_owned()]),
        Cause::new(format!("{owner} was compiled here by another compiler than its libraries."))
            .check(["which -a g++ c++ x86_64-conda-linux-gnu-c++; echo \"$CC $CXX\""])
            .fix([rebuild.clone()]),
    ];
    if filesystem {
        causes.insert(0, Cause::new("It was compiled by GCC 8, which has std::filesystem in a separate library (libstdc++fs).")
            .check(["g++ --version"])
            .fix(["# build it with GCC 9 or newer, or link it with -lstdc++fs:".to_owned(), rebuild]));
    }
    entity
        .meaning(format!(
            "A file of {owner} calls {shown}, a function of the C++ standard library (libstdc++), which the libstdc++ of the process does not have."
        ))
        .causes(causes)
        .rank(3)
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
