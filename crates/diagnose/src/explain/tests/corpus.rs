//! Texts that people pasted in public threads, and the rule of each.
//!
//! `corpus.jsonl` has one text per line: the `address` of the thread; the day it was `posted`, if the thread's page
//! showed it (read on 2026-11-22 and 2026-11-25); in `expect` the ids that are right (several if the words alone cannot
//! decide, empty if none of the doctor's rules is about it); `none` if it is also right that no rule matches; and the
//! `text` as programs printed it, prefixes included. In paths, only users' own folders are replaced.
//!
//! The texts were gathered and labelled before the rules were written for them. Rules are written from one half and
//! judged by the other; a hash of the address selects the half.

use super::rules_for;
use serde::Deserialize;

const CORPUS: &str = include_str!("../corpus.jsonl");

#[derive(Deserialize)]
struct Thread {
    address: String,
    posted: Option<String>,
    expect: Vec<String>,
    #[serde(default)]
    none: bool,
    text: String,
}

impl Thread {
    /// Whether rules may be written from it: the top bit of the address's FNV-1a hash is zero.
    fn to_write_from(&self) -> bool {
        let hash = self.address.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        hash >> 63 == 0
    }

    fn judge(&self) -> RuleVerdict {
        match rules_for(&self.text).first() {
            Some(found) if self.expect.iter().any(|id| id == found) => RuleVerdict::Right,
            Some(_) => RuleVerdict::Wrong,
            None if self.none || self.expect.is_empty() => RuleVerdict::Right,
            None => RuleVerdict::None,
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum RuleVerdict {
    Right,
    /// The first rule is not the cause.
    Wrong,
    /// No rule.
    None,
}

fn threads() -> Vec<Thread> {
    let line = |line: &str| serde_json::from_str(line).expect("one thread a line");
    CORPUS.lines().map(line).collect()
}

#[test]
fn each_text_has_its_address_and_known_rules() {
    let threads = threads();
    assert!(threads.len() >= 150, "{}", threads.len());
    let unrelated = threads.iter().filter(|thread| thread.expect.is_empty()).count();
    assert!(unrelated >= 25, "{unrelated}");
    for thread in &threads {
        let at = &thread.address;
        assert!(at.starts_with("https://") && !thread.text.trim().is_empty(), "{at}");
        assert!(thread.posted.as_ref().is_none_or(|day| day.len() == 10), "{at}");
        for id in &thread.expect {
            assert!(crate::rule(id).is_some(), "{at}: no rule {id}");
        }
    }
    let addresses: std::collections::BTreeSet<&str> =
        threads.iter().map(|thread| thread.address.as_str()).collect();
    assert_eq!(addresses.len(), threads.len(), "a thread is here once");
}

/// Every text that rules may be written from must be right; the message shows each failure.
#[test]
fn development_half_finds_the_right_rules() {
    let threads = threads();
    let failed: Vec<String> = threads
        .iter()
        .filter(|thread| thread.to_write_from() && thread.judge() != RuleVerdict::Right)
        .map(|thread| {
            let found = rules_for(&thread.text);
            format!("{}: {found:?}, not {:?}\n{}", thread.address, thread.expect, thread.text)
        })
        .collect();
    assert!(failed.is_empty(), "{}\n{}", failed.len(), failed.join("\n\n"));
}

/// Prints only numbers, so that no rule is written from the failures.
#[test]
fn evaluation_half_finds_enough_right_rules() {
    let judged: Vec<RuleVerdict> =
        threads().iter().filter(|thread| !thread.to_write_from()).map(Thread::judge).collect();
    let count = |wanted: RuleVerdict| judged.iter().filter(|judged| **judged == wanted).count();
    let (right, wrong, all) = (count(RuleVerdict::Right), count(RuleVerdict::Wrong), judged.len());
    println!("of {all}: {right} right, {wrong} wrong, {} none", count(RuleVerdict::None));
    assert!(right * 100 >= all * 80, "{right} of {all} right");
    assert!(wrong * 100 <= all * 2, "{wrong} of {all} wrong");
}
