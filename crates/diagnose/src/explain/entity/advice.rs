//! Advice in an error message: `Please install X`, `Try to increase Y`.

/// Longest advice that is shown, in characters.
const SHOWN: usize = 320;

/// First words of a sentence that tells the reader what to do.
const BEGINS: [&str; 34] = [
    "please ",
    "try ",
    "use ",
    "install ",
    "reinstall ",
    "upgrade ",
    "update ",
    "downgrade ",
    "set ",
    "pass ",
    "run ",
    "consider ",
    "make sure ",
    "ensure ",
    "you need to ",
    "you must ",
    "you should ",
    "you may need ",
    "you might need ",
    "you can ",
    "hint",
    "to fix ",
    "to resolve ",
    "to enable ",
    "to use ",
    "if you ",
    "if using ",
    "users must ",
    "add ",
    "specify ",
    "rebuild ",
    "increase ",
    "reduce ",
    "disable ",
];

/// Words within a sentence that tell the reader what to do.
const HOLDS: [&str; 18] = [
    "please install",
    "please upgrade",
    "please update",
    "please set",
    "please use",
    "please run",
    "please reinstall",
    "please make sure",
    "please check",
    "upgrade to ",
    "try setting",
    "try increasing",
    "try reducing",
    "need to install",
    "needs to be installed",
    "must be installed",
    "must be set",
    "instead of ",
];

/// Words of sentences that ask for a report, or for means of finding the cause.
const WITHOUT: [&str; 18] = [
    "issue",
    "bug",
    "report",
    "launch_blocking",
    "debugging",
    "for more",
    "more details",
    "more information",
    "stack trace",
    "traceback",
    "dsa",
    "verbose",
    "torch_logs",
    "contact",
    "constructor syntax",
    "winerror",
    "documentation",
    "troubleshoot",
];

/// The sentences of a message that tell its reader what to do, at most two.
pub(super) fn of_message(message: &str) -> Option<String> {
    let mut told: Vec<&str> = Vec::new();
    for sentence in sentences(message) {
        let lower = sentence.to_ascii_lowercase();
        let begins = BEGINS.iter().any(|words| lower.starts_with(words));
        let holds = HOLDS.iter().any(|words| lower.contains(words));
        if (begins || holds)
            && lower.split_whitespace().count() >= 3
            && !WITHOUT.iter().any(|words| lower.contains(words))
        {
            told.push(sentence);
        }
    }
    told.truncate(2);
    let words = told.join(" ");
    (!words.is_empty() && words.chars().count() <= SHOWN).then_some(words)
}

/// The sentences of a text; a dot within a name or a version ends none.
fn sentences(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = [". ", "! ", "? ", "; "].iter().filter_map(|mark| rest.find(mark)).min();
        let (sentence, after) = match end {
            Some(at) => (&rest[..=at], &rest[at + 2..]),
            None => (rest, ""),
        };
        rest = after;
        Some(sentence.trim().trim_start_matches(['-', '*', '(', '>']).trim_start())
    })
}

#[cfg(test)]
mod tests {
    use super::of_message;

    #[test]
    fn message_with_an_order_gives_advice() {
        for (message, expect) in [
            (
                "requires flash_attn 2.1. Please install it with `pip install flash-attn`. Please open an issue otherwise.",
                Some("Please install it with `pip install flash-attn`."),
            ),
            (
                "user is not a member of \"render\". Users must be a member of it.",
                Some("Users must be a member of it."),
            ),
            ("CUDA error. For debugging consider passing CUDA_LAUNCH_BLOCKING=1", None),
            ("index 3 is out of bounds for axis 0 with size 3", None),
            ("shape '[2, 3]' is invalid. See https://x.y for more information.", None),
        ] {
            assert_eq!(of_message(message).as_deref(), expect, "{message}");
        }
    }
}
