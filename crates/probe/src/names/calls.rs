//! Parameters of a function or class, parsed from its file for a call with keyword arguments.

use super::lexer::{Kind, Line, Lines, Token, outline};

/// The keyword parameters of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameters {
    names: Vec<Box<str>>,
    /// Whether it has `**kwargs`.
    any: bool,
}

impl Parameters {
    pub(super) fn take(&self, keyword: &str) -> bool {
        self.any || self.names.iter().any(|name| **name == *keyword)
    }
}

/// The parameters of a top-level function, or of the constructor of a class; `None` if they cannot be known: it is
/// decorated, or a class with bases or with a `__new__`.
pub(super) fn parameters(text: &str, name: &str) -> Option<Parameters> {
    let lines = outline(text);
    let word = |line: &Line, index: usize| {
        lines.of(*line).get(index).map_or("", |token| lines.text(token))
    };
    let decorated = |at: usize| at > 0 && word(&lines.lines[at - 1], 0) == "@";
    let at = lines.lines.iter().position(|line| {
        let start = usize::from(word(line, 0) == "async");
        line.indent == 0
            && matches!(word(line, start), "def" | "class")
            && word(line, start + 1) == name
    })?;
    if decorated(at) {
        return None;
    }
    let head = &lines.lines[at];
    if word(head, 0) != "class" {
        return Some(of_header(&lines, lines.of(*head)));
    }
    let tokens = lines.of(*head);
    let bases = tokens.iter().map(|token| lines.text(token)).skip(2);
    if bases.clone().any(|word| !matches!(word, "(" | ")" | ":" | "object")) {
        return None;
    }
    let body = lines.lines.iter().enumerate().skip(at + 1);
    let body = body.take_while(|(_, line)| line.indent > 0);
    let inner = body.clone().next()?.1.indent;
    let mut found = None;
    for (index, line) in body.filter(|(_, line)| line.indent == inner) {
        match (word(line, 0), word(line, 1)) {
            ("def", "__new__") | ("__new__" | "__init__", _) => return None,
            ("def", "__init__") if decorated(index) || found.is_some() => return None,
            ("def", "__init__") => found = Some(of_header(&lines, lines.of(*line))),
            _ => {}
        }
    }
    found
}

/// The parameters between the parentheses of `def f[T](a, b: int = 1, *rest, c, **more) -> d:`.
fn of_header(lines: &Lines<'_>, tokens: &[Token]) -> Parameters {
    let text = |index: usize| tokens.get(index).map_or("", |token| lines.text(token));
    let open = (0..tokens.len()).find(|index| text(*index) == "(").unwrap_or(tokens.len());
    let mut depth = 0_i32;
    let mut parameters = Parameters { names: Vec::new(), any: false };
    for index in open..tokens.len() {
        depth += lines.nesting(&tokens[index]);
        if depth == 0 {
            break;
        }
        let begins = depth == 1 && (index == open || text(index) == ",");
        if !begins {
            continue;
        }
        match tokens.get(index + 1) {
            Some(token) if lines.text(token) == "**" => parameters.any = true,
            Some(token) if token.kind == Kind::Name => {
                parameters.names.push(lines.text(token).into());
            }
            _ => {}
        }
    }
    parameters
}

#[cfg(test)]
mod tests {
    use super::parameters;

    /// Which of the keywords `a` to `e` are accepted; `None` if the parameters are not known.
    fn check(text: &str, expect: Option<&str>) {
        let found = parameters(text, "f");
        let taken = found.map(|it| {
            ["a", "b", "c", "d", "e"].into_iter().filter(|key| it.take(key)).collect::<String>()
        });
        assert_eq!(taken.as_deref(), expect, "{text}");
    }

    #[test]
    fn parameters_of_functions_and_constructors() {
        check("def f(a, b=1, *c, d: dict[str, int] = {'e': 1}): ...\n", Some("abd"));
        check("async def f(a, /, b, *, c=(1, 2)): ...\n", Some("abc"));
        check("def f[T](a: T) -> T: ...\n", Some("a"));
        check("def f(a, **rest): ...\n", Some("abcde"));
        check("def f(\n    a,\n    b=g(c, d=1),\n): ...\n", Some("ab"));
        check("def f(): ...\ndef g(a): ...\n", Some(""));
        check("@wraps\ndef f(a): ...\n", None);
        check("class f:\n    def __init__(self, a): ...\n    def g(self, b): ...\n", Some("a"));
        check("class f(object):\n    x = 1\n    def __init__(self, a, **b): ...\n", Some("abcde"));
        check("class f(Base):\n    def __init__(self, a): ...\n", None);
        check("class f(metaclass=M):\n    def __init__(self, a): ...\n", None);
        check("class f:\n    def __new__(cls, b): ...\n    def __init__(self, a): ...\n", None);
        check("class f:\n    a: int\n", None);
        check("f = partial(g, a=1)\n", None);
        check("class g:\n    def f(self, a): ...\n", None);
    }
}
