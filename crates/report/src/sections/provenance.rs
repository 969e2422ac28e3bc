//! Which command, which source, which tree, how long.

use crate::document::{Block, Prose, Table};
use crate::format;
use crate::run::{MANIFEST_FILE, Run};
use facts::{RunState, SourceTree};

pub(super) fn build(run: &Run<'_>) -> Vec<Block> {
    let manifest = run.manifest;
    let mut about = Table::new(
        Prose::new().text("How this run was made, from ").file(MANIFEST_FILE).text("."),
        &["What", "Value"],
    );
    let mut row = |what: &str, value: Prose| about.row(vec![Prose::from(what), value]);
    row("Command", Prose::new().code(command_line(&manifest.command)));
    row("firstlight", Prose::from(&manifest.version));
    row(
        "Built from",
        tree(manifest.built_from.as_ref(), "not known: it was not built in a git checkout"),
    );
    row("Run in", tree(manifest.run_in.as_ref(), "not a git checkout"));
    row("Host", Prose::new().code(&manifest.host));
    row("Started", Prose::from(format::time(&manifest.started)));
    row(
        "Finished",
        match (&manifest.finished, manifest.state) {
            (Some(finished), _) => Prose::from(format::time(finished)),
            (None, RunState::Incomplete) => Prose::from("not finished"),
            (None, RunState::Complete) => Prose::from("not recorded"),
        },
    );

    let mut blocks = vec![Block::Table(about)];
    if !manifest.stages.is_empty() {
        let mut stages = Table::new(
            Prose::new()
                .text("Stages that ended, with their durations, from ")
                .file(MANIFEST_FILE)
                .text("."),
            &["Stage", ">Duration", "Outcome"],
        );
        for stage in &manifest.stages {
            stages.row(vec![
                Prose::from(&stage.name),
                Prose::from(format::duration(stage.millis)),
                Prose::from(&stage.outcome),
            ]);
        }
        let total: f64 = manifest.stages.iter().map(|stage| stage.millis).sum();
        stages.row(vec![
            Prose::new().strong("all"),
            Prose::new().strong(format::duration(total)),
            Prose::new(),
        ]);
        blocks.push(Block::Table(stages));
    }
    blocks
}

fn tree(tree: Option<&SourceTree>, absent: &str) -> Prose {
    match tree {
        Some(tree) if tree.dirty => {
            Prose::new().code(&tree.commit).text(" with uncommitted changes")
        }
        Some(tree) => Prose::new().code(&tree.commit),
        None => Prose::from(absent),
    }
}

/// The command for a shell: an argument with any character outside a safe set is quoted.
fn command_line(words: &[String]) -> String {
    let plain = |word: &str| {
        !word.is_empty()
            && word
                .chars()
                .all(|letter| letter.is_ascii_alphanumeric() || "-_./=:,+@%".contains(letter))
    };
    let quoted = words.iter().map(|word| {
        if plain(word) { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_command_can_be_typed_again() {
        let check = |words: &[&str], expect: &str| {
            assert_eq!(
                super::command_line(
                    &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()
                ),
                expect
            );
        };
        check(&["firstlight", "check", "--quick"], "firstlight check --quick");
        check(&["x", "a b", "", "it's"], "x 'a b' '' 'it'\\''s'");
    }
}
