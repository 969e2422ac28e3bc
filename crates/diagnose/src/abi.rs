//! Extensions compiled against a torch other than the installed one, recognized by their undefined symbols.

use crate::data::torch_symbols;
use crate::extension::{EXTENSIONS, has_source, wheel_for_torch, wheel_label};
use crate::native::{Native, by_owner};
use crate::remedy::{Installer, quote};
use crate::requirement;
use crate::rules::{Context, Rule};
use crate::torch_build::{by_conda, installed};
use facts::CompactSort;
use facts::{Confidence, Dist, Finding, Machine, MissingSymbol, RemedyStep, Severity};

/// The difference between the torch that an extension was built for and the installed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// The extension has the new C++ ABI (`std::__cxx11::string`), torch the old.
    NewAbi,
    /// The extension has the old C++ ABI, torch the new.
    OldAbi,
    /// `c10::optional` on one side, `std::optional` on the other.
    Optional,
    /// Another signature of `c10::cuda::SetDevice`.
    SetDevice,
    /// Any other symbol that torch does not export.
    Other,
}

/// The findings of one kind of mismatch, one per package.
pub(crate) fn findings(
    rule: &Rule,
    context: &Context,
    wanted: Mismatch,
    cause: &str,
) -> Vec<Finding> {
    let lacks = |native: &Native<'_>| {
        let lacking = !native.is_torch() && !symbols(native).is_empty();
        // A package that ships one build per torch loads the build that fits.
        lacking
            && !native.is_left_to_choice()
            && !native.has_sibling(|other| other.elf.missing_symbols_total == 0)
    };
    context
        .envs
        .iter()
        .flat_map(|env| by_owner(env, lacks))
        .filter(|group| mismatch(group) == wanted)
        .map(|group| finding(rule, context.machine, &group, wanted, cause))
        .collect()
}

/// The missing symbols of a file that only torch's libraries can export; empty if the file loads no torch library.
fn symbols<'a>(native: &Native<'a>) -> Vec<&'a MissingSymbol> {
    // Without a loaded torch library, its exports are unknown.
    let loaded = |name: &str| {
        native
            .elf
            .needed
            .iter()
            .any(|needed| needed.name.starts_with(name) && needed.path.is_some())
    };
    let torch = loaded("libc10") || loaded("libtorch");
    let symbols = native.elf.missing_symbols.iter();
    symbols.filter(|symbol| torch && is_torch_symbol(&symbol.symbol)).collect()
}

/// Whether a symbol can only come from torch's libraries.
pub(crate) fn is_torch_symbol(symbol: &str) -> bool {
    let rest = ["_ZNK", "_ZN", "_ZTIN", "_ZTVN", "_ZTSN", "_ZGVN"]
        .iter()
        .find_map(|prefix| symbol.strip_prefix(prefix));
    let scoped = |rest: &str| {
        ["3c10", "2at", "5torch", "6caffe2", "4c10d"].iter().any(|scope| rest.starts_with(scope))
    };
    // The stable interface is C: `torch_call_dispatcher`, `aoti_torch_empty_strided`.
    rest.is_some_and(scoped) || symbol.starts_with("torch_") || symbol.starts_with("aoti_torch_")
}

fn mismatch(group: &[Native<'_>]) -> Mismatch {
    let all: Vec<&MissingSymbol> = group.iter().flat_map(symbols).collect();
    // Only a similar exported symbol of the other ABI proves an ABI mismatch: a removed function may take strings too.
    let abi = all.iter().find_map(|symbol| {
        let own = is_new_abi(&symbol.symbol)?;
        let theirs = symbol.instead.iter().find_map(|exported| is_new_abi(&exported.symbol))?;
        let same = symbol.instead.iter().any(|e| is_new_abi(&e.symbol) == Some(own));
        (own != theirs && !same).then_some(own)
    });
    match abi {
        Some(true) => return Mismatch::NewAbi,
        Some(false) => return Mismatch::OldAbi,
        None => {}
    }
    let optional = |symbol: &MissingSymbol| {
        let (old, new) = ("N3c108optionalI", "St8optionalI");
        let other = |own: &str, theirs: &str| {
            symbol.symbol.contains(own)
                && symbol.instead.iter().any(|exported| exported.symbol.contains(theirs))
        };
        other(old, new) || other(new, old)
    };
    if all.iter().any(|symbol| optional(symbol)) {
        Mismatch::Optional
    } else if all.iter().any(|symbol| symbol.symbol.starts_with("_ZN3c104cuda9SetDeviceE")) {
        Mismatch::SetDevice
    } else {
        Mismatch::Other
    }
}

/// The C++ ABI of the strings in a symbol: `true` for new (`__cxx11`), `false` for old (`Ss`), `None` without strings.
fn is_new_abi(symbol: &str) -> Option<bool> {
    if symbol.contains("__cxx11") || symbol.contains("B5cxx11") {
        return Some(true);
    }
    // `Ss` is the old std::string only where a type is possible: after the end of a scope, another type or a qualifier.
    let string = |(at, _): (usize, &str)| {
        symbol[..at].ends_with(|c: char| "EKRPO_IJSabcdefhijlmstvwxy".contains(c))
    };
    symbol.match_indices("Ss").any(string).then_some(false)
}

fn finding(
    rule: &Rule,
    machine: &Machine,
    group: &[Native<'_>],
    kind: Mismatch,
    cause: &str,
) -> Finding {
    let first = &group[0];
    let torch = installed(first.env);
    let version = torch.as_ref().map_or("torch", |torch| torch.torch.version.as_str());
    let what = format!("{} in {}", first.label(), first.env.root);
    let title = match kind {
        Mismatch::NewAbi => {
            format!("{what} was built for the new C++ ABI; torch {version} has the old one")
        }
        Mismatch::OldAbi => {
            format!("{what} was built for the old C++ ABI; torch {version} has the new one")
        }
        _ => format!("{what} was built for another torch than the installed {version}"),
    };
    let opened = group.iter().any(Native::is_opened);
    let severity = if opened { Severity::Error } else { Severity::Warning };
    let mut draft = rule.finding(severity, Confidence::Certain, title);
    // The symbols that prove the mismatch come first.
    let mut lines: Vec<(&Native<'_>, &MissingSymbol)> = group
        .iter()
        .flat_map(|native| symbols(native).into_iter().map(move |symbol| (native, symbol)))
        .collect();
    lines.compact_sort_by_key(|(_, symbol)| !proves(symbol, kind));
    for (native, symbol) in lines.iter().take(2) {
        let words = words(&symbol.symbol, symbol.demangled.as_deref());
        draft = draft.evidence(format!("needs {words}"), native.file.path.clone());
        if let Some(exported) = symbol.instead.first() {
            let words = self::words(&exported.symbol, exported.demangled.as_deref());
            draft = draft.evidence(format!("exports {words} instead"), exported.path.clone());
        }
        if let Some(row) = torch_symbols::exporters(&symbol.symbol) {
            draft = draft
                .evidence(format!("it is in {}", row.words()), torch_symbols::SOURCE.to_string());
        }
    }
    let total: u32 = group.iter().map(|native| native.elf.missing_symbols_total).sum();
    if total as usize > lines.len().min(2) {
        draft = draft.evidence(
            format!("{total} symbols that no library exports, in {} files", group.len()),
            first.file.path.clone(),
        );
    }
    if let Some(torch) = &torch {
        draft =
            draft.evidence(format!("torch {}", torch.torch.version), torch.torch.source.clone());
    }
    draft.cause(cause).fix(match_torch(machine, first)).finish()
}

fn proves(symbol: &MissingSymbol, kind: Mismatch) -> bool {
    match kind {
        Mismatch::NewAbi => is_new_abi(&symbol.symbol) == Some(true) && !symbol.instead.is_empty(),
        Mismatch::OldAbi => is_new_abi(&symbol.symbol) == Some(false) && !symbol.instead.is_empty(),
        Mismatch::SetDevice => symbol.symbol.starts_with("_ZN3c104cuda9SetDeviceE"),
        Mismatch::Optional => symbol.symbol.contains("optionalI"),
        Mismatch::Other => !symbol.instead.is_empty(),
    }
}

/// A symbol as evidence prints it: the demangled C++ name, then the mangled symbol in brackets.
pub(crate) fn words(symbol: &str, demangled: Option<&str>) -> String {
    const STRING: &str =
        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
    match demangled {
        Some(name) => format!("{} [{symbol}]", name.replace(STRING, "std::__cxx11::string")),
        None => symbol.to_owned(),
    }
}

/// Steps that replace a package by its build for the installed torch: with conda if conda installed it, else the
/// release whose metadata pins this torch, else a published wheel, else a build from source.
pub(crate) fn match_torch(machine: &Machine, native: &Native<'_>) -> Vec<RemedyStep> {
    let installer = Installer::of(native.env);
    let (Some(dist), Some(torch)) = (native.owner(), installed(native.env)) else {
        return vec![
            "# it belongs to no installed package: rebuild it against the torch here, or remove it:".into(),
            format!("rm {}", quote(&native.file.path)).into(),
        ];
    };
    let name = Dist::normalise(&dist.name);
    if by_conda(dist) {
        return vec![installer.conda(&[name])];
    }
    let requirements = dist.requires.iter().filter_map(|line| requirement::parse(line));
    let bound = requirements
        .filter(|requirement| requirement.name == "torch")
        .any(|requirement| requirement.constraint().starts_with("=="));
    if bound {
        let torch = format!("torch=={}", torch.version.public());
        return vec![
            format!(
                "# each release of {name} is built for one torch; this takes the one for {torch}:"
            )
            .into(),
            installer.uninstall(&[&name]),
            installer.install(&[name, torch], None),
        ];
    }
    if !has_source(&name) {
        return wheel_for_torch(&installer, Some(native.env), &name);
    }
    let known = EXTENSIONS.iter().any(|row| row.package == name);
    let label = wheel_label(machine, native.env).filter(|_| known);
    let mut lines: Vec<RemedyStep> = label
        .map(|label| {
            format!("# a published wheel fits only when its name has {label}; else build it here:")
                .into()
        })
        .into_iter()
        .collect();
    lines.extend(installer.stand_in(&name).map(RemedyStep::from));
    lines.extend(build_here(native));
    lines
}

/// The step that builds a file's package from source against the installed torch, or reinstalls it with conda if conda
/// installed it; `None` for a file without a package.
pub(crate) fn build_here(native: &Native<'_>) -> Option<RemedyStep> {
    build(native)
}

/// The steps that build a file's package for one architecture in the syntax of `TORCH_CUDA_ARCH_LIST`.
pub(crate) fn build_for(native: &Native<'_>, architecture: &str) -> Vec<RemedyStep> {
    // ffpa-attn compiles its Hopper kernels only if this variable is set.
    let hopper = native.owner_name().as_deref() == Some("ffpa-attn") && architecture == "9.0";
    match build(native) {
        Some(step) => {
            let step = if hopper { step.with_variable("ENABLE_FFPA_HOPPER", "1") } else { step };
            vec![step.with_variable("TORCH_CUDA_ARCH_LIST", architecture)]
        }
        None => vec![
            format!(
                "# it belongs to no installed package: rebuild it for {architecture}, or remove it:"
            )
            .into(),
            format!("rm {}", quote(&native.file.path)).into(),
        ],
    }
}

fn build(native: &Native<'_>) -> Option<RemedyStep> {
    let dist = native.owner()?;
    let name = Dist::normalise(&dist.name);
    let installer = Installer::of(native.env);
    if by_conda(dist) {
        return Some(installer.conda(&[name]));
    }
    let known = EXTENSIONS.iter().find(|row| row.package == name);
    let public = dist.version.split('+').next().unwrap_or(&dist.version);
    let step = installer.build(&[&format!("{name}=={public}")]);
    Some(match known.and_then(|row| row.force) {
        Some(force) => step.with_variable(force, "TRUE"),
        None => step,
    })
}
