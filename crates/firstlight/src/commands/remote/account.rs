//! What was to be done on the other machine, what was, and what lies only there: for people and as JSON.
//!
//! Invariant: the machine is named as it names itself; the address by which it was reached is in neither.

use super::copy::Parcel;
use super::fate::FileSystem;
use super::fetch::{RUNS, There};
use super::survey::Survey;
use facts::SCHEMA;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Account {
    schema: u32,
    /// What it calls itself.
    machine: String,
    system: String,
    processor: String,
    folder: String,
    free_bytes: u64,
    file_system: FileSystem,
    lost_by_a_stop: bool,
    /// What is copied there, or is there already; the program first.
    pub(super) files: Vec<Parcel>,
    pub(super) command: Vec<String>,
    /// The command's own; `null` where it did not come to one.
    pub(super) status: Option<i32>,
    /// What the command printed, where it was not passed on.
    pub(super) output: Option<String>,
    /// Run folders that were fetched, where they are here.
    pub(super) fetched: Vec<String>,
    /// What lies there and not here.
    only_there: Vec<String>,
}

impl Account {
    pub(super) fn new(machine: &Survey) -> Self {
        let Survey { name, system, processor, folder, free_bytes, file_system, .. } =
            machine.clone();
        Self {
            schema: SCHEMA,
            machine: name,
            system,
            processor,
            folder,
            free_bytes,
            lost_by_a_stop: file_system.is_lost_by_a_stop(),
            file_system,
            files: Vec::new(),
            command: Vec::new(),
            status: None,
            output: None,
            fetched: Vec::new(),
            only_there: Vec::new(),
        }
    }

    /// What is there once all is done: run folders that are not here, and what else was made there.
    pub(super) fn leave(&mut self, machine: &Survey, runs: &[There]) {
        let runs = runs.iter().filter(|run| !run.is_here).map(|run| format!("{RUNS}/{}", run.name));
        let sent = |entry: &String| self.files.iter().any(|file| file.path == *entry);
        let others = machine.entries.iter().filter(|it| !["bin", RUNS].contains(&it.as_str()));
        self.only_there = runs.chain(others.filter(|it| !sent(it)).cloned()).collect();
    }

    /// What will be done, shown before it is.
    pub(super) fn intended(&self) -> String {
        let mut text = self.machine();
        for file in &self.files {
            text.push_str(&format!("  {}\n", file.words()));
        }
        text.push_str(&format!("  run: firstlight {}\n", self.command.join(" ")));
        text.push_str(
            "  then fetch the run folders that it writes; nothing is overwritten, there or here\n",
        );
        if self.lost_by_a_stop {
            text.push_str(&format!(
                "warning: what the command makes there lies on {}\nhint: work on a volume of that machine: --at DIR\n",
                self.file_system.words()
            ));
        }
        text
    }

    /// What was done, and what a stop of the machine would lose.
    pub(super) fn done(&self) -> String {
        let mut text = self.machine();
        for run in &self.fetched {
            text.push_str(&format!("  fetched: {run}\n"));
        }
        if self.only_there.is_empty() {
            text.push_str("  nothing lies only there\n");
            return text;
        }
        for entry in &self.only_there {
            text.push_str(&format!("  only there: {entry}\n"));
        }
        text.push_str(&format!(
            "before you stop or terminate it: this lies on {}\n",
            self.file_system.words()
        ));
        text
    }

    fn machine(&self) -> String {
        let Self { machine, system, processor, folder, free_bytes, .. } = self;
        format!("{machine} ({system}, {processor}), in {folder}, {} MiB free:\n", free_bytes >> 20)
    }
}
