//! Parses lines of a chat: a message, or a command, which starts with a slash.

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// An empty line.
    Nothing,
    /// A message to the model.
    Say(&'a str),
    Reset,
    System(String),
    ShowSystem,
    Help,
    Exit,
    /// An unknown command.
    Unknown(&'a str),
}

/// Parses a line. A word with a second slash, such as a path, is not a command.
pub(super) fn of(text: &str) -> Word<'_> {
    if text.trim().is_empty() {
        return Word::Nothing;
    }
    // As in shells and other chat programs. A leading space makes it a message.
    if matches!(text.trim_end(), "exit" | "quit") {
        return Word::Exit;
    }
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let is_command =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
    if !first.strip_prefix('/').is_some_and(is_command) {
        return Word::Say(text);
    }
    match (first, rest.trim()) {
        ("/reset", "") => Word::Reset,
        ("/help", "") => Word::Help,
        ("/exit" | "/quit" | "/bye", "") => Word::Exit,
        ("/system", "") => Word::ShowSystem,
        ("/system", text) => Word::System(text.to_owned()),
        _ => Word::Unknown(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_distinguished_from_messages() {
        for (text, want) in [
            ("", Word::Nothing),
            (" \n", Word::Nothing),
            ("hi /reset", Word::Say("hi /reset")),
            ("/reset", Word::Reset),
            ("/reset ", Word::Reset),
            ("/exit", Word::Exit),
            ("/bye", Word::Exit),
            ("exit", Word::Exit),
            (" exit", Word::Say(" exit")),
            ("exit the program", Word::Say("exit the program")),
            ("/help", Word::Help),
            ("/system", Word::ShowSystem),
            ("/system  be\nbrief ", Word::System("be\nbrief".to_owned())),
            ("/sytem be brief", Word::Unknown("/sytem")),
            (" /reset", Word::Say(" /reset")),
            ("/etc/passwd is what?", Word::Say("/etc/passwd is what?")),
            ("/ alone", Word::Say("/ alone")),
            ("/2 of it", Word::Say("/2 of it")),
        ] {
            assert_eq!(of(text), want, "{text:?}");
        }
    }
}
