//! Compiled modules that a package lacks: a variant without them, a build that left them out, a checkout that hides them.

use super::Entity;
use crate::explain::cause::Cause;
use crate::explain::modules::installed;
use crate::rules::PastedError;

/// Distributions with a variant that lacks the compiled modules: the distribution, its variants, and the commands that
/// install the one that has them; `{python}` is the interpreter. Read on 2026-11-30: mmcv's installation page (mmcv and
/// mmcv-lite from 2.0 on, mmcv-full and mmcv before).
const VARIANTS: [(&str, &str, &[&str]); 1] = [(
    "mmcv",
    "mmcv 1 (its complete variant is mmcv-full), or mmcv-lite of mmcv 2",
    &[
        "{python} -m pip uninstall --yes mmcv mmcv-lite mmcv-full",
        "{python} -m pip install --upgrade openmim",
        "mim install mmcv  # mmcv-full for programs written for mmcv 1",
    ],
)];

/// Whether a module is compiled, by the names that extensions of torch have: `_C`, `_moe_C`, `_ext`, `rotary_cuda`.
pub(super) fn names_one(module: &str) -> bool {
    module.split('.').skip(1).any(is_compiled)
}

fn is_compiled(part: &str) -> bool {
    part.starts_with("_C") || ["_C", "_ext", "_cuda", "_cpp"].iter().any(|end| part.ends_with(end))
}

/// A compiled module that a package lacks, whose Python files are there.
pub(super) fn missing(seen: &PastedError, entity: Entity, package: &str, module: &str) -> Entity {
    let installer = seen.installer();
    let python = installer.python();
    let top = module.split('.').next().unwrap_or(module);
    let part = module.rsplit('.').next().unwrap_or(module);
    let path = format!(
        "{python} -c 'import importlib.util as u; print(list(u.find_spec(\"{top}\").submodule_search_locations))'"
    );
    let mut causes = Vec::new();
    if let Some((_, variant, commands)) = VARIANTS.iter().find(|(name, ..)| *name == package) {
        causes.push(
            Cause::new(format!(
                "The variant of {package} without compiled modules is installed: {variant}."
            ))
            .check([format!("{python} -m pip list | grep -i {package}")])
            .fix(commands.iter().map(|command| command.replace("{python}", &python))),
        );
    }
    causes.extend([
        Cause::new(format!(
            "{package} was built or installed without it: no nvcc, compiler or torch at the build, a wheel for another platform (Windows, CPU only), or a build \
             that failed."
        ))
        .check([format!("{python} -m pip show {package} | grep Version; find / -path '*{top}*' -name '*{part}*.so' 2>/dev/null | head")])
        .fix([String::from(installer.build(&[package]))]),
        Cause::new(format!(
            "The program starts in a checkout of {package}, or another folder named {top}, which hides the installed package."
        ))
        .check([format!("{path}; ls -d {top}")])
        .fix(["# start the program in another folder; for the checkout itself: python -m pip install --no-build-isolation -e ."]),
        Cause::new("It was compiled for another Python: its file name has that Python's number (cpython-3NN).")
            .check([format!("{python} --version; find / -path '*{top}*' -name '*{part}*.so' 2>/dev/null | head")])
            .fix([String::from(installer.reinstall(&[package]))]),
    ]);
    let mut entity = entity
        .meaning(format!(
            "Python found {top}, and not {module}, which is one of the compiled modules of {package}: only its Python files are there."
        ))
        .causes(causes)
        .rank(3);
    // Releases differ in compiled modules by their builds, which no source file shows.
    entity.name_lookup = None;
    if let Some((_, dist)) = installed(seen, package) {
        entity = entity
            .evidence(format!("{} {}", dist.name, dist.version), dist.path.clone())
            .confirmed(Some(true));
    }
    entity
}
