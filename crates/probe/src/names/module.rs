//! The names of a Python file: the statements that its import runs, and every name that it may bind.

use super::locate::absolute;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// One Python file.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Statements that run whenever the module is imported, in order.
    pub(super) body: Vec<Statement>,
    /// Names that the module may bind.
    pub(super) bound: BoundNames,
    /// Star imports that may run.
    pub(super) stars: Vec<Origin>,
    /// Modules bound by imports, by name.
    pub(super) aliases: HashMap<Box<str>, Alias>,
    /// Attributes that it sets on other objects: `torch.compile = ..`, `setattr(torch, "compile", ..)`.
    pub(super) patched: HashSet<Box<str>>,
    /// Names of objects that it sets computed attributes on: `setattr(torch, name, ..)`.
    pub(super) patched_objects: HashSet<Box<str>>,
    /// How the module gets names that no statement binds.
    pub(super) dynamic: Dynamic,
    /// Whether it changes the search path of its submodules.
    pub(super) changes_path: bool,
    /// Whether it registers a loader, which may give any names to the modules of its package.
    pub(super) registers_loader: bool,
    /// Functions that compare the version of another package with their version and raise: line, and the other
    /// package.
    pub(super) guards: HashMap<Box<str>, (u32, Box<str>)>,
}

impl Module {
    /// Whether exactly one statement binds a name, so that references are to its value.
    pub(super) fn has_one_definition(&self, name: &str) -> bool {
        self.bound.once(name)
    }

    /// Modules that its import loads, by absolute names, including parent packages.
    pub(super) fn targets(&self, own: &str, package: bool) -> Vec<String> {
        let mut targets = Vec::new();
        for star in &self.stars {
            targets.extend(absolute(own, package, star.level, &star.module));
        }
        visit(&self.body, &mut |statement| match statement {
            Statement::Import(origin) | Statement::Star(origin) | Statement::From(origin, _) => {
                targets.extend(absolute(own, package, origin.level, &origin.module));
            }
            Statement::Guard(_, module) => targets.push(module.to_string()),
            _ => {}
        });
        targets.sort_unstable();
        targets.dedup();
        let parents = targets.iter().flat_map(|name| {
            name.match_indices('.').map(|(at, _)| name[..at].to_owned()).collect::<Vec<_>>()
        });
        let parents: Vec<String> = parents.collect();
        targets.extend(parents);
        targets
    }

    /// Members of modules that its import binds: the module's absolute name, and the names. Some are modules.
    pub(super) fn members(
        &self,
        own: &str,
        package: bool,
        mut each: impl FnMut(&str, &[Box<str>]),
    ) {
        visit(&self.body, &mut |statement| {
            if let Statement::From(origin, names) = statement
                && let Some(base) = absolute(own, package, origin.level, &origin.module)
            {
                each(&base, names);
            }
        });
    }
}

/// Calls a function for each statement outside of `try`, and for those in one.
fn visit(body: &[Statement], each: &mut impl FnMut(&Statement)) {
    for statement in body {
        match statement {
            Statement::Try(attempt) => {
                visit(&attempt.body, each);
                visit(&attempt.finally, each);
                for handler in &attempt.handlers {
                    visit(&handler.body, each);
                }
            }
            statement => each(statement),
        }
    }
}

/// Names that a module may bind, sorted, in two allocations: an environment has a million.
#[derive(Debug, Default)]
pub(super) struct BoundNames {
    text: Box<str>,
    names: Box<[BoundName]>,
}

/// One name.
#[derive(Debug)]
struct BoundName {
    start: u32,
    end: u32,
    /// Whether references are to the value of a single statement.
    once: bool,
}

impl BoundNames {
    /// The names, and whether each is bound once.
    pub(super) fn new(mut names: Vec<(&str, bool)>) -> Self {
        names.sort_unstable();
        let text: String = names.iter().map(|(name, _)| *name).collect();
        let mut end = 0;
        let mut next = |(name, once): &(&str, bool)| {
            let start = end;
            end += name.len() as u32;
            BoundName { start, end, once: *once }
        };
        Self { names: names.iter().map(&mut next).collect(), text: text.into() }
    }

    fn find(&self, name: &str) -> Option<&BoundName> {
        let text = |it: &BoundName| &self.text[it.start as usize..it.end as usize];
        let index = self.names.binary_search_by(|it| text(it).cmp(name)).ok()?;
        self.names.get(index)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn once(&self, name: &str) -> bool {
        self.find(name).is_some_and(|it| it.once)
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
