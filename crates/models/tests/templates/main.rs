//! Chat templates compared with transformers' `apply_chat_template`: on generated conversations, and on special
//! behaviour of Jinja and Python.
//!
//! transformers' output is recorded in recorded.json; live.rs runs transformers again and writes the record.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod draw;
mod shared;
mod snippets;

use shared::{COUNT, HERE, SEED, digits, recorded, rendered, snippet};

#[test]
fn generated_conversations_match_the_recorded_text() {
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
    // Conversations without these features would prove little.
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
fn snippets_match_the_recorded_text() {
    let recorded = recorded();
    let known: Vec<&str> = recorded.snippets.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(known, snippets::SNIPPETS, "write the record again, as main.rs says");
    let mut wrong = Vec::new();
    for (text, want) in &recorded.snippets {
        let got = snippet(text);
        if got.as_ref().ok() != want.as_ref() {
            wrong.push(format!("{text:?}\n  gives  {got:?}\n  expected {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), known.len(), wrong.join("\n"));
}
