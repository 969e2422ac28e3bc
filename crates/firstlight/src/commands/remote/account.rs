//! The planned and finished actions on the other machine, and its unfetched files: as text and JSON.
//!
//! Invariant: the machine is named by its host name; the address that was used to reach it is in neither output.

use super::copy::CopiedFile;
use super::fetch::{RUNS, RemoteRun};
use super::file_system::FileSystem;
use super::survey::RemoteMachine;
use facts::SCHEMA;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct RemoteReport {
    schema: u32,
    /// Its host name.
    machine: String,
    system: String,
    processor: String,
    folder: String,
    free_bytes: u64,
    file_system: FileSystem,
    lost_by_a_stop: bool,
    /// Files that are copied there, or exist there already; the program first.
    pub(super) files: Vec<CopiedFile>,
    pub(super) command: Vec<String>,
    /// The command's exit status; `null` if it had none.
    pub(super) status: Option<i32>,
    /// The command's output, if it was not passed through.
    pub(super) output: Option<String>,
    /// Local paths of fetched run folders.
    pub(super) fetched: Vec<String>,
    /// Files that exist only there.
    only_there: Vec<String>,
}

impl RemoteReport {
    pub(super) fn new(machine: &RemoteMachine) -> Self {
        let RemoteMachine { name, system, processor, folder, free_bytes, file_system, .. } =
            machine.clone();
        Self {
            schema: SCHEMA,
            machine: name,
            system,
            processor,
            folder,
            free_bytes,
            lost_by_a_stop: file_system.is_lost_on_stop(),
            file_system,
            files: Vec::new(),
            command: Vec::new(),
            status: None,
            output: None,
            fetched: Vec::new(),
            only_there: Vec::new(),
        }
    }

    /// Records the state after all actions: run folders that are missing here, and other files created there.
    pub(super) fn leave(&mut self, machine: &RemoteMachine, runs: &[RemoteRun]) {
        let runs = runs.iter().filter(|run| !run.is_here).map(|run| format!("{RUNS}/{}", run.name));
        let sent = |entry: &String| self.files.iter().any(|file| file.path == *entry);
        let others = machine.entries.iter().filter(|it| !["bin", RUNS].contains(&it.as_str()));
        self.only_there = runs.chain(others.filter(|it| !sent(it)).cloned()).collect();
    }

    /// The planned actions, shown in advance.
    pub(super) fn intended(&self) -> String {
        let mut text = self.machine();
        for file in &self.files {
            text.push_str(&format!("  {}\n", file.words()));
        }
        text.push_str(&format!("  run: firstlight {}\n", self.command.join(" ")));
        text.push_str(
            "  then fetch the run folders that it writes; no file is overwritten on either machine\n",
        );
        if self.lost_by_a_stop {
            text.push_str(&format!(
                "warning: output of the command is stored on {}\nhint: work on a volume of that machine: --at DIR\n",
                self.file_system.words()
            ));
        }
        text
    }

    /// The finished actions, and what a stop of the machine would lose.
    pub(super) fn done(&self) -> String {
        let mut text = self.machine();
        for run in &self.fetched {
            text.push_str(&format!("  fetched: {run}\n"));
        }
        if self.only_there.is_empty() {
            text.push_str("the machine has no unfetched files\n");
            return text;
        }
        for entry in &self.only_there {
            text.push_str(&format!("only on the machine: {entry}\n"));
        }
        text.push_str(&format!(
            "before you stop or terminate it: this is stored on {}\n",
            self.file_system.words()
        ));
        text
    }

    fn machine(&self) -> String {
        let Self { machine, system, processor, folder, free_bytes, .. } = self;
        format!("{machine} ({system}, {processor}), in {folder}, {} MiB free:\n", free_bytes >> 20)
    }
}
