//! Compares Python's `tokenizers` package with firstlight on the tokenizer.json files of published packages.
//!
//! `cargo xtask sweep tokenizers` installs the packages and names their folder in FIRSTLIGHT_TOKENIZERS;
//! FIRSTLIGHT_TEXTS is the number of texts, which are generated from a fixed seed.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

use models::Tokenizer;
use serde::Deserialize;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Pieces of texts that tokenizers treat differently.
const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    "  ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u{a0}",
    "\u{3000}",
    "the",
    "of",
    "and",
    "word",
    "Words",
    "CAPITALS",
    "camelCase",
    "snake_case",
    "don't",
    "I'm",
    "they'VE",
    "1",
    "12",
    "345",
    "6789",
    "3.14",
    "0x1F",
    "1,000",
    ".",
    ",",
    "?",
    "!",
    " .",
    " ,",
    "...",
    "\"",
    "'",
    "`",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    "/",
    "\\",
    "#",
    "##",
    "@",
    "&",
    "*",
    "=",
    "==",
    "->",
    "::",
    "fn main() {",
    "    return x;",
    "https://a.b/c?d=e",
    "a@b.c",
    "é",
    "e\u{301}",
    "ñ",
    "ß",
    "İ",
    "ﬁ",
    "Straße",
    "naïve",
    "Ελληνικά",
    "русский",
    "עברית",
    "العربية",
    "हिन्दी",
    "ไทย",
    "မြန်မာ",
    "한국어",
    "ㅎㅏㄴ",
    "日本語",
    "中文字符",
    "漢",
    "。",
    "，",
    "😀",
    "🎉🚀",
    "👩‍👩‍👧",
    "🇩🇪",
    "❤️",
    "½",
    "①",
    "𝒳",
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\u{fffd}",
    "\0",
    "\u{7f}",
    "\u{1b}",
    "▁",
    "▁the",
    "Ġ",
    "##s",
    "</w>",
    "<0x41>",
    "<|",
    "|>",
    "<s>",
    "</s>",
    "<unk>",
    "<pad>",
    "<|im_end|>",
    "<|endoftext|>",
    "[INST]",
];

fn texts(count: u64) -> Vec<String> {
    let text = |at: u64| {
        let draw = |place: u64| mix(at << 16 | place);
        let pieces = (1..=draw(0) % 24).map(|place| {
            let draw = draw(place);
            match draw >> 60 {
                // Any character.
                0 => char::from_u32((draw % 0x11_0000) as u32).unwrap_or('x').to_string(),
                _ => PIECES[draw as usize % PIECES.len()].to_owned(),
            }
        });
        pieces.collect()
    };
    (0..count).map(text).collect()
}

#[derive(Deserialize)]
struct Answer {
    ids: Vec<Vec<u32>>,
    texts: Vec<[Option<String>; 2]>,
    lists: Vec<[Option<String>; 2]>,
}

/// All tokenizer.json files below a folder, without duplicates.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// The streamed text.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], special: bool) -> String {
    let mut stream = tokenizer.stream();
    let mut text = String::new();
    for id in ids {
        text += &if special { stream.push_special(*id) } else { stream.push(*id) }.unwrap();
    }
    text + &stream.finish().unwrap()
}

#[test]
fn published_tokenizers_match_the_python_package() {
    let home = std::env::var_os("FIRSTLIGHT_TOKENIZERS").map(PathBuf::from);
    let home = home.expect("FIRSTLIGHT_TOKENIZERS is not set: run `cargo xtask sweep tokenizers`");
    let count = std::env::var("FIRSTLIGHT_TEXTS").map_or(100, |count| count.parse().unwrap());
    let texts = texts(count);
    let mut python = Command::new(home.join("venv/bin/python"))
        .args(["-I", "-c", include_str!("oracle.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(home.join("oracle.log")).unwrap())
        .spawn()
        .unwrap();
    let mut input = python.stdin.take().unwrap();
    let mut output = BufReader::new(python.stdout.take().unwrap());
    writeln!(input, "{}", serde_json::to_string(&texts).unwrap()).unwrap();
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    files(&home.join("files"), &mut all);
    let folder = tempfile::tempdir().unwrap();
    for path in &all {
        let name = path.strip_prefix(&home).unwrap().display().to_string();
        std::fs::copy(path, folder.path().join("tokenizer.json")).unwrap();
        let tokenizer = match Tokenizer::read(folder.path()) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let vocabulary = tokenizer.vocabulary() as u64;
        let list = |at: u64| -> Vec<u32> {
            let draw = |place: u64| mix(at << 20 | place << 1 | 1);
            (1..=1 + draw(0) % 16).map(|place| (draw(place) % vocabulary) as u32).collect()
        };
        let lists: Vec<Vec<u32>> = (0..count / 4).map(list).collect();
        writeln!(input, "{}", json!({ "file": path, "lists": lists })).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let Ok(answer) = serde_json::from_str::<Answer>(&line) else {
            panic!("{name}: the package failed, see {}", home.join("oracle.log").display());
        };
        let before = wrong.len();
        let mut differ = |what: &str, of: &dyn std::fmt::Debug, got: Value, want: Value| {
            if got != want && wrong.len() < before + 3 {
                wrong.push(format!("{name}: {what} of {of:?}\n  is     {got}\n  expected {want}"));
            }
        };
        for (text, want) in texts.iter().zip(&answer.ids) {
            let got = tokenizer.encode(text).unwrap();
            differ("ids", text, json!(got), json!(want));
        }
        let decoded = answer.ids.iter().zip(&answer.texts);
        for (ids, want) in decoded.chain(lists.iter().zip(&answer.lists)) {
            for (special, want) in [false, true].into_iter().zip(want) {
                let Some(want) = want else { continue };
                differ("text", ids, json!(streamed(&tokenizer, ids, special)), json!(want));
            }
        }
    }
    drop(input);
    assert!(python.wait().unwrap().success());
    println!("{} tokenizers, {count} texts and {} lists of ids each", all.len(), count / 4);
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!all.is_empty(), "no tokenizer was found");
}
