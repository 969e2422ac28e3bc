//! Import statements: the modules that they load, and the names that they bind.

use super::super::lexer::{Kind, Token};
use super::super::module::{Alias, Dynamic, NestedImport, Origin, Statement};
use super::{Reader, StatementContext};

impl<'a> Reader<'a> {
    /// Imports and `global` in a function's lines.
    pub(super) fn nested(&mut self, tokens: &'a [Token]) {
        let mut start = true;
        let mut depth = 0_i32;
        for (index, token) in tokens.iter().enumerate() {
            let text = self.text(token);
            if start && token.kind == Kind::Name {
                match text {
                    "import" | "from" => {
                        let rest = &tokens[index..];
                        let end = rest.iter().position(|it| self.text(it) == ";");
                        self.import(&rest[..end.unwrap_or(rest.len())], None, &mut Vec::new());
                    }
                    "global" => {
                        for name in
                            tokens[index + 1..].iter().take_while(|it| self.lines.text(it) != ";")
                        {
                            if name.kind == Kind::Name {
                                self.names.bind(self.lines.text(name), StatementContext::MODULE);
                            }
                        }
                    }
                    _ => {}
                }
            }
            depth += self.lines.nesting(token);
            start = depth == 0 && matches!(text, ";" | ":");
        }
    }

    /// `import a.b as c` and `from ..a import (b as c)`; without a context, in a function.
    pub(super) fn import(
        &mut self,
        tokens: &'a [Token],
        context: Option<StatementContext>,
        body: &mut Vec<Statement>,
    ) {
        let line = tokens[0].line;
        let runs = context.is_some_and(|context| context.runs);
        if self.text(&tokens[0]) == "import" {
            for part in tokens[1..].split(|token| self.lines.text(token) == ",") {
                let (name, alias) = self.dotted(part);
                if name.is_empty() {
                    continue;
                }
                let origin = Origin { line, level: 0, module: name.as_str().into() };
                if let Some(imports) = &mut self.imports {
                    imports.push(NestedImport { origin: origin.clone(), name: None });
                }
                if let Some(context) = context {
                    let top = part.first().map_or("", |token| self.text(token));
                    let (bound, module) = match alias {
                        Some(alias) => (alias, name.as_str()),
                        None => (top, top),
                    };
                    self.bind_import(bound, Alias::Module(module.into()), context);
                }
                if runs {
                    body.push(Statement::Import(origin));
                }
            }
            return;
        }
        let Some(at) = tokens.iter().position(|token| self.text(token) == "import") else { return };
        let mut module = String::new();
        let mut level = 0;
        for token in &tokens[1..at] {
            match self.text(token) {
                "." if module.is_empty() => level += 1,
                "..." if module.is_empty() => level += 3,
                text => module.push_str(text),
            }
        }
        let origin = Origin { line, level, module: module.into() };
        let mut names: Vec<Box<str>> = Vec::new();
        for part in
            tokens[at + 1..].split(|token| matches!(self.lines.text(token), "," | "(" | ")"))
        {
            let Some(first) = part.first() else { continue };
            let name = self.text(first);
            if let Some(imports) = &mut self.imports {
                imports.push(NestedImport { origin: origin.clone(), name: Some(name.into()) });
            }
            let Some(context) = context else { continue };
            if name == "*" {
                self.module.stars.push(origin.clone());
                if runs {
                    body.push(Statement::Star(origin.clone()));
                }
                continue;
            }
            if name == "annotations" && &*origin.module == "__future__" {
                self.lazy_annotations = true;
            }
            let bound = match part.get(1).zip(part.get(2)) {
                Some((word, alias)) if self.text(word) == "as" => self.text(alias),
                _ => name,
            };
            self.bind_import(bound, Alias::Member(origin.clone(), name.into()), context);
            names.push(name.into());
        }
        if runs && !names.is_empty() {
            body.push(Statement::From(origin, names));
        }
    }

    fn bind_import(&mut self, name: &'a str, alias: Alias, context: StatementContext) {
        if name == "__getattr__" && !context.class {
            self.module.dynamic = self.module.dynamic.max(Dynamic::Open);
        }
        self.names.bind(name, context);
        if context.runs && !context.class {
            // `import a.b` after `import a` binds `a` to the same module.
            let same = match (&alias, self.module.aliases.get(name)) {
                (Alias::Module(new), Some(Alias::Module(old))) => new == old,
                _ => false,
            };
            if same && let Some(times) = self.names.bound.get_mut(name) {
                *times -= 1;
            }
            self.module.aliases.insert(name.into(), alias);
        }
    }

    /// `a.b as c`: the name with its dots, and the alias.
    fn dotted(&self, part: &[Token]) -> (String, Option<&'a str>) {
        let at = part.iter().position(|token| self.text(token) == "as").unwrap_or(part.len());
        let name = part[..at].iter().map(|token| self.text(token)).collect();
        (name, part.get(at + 1).map(|token| self.text(token)))
    }
}
