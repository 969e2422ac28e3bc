//! Removes the escape sequences of terminals: colours, cursor moves, titles and links.

use std::borrow::Cow;

/// The text without escape sequences: colours, cursor moves, titles and links.
pub(super) fn uncoloured(text: &str) -> Cow<'_, str> {
    if memchr::memchr(0x1b, text.as_bytes()).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\u{1b}' => skip_escape(&mut letters),
            letter => out.push(letter),
        }
    }
    Cow::Owned(out)
}

/// Skips an escape sequence: colours and cursor moves (`[...m`), or titles and links (`]...` up to a bell).
fn skip_escape(letters: &mut std::iter::Peekable<std::str::Chars>) {
    match letters.next() {
        Some('[') => {
            // A sequence ends with its first character from `@` to `~`.
            while letters.next_if(|letter| !('@'..='~').contains(letter)).is_some() {}
            letters.next();
        }
        Some(']') => {
            while let Some(letter) = letters.next() {
                if letter == '\u{7}' {
                    break;
                }
                if letter == '\u{1b}' {
                    letters.next_if_eq(&'\\');
                    break;
                }
            }
        }
        _ => {}
    }
}
