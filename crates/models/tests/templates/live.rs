//! Compares transformers with firstlight on generated conversations, also with published templates, and on snippets.
//!
//! `cargo xtask test` installs transformers and names the folder in FIRSTLIGHT_TEMPLATES. With FIRSTLIGHT_RECORD=1 in
//! addition, recorded.json is written.
#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod draw;
mod shared;
mod snippets;

use serde::Deserialize;
use shared::{COUNT, HERE, RecordedRenderings, SEED, digits, recorded, rendered, snippet};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Kimi's templates, which are recorded too. Their licence is Moonshot's, so they are not in this repository.
const RECORDED: [&str; 3] = ["moonshotai-Kimi-K2", "Kimi-K2-Thinking", "Kimi-K3"];

/// Templates whose output may differ, with the reason.
const EXCEPT: [(&str, &str); 4] = [
    (
        "meetkai-functionary-medium-v3.1",
        "adds text to what `safe` gave, which Python's markup escapes",
    ),
    (
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "looks at `x.items` of a dictionary that has such a key",
    ),
    ("GigaChat3-10B-A1.8B", "joins floats with exponents by `~`"),
    ("GigaChat3.1-10B-A1.8B", "joins floats with exponents by `~`"),
];

/// transformers' output for everything.
#[derive(Deserialize)]
struct Answer {
    transformers: String,
    jinja2: String,
    rendered: BTreeMap<String, Vec<Option<String>>>,
    snippets: Vec<Option<String>>,
}

fn ask(home: &Path, templates: &BTreeMap<String, String>, conversations: &[String]) -> Answer {
    let log = home.join("oracle.log");
    let mut python = Command::new(home.join("venv/bin/python"))
        .args(["-I", "-c", include_str!("oracle.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let asked = format!(
        r#"{{"templates": {}, "conversations": [{}], "snippets": {}, "given": {}}}"#,
        serde_json::to_string(templates).unwrap(),
        conversations.join(","),
        serde_json::to_string(snippets::SNIPPETS).unwrap(),
        snippets::GIVEN
    );
    let mut stdin = python.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(asked.as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "transformers failed, see {}", log.display());
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The templates in this repository, and those that were downloaded.
fn templates(home: &Path) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        HERE.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let fetched = [
        Some(home.join("templates")),
        std::env::var_os("FIRSTLIGHT_MORE_TEMPLATES").map(PathBuf::from),
    ];
    for file in fetched.iter().flatten().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            if let Some(here) = all.get(&name) {
                assert_eq!(*here, text, "{name} is not what was published");
            }
            all.insert(name, text);
        }
    }
    all
}

#[test]
fn generated_conversations_match_transformers() {
    let home = std::env::var_os("FIRSTLIGHT_TEMPLATES").map(PathBuf::from);
    let home = home.expect("FIRSTLIGHT_TEMPLATES is not set: run `cargo xtask test`");
    let (templates, conversations) = (templates(&home), draw::conversations(SEED, COUNT));
    let answer = ask(&home, &templates, &conversations);
    let mut wrong = Vec::new();
    for (name, text) in &templates {
        let got = rendered(text, &conversations);
        if EXCEPT.iter().any(|(except, _)| except == name) {
            continue;
        }
        // Minijinja may render a template that transformers refuses, for example a loop over None; this is not a difference.
        // For templates of supported models both must refuse.
        let strict = HERE.iter().any(|(here, _)| here == name) || RECORDED.contains(&name.as_str());
        let want = &answer.rendered[name];
        let differ = |at: &usize| got[*at] != want[*at] && (strict || want[*at].is_some());
        let differing: Vec<usize> = (0..COUNT).filter(differ).collect();
        if let Some(first) = differing.first() {
            let (got, want) = (&got[*first], &answer.rendered[name][*first]);
            let (count, asked) = (differing.len(), &conversations[*first]);
            wrong.push(format!("{name}: {count} differ, the first is {first}: {asked}\n  gives  {got:?}\n  expected {want:?}"));
        }
    }
    for (text, want) in snippets::SNIPPETS.iter().zip(&answer.snippets) {
        let got = snippet(text);
        if got.as_ref().ok() != want.as_ref() {
            wrong.push(format!("{text:?}\n  gives  {got:?}\n  expected {want:?}"));
        }
    }
    record(answer);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(templates.len() > 50, "only {} templates were fetched", templates.len());
}

/// Compares transformers' output with the record, or writes the record.
fn record(answer: Answer) {
    let names = HERE.map(|(name, _)| name).into_iter().chain(RECORDED);
    let hashes = |name: &str| {
        let hashes = answer.rendered[name].iter().map(|text| digits(text.as_deref()));
        hashes.collect::<Vec<_>>().join(" ")
    };
    let snippets = snippets::SNIPPETS.iter().map(|text| (*text).to_owned());
    let new = RecordedRenderings {
        rendered: names.map(|name| (name.to_owned(), hashes(name))).collect(),
        transformers: answer.transformers,
        jinja2: answer.jinja2,
        snippets: snippets.zip(answer.snippets).collect(),
    };
    if std::env::var_os("FIRSTLIGHT_RECORD").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates/recorded.json");
        let text = serde_json::to_string_pretty(&new).unwrap() + "\n";
        std::fs::write(path, text).unwrap();
        return;
    }
    let old = recorded();
    assert_eq!(
        (&old.transformers, &old.jinja2),
        (&new.transformers, &new.jinja2),
        "write the record again"
    );
    assert_eq!(old.rendered, new.rendered, "transformers makes other texts than were recorded");
    assert_eq!(old.snippets, new.snippets);
}
