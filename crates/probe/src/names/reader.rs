//! Reads a file's statements into a [`Module`].

mod imports;

use super::conditions;
use super::guards;
use super::lexer::{Kind, Line, Lines, Token, outline};
use super::module::{BoundNames, Dynamic, Handler, Module, NestedImport, Python, Statement, Try};
use super::targets::{self, BoundTarget};
use std::collections::{HashMap, HashSet};

/// Parses a file as the given Python runs it.
pub(crate) fn read(text: &str, python: Python) -> Module {
    read_lines(&outline(text), python, false).module
}

/// Parses a file with the bodies of all functions.
#[cfg(test)]
pub(super) fn read_completely(text: &str, python: Python) -> Module {
    read_lines(&super::lexer::lex(text), python, false).module
}

/// Every import statement of a file, including those of functions and of branches that may not run.
pub(super) fn imports(lines: &Lines<'_>, python: Python) -> Vec<NestedImport> {
    read_lines(lines, python, true).imports.unwrap_or_default()
}

fn read_lines<'a>(lines: &'a Lines<'a>, python: Python, imports: bool) -> Reader<'a> {
    let mut reader = Reader {
        at: 0,
        python,
        lazy_annotations: (python.major, python.minor) >= (3, 14),
        lines,
        module: Module::default(),
        names: Names::default(),
        imports: imports.then(Vec::new),
    };
    super::dynamic::scan(lines, &mut reader.module);
    while reader.at < lines.lines.len() {
        let indent = lines.lines[reader.at].indent;
        let body = reader.block(indent, StatementContext::MODULE);
        reader.module.body.extend(body);
    }
    reader.module.bound = std::mem::take(&mut reader.names).finish();
    reader
}

/// The context of a statement.
#[derive(Debug, Clone, Copy)]
struct StatementContext {
    /// It runs whenever the module is imported.
    runs: bool,
    /// It is in a class body: names that it binds are not the module's.
    class: bool,
}

impl StatementContext {
    const MODULE: Self = Self { runs: true, class: false };

    fn maybe(self) -> Self {
        Self { runs: false, ..self }
    }

    fn when(self, value: Option<bool>) -> Self {
        Self { runs: self.runs && value == Some(true), ..self }
    }
}

struct Reader<'a> {
    lines: &'a Lines<'a>,
    at: usize,
    python: Python,
    lazy_annotations: bool,
    module: Module,
    names: Names<'a>,
    /// Every import statement; `None` if only those are read that may run when the module is imported.
    imports: Option<Vec<NestedImport>>,
}

/// Names that a file's statements bind.
#[derive(Default)]
struct Names<'a> {
    /// How often statements of the module bind each name.
    bound: HashMap<&'a str, u32>,
    /// Names bound in a class body or deleted: a reference to one may not be to the module's import of that name.
    shadowed: HashSet<&'a str>,
}

impl<'a> Reader<'a> {
    fn text(&self, token: &Token) -> &'a str {
        self.lines.text(token)
    }

    fn line(&self) -> Option<(Line, &'a [Token])> {
        let line = *self.lines.lines.get(self.at)?;
        Some((line, self.lines.of(line)))
    }

    /// Parses the lines with at least this indentation.
    fn block(&mut self, indent: u32, place: StatementContext) -> Vec<Statement> {
        let mut body = Vec::new();
        while let Some((line, tokens)) = self.line() {
            if line.indent < indent {
                break;
            }
            self.statement(line, tokens, place, &mut body);
        }
        body
    }

    /// The first word of a compound statement, after `async`.
    fn keyword(&self, tokens: &[Token]) -> (&'a str, usize) {
        let word = |index: usize| tokens.get(index).map_or("", |token| self.text(token));
        match word(0) {
            "async" if matches!(word(1), "def" | "for" | "with") => (word(1), 1),
            first => (first, 0),
        }
    }

    fn statement(
        &mut self,
        line: Line,
        tokens: &'a [Token],
        place: StatementContext,
        body: &mut Vec<Statement>,
    ) {
        let (keyword, skip) = self.keyword(tokens);
        let tokens = &tokens[skip..];
        match keyword {
            "def" => self.function(line, tokens, place, body),
            "class" => self.class(line, tokens, place, body),
            "if" => self.branches(line, place, body),
            "try" => self.attempt(line, tokens, place, body),
            "for" | "while" | "with" => self.repeated(keyword, line, tokens, place, body),
            "match" if self.is_match(tokens) => {
                self.uses(&tokens[1..], place, body);
                self.at += 1;
                while let Some((next, tokens)) =
                    self.line().filter(|(it, _)| it.indent > line.indent)
                {
                    let end = self.header(tokens);
                    if self.text(&tokens[0]) == "case" {
                        let pattern = &tokens[1..end];
                        targets::captures(self.lines, pattern)
                            .for_each(|name| self.names.bind(name, place));
                    }
                    self.suite(next, tokens, end, place.maybe());
                }
            }
            _ => {
                self.at += 1;
                if keyword == "@" {
                    self.uses(&tokens[1..], place, body);
                } else {
                    self.simple(tokens, place, body);
                }
            }
        }
    }

    /// `match` is also a name: as a statement its line ends with a colon, and the next one starts with `case`.
    fn is_match(&self, tokens: &[Token]) -> bool {
        let next = self.lines.lines.get(self.at + 1).map(|line| self.lines.of(*line));
        let case = next.and_then(|tokens| tokens.first()).is_some_and(|it| self.text(it) == "case");
        case && tokens.last().is_some_and(|last| self.text(last) == ":")
    }

    /// The index of the colon that ends a header.
    fn header(&self, tokens: &[Token]) -> usize {
        let (mut depth, mut lambdas) = (0_i32, 0_u32);
        for (index, token) in tokens.iter().enumerate() {
            depth += self.lines.nesting(token);
            match self.text(token) {
                "lambda" if depth == 0 => lambdas += 1,
                ":" if depth == 0 && lambdas > 0 => lambdas -= 1,
                ":" if depth == 0 => return index,
                _ => {}
            }
        }
        tokens.len()
    }

    /// The body after a header: statements on its line, or a block.
    fn suite(
        &mut self,
        line: Line,
        tokens: &'a [Token],
        end: usize,
        place: StatementContext,
    ) -> Vec<Statement> {
        let rest = tokens.get(end + 1..).unwrap_or_default();
        self.at += 1;
        if !rest.is_empty() {
            let mut body = Vec::new();
            self.simple(rest, place, &mut body);
            return body;
        }
        match self.line() {
            Some((next, _)) if next.indent > line.indent => self.block(next.indent, place),
            _ => Vec::new(),
        }
    }

    fn function(
        &mut self,
        line: Line,
        tokens: &'a [Token],
        place: StatementContext,
        body: &mut Vec<Statement>,
    ) {
        let end = self.header(tokens);
        if let Some(name) = tokens.get(1) {
            self.names.bind(self.lines.text(name), place);
            if self.text(name) == "__getattr__" && !place.class {
                let dynamic = self.attribute_hook();
                self.module.dynamic = self.module.dynamic.max(dynamic);
            }
        }
        // Defaults and annotations are evaluated when the function is created; those of type parameters are not.
        let generic = tokens.get(2).is_some_and(|token| self.text(token) == "[");
        if !self.lazy_annotations && !generic {
            self.uses(tokens.get(2..end).unwrap_or_default(), place, body);
        }
        self.nested(tokens.get(end + 1..).unwrap_or_default());
        if let Some((name, guard)) = tokens.get(1).zip(guards::in_function(self.lines, self.at)) {
            self.module.guards.insert(self.lines.text(name).into(), guard);
        }
        self.at += 1;
        while let Some((_, tokens)) = self.line().filter(|(next, _)| next.indent > line.indent) {
            self.nested(tokens);
            self.at += 1;
        }
    }

    /// A `__getattr__` that raises AttributeError itself has a list of names, unless it queries another object for any
    /// name.
    fn attribute_hook(&self) -> Dynamic {
        let lines = &self.lines.lines[self.at..];
        let indent = lines[0].indent;
        let body = lines.iter().skip(1).take_while(|line| line.indent > indent);
        let words: Vec<&str> =
            body.flat_map(|line| self.lines.of(*line)).map(|token| self.text(token)).collect();
        let has = |word: &str| words.contains(&word);
        let imports = has("import_module") || has("import") || has("__import__");
        match has("AttributeError") && (imports || !has("getattr")) {
            true => Dynamic::Listed,
            false => Dynamic::Open,
        }
    }

    fn class(
        &mut self,
        line: Line,
        tokens: &'a [Token],
        place: StatementContext,
        body: &mut Vec<Statement>,
    ) {
        let end = self.header(tokens);
        if let Some(name) = tokens.get(1) {
            self.names.bind(self.lines.text(name), place);
        }
        if tokens.get(2).is_some_and(|token| self.text(token) == "(") {
            self.uses(tokens.get(2..end).unwrap_or_default(), place, body);
        }
        body.extend(self.suite(line, tokens, end, StatementContext { class: true, ..place }));
    }

    fn branches(&mut self, first: Line, place: StatementContext, body: &mut Vec<Statement>) {
        // Whether none of the branches so far was taken.
        let mut open = Some(true);
        while let Some((line, tokens)) = self.line().filter(|(it, _)| it.indent == first.indent) {
            let word = self.text(&tokens[0]);
            let end = self.header(tokens);
            let test = match word {
                "if" | "elif" => {
                    let test = tokens.get(1..end).unwrap_or_default();
                    targets::walrus(self.lines, test).for_each(|name| self.names.bind(name, place));
                    self.uses(test, place.when(open), body);
                    conditions::value(self.lines, test, self.python)
                }
                "else" => Some(true),
                _ => break,
            };
            let taken = and(open, test);
            if taken == Some(false) {
                self.discarded(line, tokens, end);
            } else {
                body.extend(self.suite(line, tokens, end, place.when(taken)));
            }
            open = and(open, test.map(|it| !it));
            let next = self.line().filter(|(it, _)| it.indent == first.indent);
            let continues =
                next.is_some_and(|(_, tokens)| matches!(self.text(&tokens[0]), "elif" | "else"));
            if !continues {
                break;
            }
        }
    }

    /// A branch that never runs: its imports are listed, and it binds no names.
    fn discarded(&mut self, line: Line, tokens: &'a [Token], end: usize) {
        let dynamic = self.module.dynamic;
        let (bound, stars) = (self.names.bound.clone(), self.module.stars.len());
        let aliases = self.module.aliases.clone();
        self.suite(line, tokens, end, StatementContext { runs: false, class: false });
        self.module.stars.truncate(stars);
        (self.names.bound, self.module.aliases) = (bound, aliases);
        self.module.dynamic = dynamic;
    }

    fn attempt(
        &mut self,
        line: Line,
        tokens: &'a [Token],
        place: StatementContext,
        body: &mut Vec<Statement>,
    ) {
        let end = self.header(tokens);
        let mut attempt = Try { body: self.suite(line, tokens, end, place), ..Try::default() };
        while let Some((next, tokens)) = self.line().filter(|(it, _)| it.indent == line.indent) {
            let end = self.header(tokens);
            match self.text(&tokens[0]) {
                "except" => {
                    let types = tokens.get(1..end).unwrap_or_default();
                    let caught = types.iter().take_while(|token| self.text(token) != "as");
                    let catches = caught
                        .filter(|token| token.kind == Kind::Name)
                        .map(|token| self.text(token).into())
                        .collect();
                    let body = self.suite(next, tokens, end, place);
                    attempt.handlers.push(Handler { catches, body });
                }
                // It runs only if the body did not raise, which is known only by running it.
                "else" => drop(self.suite(next, tokens, end, place.maybe())),
                "finally" => attempt.finally = self.suite(next, tokens, end, place),
                _ => break,
            }
        }
        if place.runs {
            body.push(Statement::Try(attempt));
        }
    }

    fn repeated(
        &mut self,
        keyword: &str,
        line: Line,
        tokens: &'a [Token],
        place: StatementContext,
        body: &mut Vec<Statement>,
    ) {
        let end = self.header(tokens);
        let head = tokens.get(1..end).unwrap_or_default();
        let mut bound = Vec::new();
        match keyword {
            "for" => targets::of_for(self.lines, head, &mut bound),
            "with" => targets::of_with(self.lines, head, &mut bound),
            _ => {}
        }
        self.bind_all(bound, place);
        targets::walrus(self.lines, head).for_each(|name| self.names.bind(name, place));
        self.uses(head, place, body);
        // A context manager may suppress exceptions of its block; that of warnings does not.
        let warnings = head.iter().any(|token| self.text(token) == "catch_warnings");
        let inner = if keyword == "with" && warnings { place } else { place.maybe() };
        body.extend(self.suite(line, tokens, end, inner));
        let other = self.line().filter(|(it, tokens)| {
            keyword != "with" && it.indent == line.indent && self.text(&tokens[0]) == "else"
        });
        if let Some((next, tokens)) = other {
            let end = self.header(tokens);
            self.suite(next, tokens, end, place.maybe());
        }
    }

    /// Statements of one line, separated by semicolons.
    fn simple(&mut self, tokens: &'a [Token], place: StatementContext, body: &mut Vec<Statement>) {
        let mut depth = 0_i32;
        let parts = tokens.split(|token| {
            depth += self.lines.nesting(token);
            depth == 0 && self.lines.text(token) == ";"
        });
        for part in parts.filter(|part| !part.is_empty()) {
            self.one(part, place, body);
        }
    }

    fn one(&mut self, tokens: &'a [Token], place: StatementContext, body: &mut Vec<Statement>) {
        let second = tokens.get(1);
        let is_name = second.is_some_and(|token| token.kind == Kind::Name);
        match self.text(&tokens[0]) {
            "import" | "from" => self.import(tokens, Some(place), body),
            "raise" if place.runs => body.push(Statement::Raise),
            "del" => {
                let names = tokens[1..].iter().filter(|token| token.kind == Kind::Name);
                self.names.shadowed.extend(names.map(|token| self.lines.text(token)));
            }
            "raise" | "pass" | "global" | "nonlocal" => {}
            "type" if is_name => {
                if let Some(name) = second {
                    self.names.bind(self.lines.text(name), place);
                }
            }
            _ => {
                if place.runs && !self.module.guards.is_empty() {
                    guards::calls(self.lines, tokens, &self.module, body);
                }
                let mut bound = Vec::new();
                let annotation = targets::of_assignment(self.lines, tokens, &mut bound);
                self.bind_all(bound, place);
                targets::walrus(self.lines, tokens).for_each(|name| self.names.bind(name, place));
                match annotation.filter(|_| self.lazy_annotations) {
                    Some(value) => self.uses(&tokens[value..], place, body),
                    None => self.uses(tokens, place, body),
                }
            }
        }
    }

    fn bind_all(&mut self, bound: Vec<BoundTarget<'a>>, place: StatementContext) {
        for bound in bound {
            match bound {
                BoundTarget::Name(name) => {
                    if name == "__getattr__" && !place.class {
                        self.module.dynamic = self.module.dynamic.max(Dynamic::Listed);
                    }
                    self.names.bind(name, place);
                }
                BoundTarget::Attribute(name) => {
                    self.module.patched.insert(name.into());
                }
            }
        }
    }

    /// Attributes of imported modules in an expression that is completely evaluated.
    fn uses(&mut self, tokens: &'a [Token], place: StatementContext, body: &mut Vec<Statement>) {
        if place.runs {
            targets::uses(self.lines, tokens, &self.module.aliases, body);
        }
    }
}

impl<'a> Names<'a> {
    fn bind(&mut self, name: &'a str, place: StatementContext) {
        if place.class {
            self.shadowed.insert(name);
        } else {
            *self.bound.entry(name).or_default() += 1;
        }
    }

    fn finish(self) -> BoundNames {
        let once =
            |(name, times): (&'a str, u32)| (name, times == 1 && !self.shadowed.contains(name));
        BoundNames::new(self.bound.into_iter().map(once).collect())
    }
}

fn and(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}
