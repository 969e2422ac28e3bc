//! The names of a Python file: the statements that its import runs, and every name that it may bind.

use super::locate::absolute;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// One Python file.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Statements that run whenever the module is imported, in order.
    pub(super) body: Vec<Statement>,
    /// Names that the module may bind, and how often.
    pub(super) bound: HashMap<Box<str>, u32>,
    /// Names bound in a class body or deleted: a reference to one may not be to the module's import of that name.
    pub(super) shadowed: HashSet<Box<str>>,
    /// Star imports that may run.
    pub(super) stars: Vec<Origin>,
    /// Modules bound by imports, by name.
    pub(super) aliases: HashMap<Box<str>, Alias>,
    /// Attributes that it sets on other objects: `torch.compile = ..`, `setattr(torch, "compile", ..)`.
    pub(super) patched: HashSet<Box<str>>,
    /// Names of objects that it sets computed attributes on: `setattr(torch, name, ..)`.
    pub(super) patched_objects: HashSet<Box<str>>,
    /// Names that no statement binds.
    pub(super) dynamic: Dynamic,
    /// Whether it changes the search path of its submodules.
    pub(super) changes_path: bool,
    /// Whether it registers a loader, which may give any names to the modules of its package.
    pub(super) registers_loader: bool,
    /// Functions that compare the version of another package with their version and raise: line, and the other
    /// package.
    pub(super) guards: HashMap<Box<str>, (u32, Box<str>)>,
    /// Every import statement in it, including those of functions and of branches that may not run.
    pub(super) imports: Vec<NestedImport>,
}

impl Module {
    /// Whether exactly one statement binds a name, so that references are to its value.
    pub(super) fn has_one_definition(&self, name: &str) -> bool {
        self.bound.get(name) == Some(&1) && !self.shadowed.contains(name)
    }

    /// Modules that its import may load, by absolute names, including parent packages; some are names of other objects.
    pub(super) fn targets(&self, own: &str, package: bool) -> Vec<String> {
        let mut targets = Vec::new();
        for star in &self.stars {
            targets.extend(absolute(own, package, star.level, &star.module));
        }
        collect(&self.body, own, package, &mut targets);
        let around = targets.iter().flat_map(|name| {
            name.match_indices('.').map(|(at, _)| name[..at].to_owned()).collect::<Vec<_>>()
        });
        let around: Vec<String> = around.collect();
        targets.extend(around);
        targets
    }
}

fn collect(body: &[Statement], own: &str, package: bool, targets: &mut Vec<String>) {
    for statement in body {
        match statement {
            Statement::Import(origin) | Statement::Star(origin) => {
                targets.extend(absolute(own, package, origin.level, &origin.module));
            }
            Statement::From(origin, names) => {
                if let Some(base) = absolute(own, package, origin.level, &origin.module) {
                    targets.extend(names.iter().map(|name| format!("{base}.{name}")));
                    targets.push(base);
                }
            }
            Statement::Try(attempt) => {
                collect(&attempt.body, own, package, targets);
                collect(&attempt.finally, own, package, targets);
                for handler in &attempt.handlers {
                    collect(&handler.body, own, package, targets);
                }
            }
            Statement::Guard(_, module) => targets.push(module.to_string()),
            Statement::Attribute(..) | Statement::Call(_) | Statement::Raise => {}
        }
    }
}

/// How a module gets names that no statement of it binds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dynamic {
    /// It has no such names.
    #[default]
    No,
    /// A `__getattr__` that looks them up in the result of a function: lazy_loader, huggingface_hub's `_attach`.
    Listed,
    /// A `__getattr__` that may find any name, `globals()`, `exec` and the like.
    Open,
}

/// The module in a `from` statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Line, counted from 1.
    pub(crate) line: u32,
    /// Leading dots.
    pub(crate) level: u32,
    /// `a.b`; empty in `from . import c`.
    pub(crate) module: Box<str>,
}

/// The target of a name bound by an import.
#[derive(Debug, Clone)]
pub(super) enum Alias {
    /// A module by its absolute name.
    Module(Box<str>),
    /// A name of a module, which may be a submodule.
    Member(Origin, Box<str>),
}

/// An import anywhere in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NestedImport {
    pub(crate) origin: Origin,
    /// `None`: `import a.b`; `*` for a star import.
    pub(crate) name: Option<Box<str>>,
}

/// A statement that runs whenever its module is imported.
#[derive(Debug)]
pub(super) enum Statement {
    /// `import a.b`.
    Import(Origin),
    /// `from a import b, c`.
    From(Origin, Vec<Box<str>>),
    /// `from a import *`.
    Star(Origin),
    /// `a.b.c` in an expression that is evaluated.
    Attribute(u32, Vec<Box<str>>),
    /// `a.b(c, key=d)`, evaluated.
    Call(Call),
    /// A call of a function that raises unless this other package has the same version as the package.
    Guard(u32, Box<str>),
    /// `raise`.
    Raise,
    /// `try` with its handlers.
    Try(Try),
}

/// A call of an imported function, with keyword arguments.
#[derive(Debug)]
pub(super) struct Call {
    /// Line, counted from 1.
    pub(super) line: u32,
    /// `a`, `b` of `a.b(c, key=d)`.
    pub(super) chain: Vec<Box<str>>,
    /// `key`.
    pub(super) keywords: Vec<Box<str>>,
}

/// A `try` statement.
#[derive(Debug, Default)]
pub(super) struct Try {
    pub(super) body: Vec<Statement>,
    pub(super) handlers: Vec<Handler>,
    pub(super) finally: Vec<Statement>,
}

/// One `except` clause.
#[derive(Debug)]
pub(super) struct Handler {
    pub(super) catches: Vec<Box<str>>,
    pub(super) body: Vec<Statement>,
}

/// The Python that runs the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Python {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    /// `sys.platform`: `linux`, `darwin`.
    pub(crate) linux: bool,
}
