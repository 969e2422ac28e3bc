//! Checks the names that installed packages import from each other, by reading their files: no package is imported.
//!
//! Every file that an import runs is parsed into statements ([`reader`]). [`simulate`] follows the statements that
//! always run, as Python would, and [`exports`] decides whether the imported module has the name.

mod calls;
mod conditions;
mod dynamic;
mod environment;
mod exports;
mod guards;
mod lazy;
mod lexer;
mod locate;
mod module;
mod reader;
mod simulate;
mod standard;
mod targets;
#[cfg(test)]
mod tests;

use crate::Source;
pub use environment::missing_names;
use exports::Exports;
use locate::Modules;
use module::Python;
pub(crate) use simulate::Failure;
use simulate::Simulation;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// The Python release that runs the files, on Linux or macOS.
pub(crate) fn python(major: u32, minor: u32) -> Python {
    Python { major, minor, linux: cfg!(target_os = "linux") }
}

/// Deep imports need as much stack as Python's recursion limit allows.
const STACK: usize = 256 << 20;

/// The certain failures when one of these modules is imported, with the names of the modules.
pub(crate) fn failures(
    source: &Source,
    sites: Vec<PathBuf>,
    python: Python,
    versions: &HashMap<String, String>,
    entries: &[String],
) -> Vec<(Failure, Vec<String>)> {
    let work = || {
        let modules = Modules::new(source, sites, python);
        modules.read_all(entries.to_vec());
        let read = modules.all();
        let files = read.iter().filter_map(|(name, located)| Some((&**name, located.source()?.1)));
        let exports = Exports::new(&modules, files);
        let mut simulation = Simulation::new(&modules, &exports, versions);
        let mut found: Vec<(Failure, Vec<String>)> = Vec::new();
        for entry in entries {
            let Err(failure) = simulation.import(entry) else { continue };
            let failure = Rc::unwrap_or_clone(failure);
            let same = |it: &&mut (Failure, _)| {
                (&it.0.path, it.0.line, &it.0.name) == (&failure.path, failure.line, &failure.name)
            };
            match found.iter_mut().find(same) {
                Some((_, entries)) => entries.push(entry.clone()),
                None => found.push((failure, vec![entry.clone()])),
            }
        }
        found
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work);
        thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
    })
}
