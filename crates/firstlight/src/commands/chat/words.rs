//! Parses lines of a chat: a message, or a command, which starts with a slash.

/// A parsed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatLine<'a> {
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
pub(super) fn of(text: &str) -> ChatLine<'_> {
    if text.trim().is_empty() {
        return ChatLine::Nothing;
    }
    // As in shells and other chat programs. A leading space makes it a message.
    if matches!(text.trim_end(), "exit" | "quit") {
        return ChatLine::Exit;
    }
    let (first, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let is_command =
        |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase());
    if !first.strip_prefix('/').is_some_and(is_command) {
        return ChatLine::Say(text);
    }
    match (first, rest.trim()) {
        ("/reset", "") => ChatLine::Reset,
        ("/help", "") => ChatLine::Help,
        ("/exit" | "/quit" | "/bye", "") => ChatLine::Exit,
        ("/system", "") => ChatLine::ShowSystem,
        ("/system", text) => ChatLine::System(text.to_owned()),
        _ => ChatLine::Unknown(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_distinguished_from_messages() {
        for (text, want) in [
            ("", ChatLine::Nothing),
            (" \n", ChatLine::Nothing),
            ("hi /reset", ChatLine::Say("hi /reset")),
            ("/reset", ChatLine::Reset),
            ("/reset ", ChatLine::Reset),
            ("/exit", ChatLine::Exit),
            ("/bye", ChatLine::Exit),
            ("exit", ChatLine::Exit),
            (" exit", ChatLine::Say(" exit")),
            ("exit the program", ChatLine::Say("exit the program")),
            ("/help", ChatLine::Help),
            ("/system", ChatLine::ShowSystem),
            ("/system  be\nbrief ", ChatLine::System("be\nbrief".to_owned())),
            ("/sytem be brief", ChatLine::Unknown("/sytem")),
            (" /reset", ChatLine::Say(" /reset")),
            ("/etc/passwd is what?", ChatLine::Say("/etc/passwd is what?")),
            ("/ alone", ChatLine::Say("/ alone")),
            ("/2 of it", ChatLine::Say("/2 of it")),
        ] {
            assert_eq!(of(text), want, "{text:?}");
        }
    }
}
