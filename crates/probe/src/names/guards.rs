//! Functions that refuse a sibling package of another version, as flashinfer does with flashinfer-cubin: an `if` with
//! `own_version != sibling_version` that raises, in a function that imports the sibling.

use super::lexer::{Kind, Lines, Token};
use super::module::{Module, Statement};

/// The guard in the function at a line: the line that raises, and the module that is compared.
pub(super) fn in_function(lines: &Lines<'_>, at: usize) -> Option<(u32, Box<str>)> {
    let head = lines.lines.get(at)?;
    let body = lines.lines[at + 1..].iter().take_while(|line| line.indent > head.indent);
    let mut imported: Option<&str> = None;
    let mut compared = false;
    for line in body {
        let tokens = lines.of(*line);
        let word = |index: usize| tokens.get(index).map_or("", |token| lines.text(token));
        match word(0) {
            "import" if tokens.len() == 2 => imported = Some(word(1)),
            "raise" if compared => return Some((tokens[0].line, imported?.into())),
            "if" => {
                compared =
                    imported.is_some() && tokens.windows(3).any(|three| compares(lines, three));
                continue;
            }
            _ => {}
        }
        compared = false;
    }
    None
}

/// `one_version != other_version`.
fn compares(lines: &Lines<'_>, tokens: &[Token]) -> bool {
    let is_version = |token: &Token| {
        token.kind == Kind::Name && lines.text(token).to_ascii_lowercase().contains("version")
    };
    lines.text(&tokens[1]) == "!=" && is_version(&tokens[0]) && is_version(&tokens[2])
}

/// Calls of guards in a statement.
pub(super) fn calls(
    lines: &Lines<'_>,
    tokens: &[Token],
    module: &Module,
    body: &mut Vec<Statement>,
) {
    for pair in tokens.windows(2).filter(|pair| lines.text(&pair[1]) == "(") {
        if let Some((line, other)) = module.guards.get(lines.text(&pair[0])) {
            body.push(Statement::Guard(*line, other.clone()));
        }
    }
}
