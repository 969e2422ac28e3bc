//! Simulates imports over parsed files: which statements always run, and whether one of them uses a name that certainly
//! does not exist. If that cannot be decided, the name counts as existing.

use super::exports::{Exports, Presence};
use super::locate::{ModuleLocation, Modules, absolute};
use super::module::{Alias, Call, Handler, Module, Origin, Statement, Try};
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;

/// A failing import: the missing name and its context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The file with the statement.
    pub(crate) path: PathBuf,
    pub(crate) line: u32,
    /// The module without the name.
    pub(crate) module: String,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// The chain of imports, the outermost last.
    pub(crate) via: Vec<(PathBuf, u32)>,
}

/// The kind of reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `from module import name`.
    Name,
    /// `import module.name`.
    Submodule,
    /// `module.name` in an expression.
    Attribute,
    /// A module whose version the package compares with its own; the name is that of the package.
    Version,
    /// `module(.., name=..)`: the module is that of a function, with the function's name.
    Keyword,
}

impl Kind {
    /// Whether an `except` clause with these classes catches its exception; `None` if a class is not known.
    fn caught_by(self, handler: &Handler) -> Option<bool> {
        let mut unknown = false;
        for class in &handler.catches {
            match &**class {
                "Exception" | "BaseException" => return Some(true),
                "ImportError" if matches!(self, Self::Name | Self::Submodule) => return Some(true),
                "ModuleNotFoundError" if self == Self::Submodule => return Some(true),
                "AttributeError" if self == Self::Attribute => return Some(true),
                "RuntimeError" if self == Self::Version => return Some(true),
                "TypeError" if self == Self::Keyword => return Some(true),
                "ImportError"
                | "ModuleNotFoundError"
                | "AttributeError"
                | "TypeError"
                | "KeyError"
                | "IndexError"
                | "ValueError"
                | "OSError"
                | "NameError"
                | "RuntimeError"
                | "SyntaxError"
                | "FileNotFoundError" => {}
                _ => unknown = true,
            }
        }
        match (handler.catches.is_empty(), unknown) {
            (true, _) => Some(true),
            (false, true) => None,
            (false, false) => Some(false),
        }
    }
}

/// The result of running statements; `Err` if they certainly fail.
type Outcome = Result<(), Rc<Failure>>;

/// Why statements end early.
enum End {
    /// They raise on purpose, or the rest cannot be known.
    Unknown,
    Fails(Rc<Failure>),
}

impl From<Rc<Failure>> for End {
    fn from(failure: Rc<Failure>) -> Self {
        Self::Fails(failure)
    }
}

/// The imports of one environment.
pub(crate) struct Simulation<'a> {
    modules: &'a Modules<'a>,
    exports: &'a Exports<'a>,
    /// Versions of the packages of top-level modules.
    versions: &'a HashMap<String, String>,
    /// `None` while a module runs.
    results: HashMap<String, Option<Outcome>>,
}

/// The module whose statements run.
struct Frame<'a> {
    name: &'a str,
    package: bool,
    path: &'a PathBuf,
    module: &'a Module,
}

impl<'a> Simulation<'a> {
    pub(crate) fn new(
        modules: &'a Modules<'a>,
        exports: &'a Exports<'a>,
        versions: &'a HashMap<String, String>,
    ) -> Self {
        Self { modules, exports, versions, results: HashMap::new() }
    }

    /// `import a.b.c` from outside of the environment.
    pub(crate) fn import(&mut self, name: &str) -> Outcome {
        self.load(name, None)
    }

    /// Runs a module and its parent packages.
    fn load(&mut self, name: &str, asked: Option<(&Frame<'_>, u32)>) -> Outcome {
        for end in name.match_indices('.').map(|(at, _)| at).chain([name.len()]) {
            let part = &name[..end];
            match &*self.modules.get(part) {
                ModuleLocation::Absent => {
                    let Some((parent, leaf)) = part.rsplit_once('.') else { return Ok(()) };
                    let Some((frame, line)) = asked else { return Ok(()) };
                    return match self.exports.submodule(parent, leaf) {
                        Presence::Absent => {
                            Err(failure(frame, line, parent, leaf, Kind::Submodule))
                        }
                        _ => Ok(()),
                    };
                }
                located => self.run(part, located)?,
            }
        }
        Ok(())
    }

    fn run(&mut self, name: &str, located: &ModuleLocation) -> Outcome {
        let ModuleLocation::Source { path, package, module } = located else { return Ok(()) };
        if let Some(known) = self.results.get(name) {
            // A running module exists for the modules that it imports.
            return known.clone().unwrap_or(Ok(()));
        }
        self.results.insert(name.to_owned(), None);
        let frame = Frame { name, package: *package, path, module };
        self.exports.note_patches(name, module);
        let outcome = match self.block(&frame, &module.body) {
            Ok(()) | Err(End::Unknown) => Ok(()),
            Err(End::Fails(failure)) => Err(failure),
        };
        self.results.insert(name.to_owned(), Some(outcome.clone()));
        outcome
    }

    fn block(&mut self, frame: &Frame<'_>, body: &[Statement]) -> Result<(), End> {
        body.iter().try_for_each(|statement| self.statement(frame, statement))
    }

    fn statement(&mut self, frame: &Frame<'_>, statement: &Statement) -> Result<(), End> {
        match statement {
            Statement::Import(origin) => Ok(self.from(frame, origin.line, &origin.module)?),
            Statement::Star(origin) => {
                let Some(module) = resolved(frame, origin) else { return Ok(()) };
                Ok(self.from(frame, origin.line, &module)?)
            }
            Statement::From(origin, names) => {
                let Some(module) = resolved(frame, origin) else { return Ok(()) };
                self.from(frame, origin.line, &module)?;
                for name in names {
                    match self.exports.presence(&module, name) {
                        Presence::Absent => {
                            Err(failure(frame, origin.line, &module, name, Kind::Name))?;
                        }
                        Presence::Submodule => {
                            self.from(frame, origin.line, &format!("{module}.{name}"))?;
                        }
                        Presence::Unknown => self.lazy(frame, origin.line, &module, name)?,
                        Presence::Bound => {}
                    }
                }
                Ok(())
            }
            Statement::Attribute(line, chain) => Ok(self.attribute(frame, *line, chain)?),
            Statement::Call(call) => Ok(self.call(frame, call)?),
            Statement::Guard(line, other) => {
                let own = frame.name.split('.').next().unwrap_or(frame.name);
                let versions = self.versions.get(own).zip(self.versions.get(&**other));
                match versions.is_some_and(|(own, other)| public(own) != public(other)) {
                    true => Err(failure(frame, *line, other, own, Kind::Version))?,
                    false => Ok(()),
                }
            }
            Statement::Raise => Err(End::Unknown),
            Statement::Try(attempt) => self.attempt(frame, attempt),
        }
    }

    /// Loads the module of a statement, and adds the statement to a failure's chain.
    fn from(&mut self, frame: &Frame<'_>, line: u32, module: &str) -> Outcome {
        self.load(module, Some((frame, line))).map_err(|failure| {
            if failure.path == *frame.path {
                return failure;
            }
            let mut failure = (*failure).clone();
            failure.via.push((frame.path.clone(), line));
            Rc::new(failure)
        })
    }

    fn attempt(&mut self, frame: &Frame<'_>, attempt: &Try) -> Result<(), End> {
        let result = match self.block(frame, &attempt.body) {
            Err(End::Fails(failure)) => self.handled(frame, attempt, failure),
            // A `raise` in the body may be caught by any handler.
            Err(End::Unknown) if !attempt.handlers.is_empty() => Ok(()),
            other => other,
        };
        self.block(frame, &attempt.finally)?;
        result
    }

    fn handled(
        &mut self,
        frame: &Frame<'_>,
        attempt: &Try,
        failure: Rc<Failure>,
    ) -> Result<(), End> {
        for handler in &attempt.handlers {
            match failure.kind.caught_by(handler) {
                Some(false) => {}
                None => return Ok(()),
                Some(true) => {
                    return match self.block(frame, &handler.body) {
                        // A handler that raises replaces the error.
                        Err(End::Unknown) => Err(End::Fails(failure)),
                        other => other,
                    };
                }
            }
        }
        Err(End::Fails(failure))
    }

    /// The module bound to a name of this module, if exactly one import binds it.
    fn alias(&self, module: &Module, frame: (&str, bool), name: &str) -> Option<String> {
        if !module.has_one_definition(name) {
            return None;
        }
        match module.aliases.get(name)? {
            Alias::Module(module) => Some(module.to_string()),
            Alias::Member(origin, member) => {
                let base = absolute(frame.0, frame.1, origin.level, &origin.module)?;
                let is_submodule = self.exports.presence(&base, member) == Presence::Submodule;
                is_submodule.then(|| format!("{base}.{member}"))
            }
        }
    }

    /// Follows `a.b.c` from the module `a`; returns the last module reached and the remaining names.
    fn follow<'c>(
        &self,
        frame: &Frame<'_>,
        chain: &'c [Box<str>],
    ) -> Option<(String, &'c [Box<str>])> {
        let (root, mut rest) = chain.split_first()?;
        let mut module = self.alias(frame.module, (frame.name, frame.package), root)?;
        while let Some((name, after)) = rest.split_first() {
            match self.exports.presence(&module, name) {
                Presence::Submodule => module = format!("{module}.{name}"),
                Presence::Bound => {
                    let located = self.modules.get(&module);
                    let ModuleLocation::Source { package, module: inner, .. } = &*located else {
                        break;
                    };
                    match self.alias(inner, (&module, *package), name) {
                        Some(next) => module = next,
                        None => break,
                    }
                }
                Presence::Absent | Presence::Unknown => break,
            }
            rest = after;
        }
        Some((module, rest))
    }

    fn attribute(&mut self, frame: &Frame<'_>, line: u32, chain: &[Box<str>]) -> Outcome {
        let Some((module, rest)) = self.follow(frame, chain) else { return Ok(()) };
        let Some(name) = rest.first() else { return Ok(()) };
        match self.exports.presence(&module, name) {
            Presence::Absent => Err(failure(frame, line, &module, name, Kind::Attribute)),
            Presence::Unknown => self.lazy(frame, line, &module, name),
            _ => Ok(()),
        }
    }

    /// A lazy package loads the submodule of a name on access.
    fn lazy(&mut self, frame: &Frame<'_>, line: u32, package: &str, name: &str) -> Outcome {
        match self.exports.lazily_loaded(package, name) {
            Some(loaded) => self.from(frame, line, &loaded),
            None => Ok(()),
        }
    }

    /// A keyword argument that the function of another package certainly does not accept.
    fn call(&self, frame: &Frame<'_>, call: &Call) -> Outcome {
        let Some((module, name)) = self.called(frame, &call.chain) else { return Ok(()) };
        let top = |name: &str| name.split('.').next().unwrap_or(name).to_owned();
        if top(&module) == top(frame.name) {
            return Ok(());
        }
        let Some(parameters) = self.exports.parameters(&module, &name) else { return Ok(()) };
        match call.keywords.iter().find(|keyword| !parameters.take(keyword)) {
            Some(keyword) => {
                let function = format!("{module}.{name}");
                Err(failure(frame, call.line, &function, keyword, Kind::Keyword))
            }
            None => Ok(()),
        }
    }

    /// The module that defines the function `a.b.c` of a call, and its name there.
    fn called(&self, frame: &Frame<'_>, chain: &[Box<str>]) -> Option<(String, String)> {
        let own = (frame.name, frame.package);
        let (module, name) = match self.follow(frame, chain) {
            Some((module, [name])) => (module, name.to_string()),
            Some(_) => return None,
            // `from a import b` and then `b(..)`.
            None => match chain {
                [name] => self.member(frame.module, own, name)?,
                _ => return None,
            },
        };
        self.definition(module, name)
    }

    /// Follows imports from module to module to the definition of a name.
    fn definition(&self, mut module: String, mut name: String) -> Option<(String, String)> {
        for _ in 0..DEEPEST {
            let located = self.modules.get(&module);
            let ModuleLocation::Source { package, module: inner, .. } = &*located else {
                return None;
            };
            match self.member(inner, (&module, *package), &name) {
                Some(next) => (module, name) = next,
                None => return inner.has_one_definition(&name).then_some((module, name)),
            }
        }
        None
    }

    /// The module and name that an import binds to a name of a module, if exactly one import binds it.
    fn member(&self, module: &Module, frame: (&str, bool), name: &str) -> Option<(String, String)> {
        let alias = module.aliases.get(name).filter(|_| module.has_one_definition(name))?;
        let Alias::Member(origin, member) = alias else { return None };
        let base = absolute(frame.0, frame.1, origin.level, &origin.module)?;
        Some((base, member.to_string()))
    }
}

/// Maximum length of the import chain from a name to its definition.
const DEEPEST: usize = 8;

/// A version without its local label.
fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

fn resolved(frame: &Frame<'_>, origin: &Origin) -> Option<String> {
    absolute(frame.name, frame.package, origin.level, &origin.module)
}

fn failure(frame: &Frame<'_>, line: u32, module: &str, name: &str, kind: Kind) -> Rc<Failure> {
    Rc::new(Failure {
        path: frame.path.clone(),
        line,
        module: module.to_owned(),
        name: name.to_owned(),
        kind,
        via: Vec::new(),
    })
}
