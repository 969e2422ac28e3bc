//! Detects names of a module that no statement binds.

use super::conditions::unquoted;
use super::lexer::{Kind, Lines};
use super::module::{Dynamic, Module};

/// Records how a file changes its own names and attributes of other objects at run time.
pub(super) fn scan(lines: &Lines<'_>, module: &mut Module) {
    if lines.plain {
        return;
    }
    let tokens = lines.all();
    let text = |index: usize| tokens.get(index).map_or("", |token| lines.text(token));
    let mut dynamic = Dynamic::No;
    for (index, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Name {
            continue;
        }
        let word = text(index);
        let called = || text(index + 1) == "(";
        let member = || index > 0 && text(index - 1) == ".";
        match word {
            "globals" | "exec" | "execfile" if called() && !member() => dynamic = Dynamic::Open,
            // Inside a function both refer to its locals.
            "vars" | "locals"
                if called()
                    && !member()
                    && text(index + 2) == ")"
                    && outside_functions(lines, token.line) =>
            {
                dynamic = Dynamic::Open;
            }
            // `sys.modules[__name__] = ..`
            "modules" if text(index + 1) == "[" && text(index + 2) == "__name__" => {
                dynamic = Dynamic::Open;
            }
            "extend_path" | "meta_path" | "declare_namespace" => {
                module.changes_path = true;
                let registers = matches!(text(index + 2), "insert" | "append");
                module.registers_loader |= word == "meta_path" && registers;
            }
            // Other uses only read it.
            "__path__" => {
                let set = matches!(text(index + 1), "=" | "+=" | "[");
                let changed = matches!(text(index + 2), "append" | "extend" | "insert");
                module.changes_path |= set || changed;
            }
            "__dict__" if matches!(text(index + 2), "update" | "setdefault") => {
                dynamic = Dynamic::Open;
            }
            "setattr" if called() && !member() => {
                // The object up to the comma, and the name if it is a literal.
                let object = text(index + 2);
                let attribute = unquoted(text(index + 4)).filter(|_| text(index + 3) == ",");
                match (object, attribute) {
                    ("self" | "cls", _) => {}
                    (_, Some(name)) => drop(module.patched.insert(name.into())),
                    ("sys", None) => dynamic = Dynamic::Open,
                    (object, None) => drop(module.patched_objects.insert(object.into())),
                }
            }
            _ => {}
        }
    }
    // transformers' `_LazyModule` has its names in the file, or in those of its package.
    let lazy = tokens.iter().any(|token| lines.text(token) == "_LazyModule");
    module.dynamic = if lazy { dynamic.min(Dynamic::Listed) } else { dynamic };
}

/// Whether a line is outside of all functions: no line above it with less indentation is a `def`.
fn outside_functions(lines: &Lines<'_>, line: u32) -> bool {
    let index = lines.lines.partition_point(|it| lines.of(*it)[0].line <= line);
    let Some(own) = index.checked_sub(1).and_then(|index| lines.lines.get(index)) else {
        return true;
    };
    let mut indent = own.indent;
    for above in lines.lines[..index].iter().rev() {
        if above.indent < indent {
            indent = above.indent;
            let words = lines.of(*above).iter().take(2);
            if words.clone().any(|token| lines.text(token) == "def") {
                return false;
            }
        }
    }
    true
}
