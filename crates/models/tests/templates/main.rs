//! Chat templates against transformers' own `apply_chat_template`: on drawn conversations, and on what Jinja and Python do in ways of
//! their own.
//!
//! What transformers makes of them is recorded in recorded.json; live.rs runs transformers again and writes the record.
#![allow(clippy::unwrap_used)] // Helpers of tests may unwrap as tests do.

mod draw;
mod shared;
mod snippets;

use shared::{COUNT, HERE, SEED, digits, recorded, rendered, snippet};

#[test]
fn drawn_conversations_become_the_text_that_transformers_makes() {
    let (recorded, conversations) = (recorded(), draw::conversations(SEED, COUNT));
    for (name, text) in HERE {
        let got = rendered(text, &conversations);
        let want: Vec<&str> = recorded.rendered[name].split(' ').collect();
        assert_eq!((got.len(), want.len()), (COUNT, COUNT), "{name}");
        for (at, (got, want)) in got.iter().zip(want).enumerate() {
            assert_eq!(
                &digits(got.as_deref()),
                want,
                "{name}, conversation {at}: {}\n{got:?}",
                conversations[at]
            );
        }
        let texts = got.iter().flatten().count();
        assert!(texts > 180, "{name}: only {texts} were rendered");
    }
    // A draw that never has one of these would prove little.
    for words in [
        "\"tools\": [{",
        "\"tool_calls\": [{",
        "reasoning",
        "\"documents\": [{",
        "image_url",
        "\"thinking\": true",
        "\\n ",
        "中文",
        "1e20",
    ] {
        let with = conversations.iter().filter(|text| text.contains(words)).count();
        assert!(with >= 10, "{words} is in {with} conversations");
    }
}

#[test]
fn what_jinja_and_python_do_is_done_alike() {
    let recorded = recorded();
    let known: Vec<&str> = recorded.snippets.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(known, snippets::SNIPPETS, "write the record again, as main.rs says");
    let mut wrong = Vec::new();
    for (text, want) in &recorded.snippets {
        let got = snippet(text);
        if got.as_ref().ok() != want.as_ref() {
            wrong.push(format!("{text:?}\n  gives  {got:?}\n  wanted {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), known.len(), wrong.join("\n"));
}
